#include "jit/avx512_encoding.h"

#include <cstring>

namespace spyre::card {

void Assembler::word(int32_t value) {
  for (int i = 0; i < 4; i++) byte(value >> (8 * i) & 0xff);
}

// Four bytes: 62, then bits of registers (inverted), map, W, prefix, length, broadcast, mask.
void Assembler::prefix(const Encoding& e, int first, int second, const VectorOperand& last,
                       int mask, bool zero) {
  const bool is_reg = last.kind == VectorOperand::Kind::REGISTER;
  const int base = last.kind == VectorOperand::Kind::CONSTANT ? 0 : last.number;
  const int r = first >> 3 & 1, r_high = first >> 4 & 1;
  const int b = base >> 3 & 1, x = is_reg ? base >> 4 & 1 : 0;
  byte(0x62);
  byte((!r << 7) | (!x << 6) | (!b << 5) | (!r_high << 4) | e.map);
  byte((e.w << 7) | ((~second & 15) << 3) | 4 | e.prefix);
  byte((zero << 7) | ((e.lower_half ? 1 : 2) << 5) | (last.broadcast << 4) |
       (!(second >> 4 & 1) << 3) | mask);
  byte(e.opcode);
}

// Displacements have 32 bits throughout.
void Assembler::modrm(int first, const VectorOperand& last, int bytes_after) {
  const int reg = (first & 7) << 3;
  switch (last.kind) {
    case VectorOperand::Kind::REGISTER:
      byte(0xc0 | reg | (last.number & 7));
      return;
    case VectorOperand::Kind::MEMORY:
      byte(0x80 | reg | (last.number & 7));
      if ((last.number & 7) == RSP) byte(0x24);
      word(last.displacement);
      return;
    case VectorOperand::Kind::CONSTANT:
      byte(reg | 5);  // relative to the next instruction
      fixups_.push_back({bytes_.size(), bytes_.size() + 4 + bytes_after, last.number});
      word(0);
      return;
  }
}

void Assembler::vector(const Encoding& encoding, int first, int second, const VectorOperand& last,
                       int mask, bool zero) {
  prefix(encoding, first, second, last, mask, zero);
  modrm(first, last, 0);
}

void Assembler::vector_imm(const Encoding& encoding, int first, int second,
                           const VectorOperand& last, int imm, int mask) {
  prefix(encoding, first, second, last, mask, false);
  modrm(first, last, 1);
  byte(imm);
}

void Assembler::mask_op(uint8_t opcode, int to, int a, int b) {
  const bool is_not = opcode == 0x44;
  byte(0xc5);
  byte(0x80 | ((is_not ? 15 : ~a & 15) << 3) | (is_not ? 0 : 4));
  byte(opcode);
  byte(0xc0 | to << 3 | b);
}

void Assembler::gpr_memory(uint8_t opcode, int reg, int base, int32_t displacement) {
  byte(0x48 | (reg >> 3 & 1) << 2 | (base >> 3 & 1));
  byte(opcode);
  byte(0x80 | (reg & 7) << 3 | (base & 7));
  if ((base & 7) == RSP) byte(0x24);
  word(displacement);
}

void Assembler::load(int to, int base, int32_t displacement) {
  gpr_memory(0x8b, to, base, displacement);
}
void Assembler::store(int from, int base, int32_t displacement) {
  gpr_memory(0x89, from, base, displacement);
}
void Assembler::add_memory(int to, int base, int32_t displacement) {
  gpr_memory(0x03, to, base, displacement);
}
void Assembler::push(int reg) {
  if (reg >= R8) byte(0x41);
  byte(0x50 | (reg & 7));
}
void Assembler::pop(int reg) {
  if (reg >= R8) byte(0x41);
  byte(0x58 | (reg & 7));
}
void Assembler::decrement(int reg) {
  byte(0x48 | (reg >> 3 & 1));
  byte(0xff);
  byte(0xc8 | (reg & 7));
}
void Assembler::jump_if_not_zero(size_t target) {
  byte(0x0f);
  byte(0x85);
  word(static_cast<int32_t>(static_cast<int64_t>(target) - static_cast<int64_t>(position() + 4)));
}
void Assembler::jump(size_t target) {
  byte(0xe9);
  word(static_cast<int32_t>(static_cast<int64_t>(target) - static_cast<int64_t>(position() + 4)));
}
void Assembler::test_masks(int mask, int other) {
  byte(0xc5);
  byte(0xf8);
  byte(0x98);
  byte(0xc0 | mask << 3 | other);
}
void Assembler::test_long_mask(int mask) {
  byte(0xc4);
  byte(0xe1);
  byte(0xf9);
  byte(0x98);
  byte(0xc0 | mask << 3 | mask);
}
size_t Assembler::jump_if_not_zero_later() {
  jump_if_not_zero(0);
  return position();
}
void Assembler::resolve(size_t jump) {
  const auto distance = static_cast<int32_t>(position() - jump);
  std::memcpy(bytes_.data() + jump - 4, &distance, 4);
}
void Assembler::prefetch(int base, int32_t displacement) {
  constexpr int kToL2 = 2;
  if (base >= R8) byte(0x41);
  byte(0x0f);
  byte(0x18);
  byte(0x80 | kToL2 << 3 | (base & 7));
  if ((base & 7) == RSP) byte(0x24);
  word(displacement);
}
void Assembler::vzeroupper() {
  byte(0xc5);
  byte(0xf8);
  byte(0x77);
}
void Assembler::ret() { byte(0xc3); }

std::vector<uint8_t> Assembler::finish(const std::vector<uint32_t>& pool) {
  while (bytes_.size() % 64 != 0) byte(0xcc);
  const size_t begin = bytes_.size();
  for (const Fixup& fixup : fixups_) {
    const auto distance = static_cast<int32_t>(begin + fixup.offset - fixup.from);
    std::memcpy(bytes_.data() + fixup.at, &distance, 4);
  }
  for (uint32_t value : pool) word(static_cast<int32_t>(value));
  return std::move(bytes_);
}

}  // namespace spyre::card
