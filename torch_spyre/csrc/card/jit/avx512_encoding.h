// An assembler for what jit/machine_code.cpp needs of x86-64: AVX-512 on 16 lanes of 32 bits, and
// the few instructions around it. Numbers of registers are those of the processor.
//
// Example: Assembler a; a.vector(kAddPs, 0, 1, VectorOperand::reg(2));  // zmm0 = zmm1 + zmm2
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace spyre::card {

enum Gpr : int { RAX = 0, RCX, RDX, RBX, RSP, RBP, RSI, RDI, R8, R9, R10, R11, R12, R13, R14, R15 };

// An instruction: its prefix (0: none, 1: 66, 2: F3, 3: F2), its map (1: 0F, 2: 0F38, 3: 0F3A),
// the W bit, the opcode; whether it is of the lower half of registers only.
struct Encoding {
  uint8_t prefix, map, w, opcode;
  bool lower_half = false;

  constexpr Encoding of_lower_half() const { return {prefix, map, w, opcode, true}; }
};
constexpr Encoding kAddPs{0, 1, 0, 0x58}, kMulPs{0, 1, 0, 0x59}, kSubPs{0, 1, 0, 0x5c},
    kMinPs{0, 1, 0, 0x5d}, kDivPs{0, 1, 0, 0x5e}, kMaxPs{0, 1, 0, 0x5f}, kSqrtPs{0, 1, 0, 0x51};
// The first operand is also the result: 213: a = b * a + c, 231: a = b * c + a; less the sum
// (kFms), the sum less the product (kFnma).
constexpr Encoding kFma213Ps{1, 2, 0, 0xa8}, kFma231Ps{1, 2, 0, 0xb8};
constexpr Encoding kFms213Ps{1, 2, 0, 0xaa}, kFms231Ps{1, 2, 0, 0xba};
constexpr Encoding kFnma213Ps{1, 2, 0, 0xac}, kFnma231Ps{1, 2, 0, 0xbc};
constexpr Encoding kAddD{1, 1, 0, 0xfe}, kSubD{1, 1, 0, 0xfa}, kAndD{1, 1, 0, 0xdb},
    kOrD{1, 1, 0, 0xeb}, kXorD{1, 1, 0, 0xef}, kMulD{1, 2, 0, 0x40}, kMinSD{1, 2, 0, 0x39},
    kMaxSD{1, 2, 0, 0x3d};
constexpr Encoding kShiftD{1, 1, 0, 0x72};  // the kind of shift is in the place of a register
constexpr Encoding kTernaryLogicD{1, 3, 0, 0x25};
constexpr Encoding kComparePs{0, 1, 0, 0xc2}, kCompareD{1, 3, 0, 0x1f}, kTestD{1, 2, 0, 0x27};
constexpr Encoding kClassPs{1, 3, 0, 0x66};  // which kinds of numbers it looks for is the byte
constexpr int kSubnormal = 0x20;
constexpr Encoding kBlendPs{1, 2, 0, 0x65}, kMoveD{1, 1, 0, 0x6f}, kMaskToLanes{2, 2, 0, 0x38};
constexpr Encoding kLoadPs{0, 1, 0, 0x10}, kStorePs{0, 1, 0, 0x11}, kBroadcast{1, 2, 0, 0x18},
    kLoadCodes{1, 2, 0, 0x23};  // 16 words to 16 lanes, with their sign
constexpr Encoding kRoundPs{1, 3, 0, 0x08}, kToInt{2, 1, 0, 0x5b}, kToFloat{0, 1, 0, 0x5b};
constexpr Encoding kPermuteWords2{1, 2, 1, 0x7d}, kPermuteLanes2{1, 2, 0, 0x7e};
constexpr Encoding kMinUD{1, 2, 0, 0x3b}, kMaxUD{1, 2, 0, 0x3f}, kCompareUD{1, 3, 0, 0x1e};
// 32 lanes of 16 bits
constexpr Encoding kAddW{1, 1, 0, 0xfd}, kSubW{1, 1, 0, 0xf9}, kTestW{1, 2, 1, 0x26},
    kCompareUW{1, 3, 1, 0x3e};
// float64
constexpr Encoding kToDoubles{0, 1, 0, 0x5a}, kAddPd{1, 1, 1, 0x58}, kMulPd{1, 1, 1, 0x59},
    kFma231Pd{1, 2, 1, 0xb8};
constexpr Encoding kUpperLanes{1, 3, 1, 0x1b};  // 8 of 16: from the first operand to the last
enum class ShiftKind : uint8_t { RIGHT = 2, RIGHT_SIGNED = 4, LEFT = 6 };

// The last operand of a vector instruction: a register, memory at a register or at a constant, one
// element of memory for all lanes.
struct VectorOperand {
  enum class Kind : uint8_t { REGISTER, MEMORY, CONSTANT } kind = Kind::REGISTER;
  int number = 0;  // of the register, the base, or the constant (its offset in the pool)
  int32_t displacement = 0;
  bool broadcast = false;

  static VectorOperand reg(int number) { return {Kind::REGISTER, number, 0, false}; }
  static VectorOperand at(int base, int32_t displacement) {
    return {Kind::MEMORY, base, displacement, false};
  }
  static VectorOperand constant(int offset, bool broadcast) {
    return {Kind::CONSTANT, offset, 0, broadcast};
  }
};

class Assembler {
 public:
  // first: result (or mask register of comparisons), second: first input, or 0 if there is none.
  // mask 0: all lanes. zero: lanes outside of the mask are zero instead of kept.
  void vector(const Encoding& encoding, int first, int second, const VectorOperand& last,
              int mask = 0, bool zero = false);
  void vector_imm(const Encoding& encoding, int first, int second, const VectorOperand& last,
                  int imm, int mask = 0);
  // Masks; opcodes 0x41 and, 0x45 or, 0x44 not (of b).
  void mask_op(uint8_t opcode, int to, int a, int b);

  void load(int to, int base, int32_t displacement);        // 64 bits
  void store(int from, int base, int32_t displacement);     // 64 bits
  void add_memory(int to, int base, int32_t displacement);  // to += 64 bits
  void push(int reg);
  void pop(int reg);
  void decrement(int reg);
  void jump_if_not_zero(size_t target);
  void jump(size_t target);
  // Sets the zero flag where no bit of the masks is set.
  void test_masks(int mask, int other);
  void test_long_mask(int mask);  // of 32 bits
  // A jump whose target is not known yet; resolve() says it.
  size_t jump_if_not_zero_later();
  void resolve(size_t jump);
  void prefetch(int base, int32_t displacement);  // to the L2 cache
  void vzeroupper();
  void ret();

  size_t position() const { return bytes_.size(); }
  // Appends the pool of constants, aligned, and resolves what refers to it.
  std::vector<uint8_t> finish(const std::vector<uint32_t>& pool);

 private:
  struct Fixup {
    size_t at;    // of the 32-bit displacement
    size_t from;  // what it counts from: the next instruction
    int offset;   // in the pool
  };
  void byte(int value) { bytes_.push_back(static_cast<uint8_t>(value)); }
  void word(int32_t value);
  void prefix(const Encoding& encoding, int first, int second, const VectorOperand& last, int mask,
              bool zero);
  void modrm(int first, const VectorOperand& last, int bytes_after);
  void gpr_memory(uint8_t opcode, int reg, int base, int32_t displacement);

  std::vector<uint8_t> bytes_;
  std::vector<Fixup> fixups_;
};

}  // namespace spyre::card
