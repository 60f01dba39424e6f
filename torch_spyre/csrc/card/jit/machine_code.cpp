#include "jit/machine_code.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include <algorithm>
#include <array>
#include <climits>
#include <map>

#include "jit/avx512_encoding.h"
#include "jit/register_allocation.h"
#include "numerics/dlfloat16.h"

namespace spyre::card {

void CompiledVectors::run(VectorFrame& frame) const {
  int64_t start[1 + kMaxStreams] = {frame.groups};
  for (size_t i = 0; i < streams_; i++) {
    start[i + 1] = static_cast<int64_t>(reinterpret_cast<intptr_t>(frame.streams[i].at));
  }
  frame.parts = 1;
  frame.starts = start;
  frame.bytes_of_start = 0;
  run_parts(frame);
}

#if defined(__x86_64__)

// A thread may have been told to take subnormal numbers for zero (torch.set_flush_denormal); guards
// look for them.
void CompiledVectors::run_parts(VectorFrame& frame) const {
  constexpr unsigned kZeroForSubnormal = _MM_FLUSH_ZERO_MASK | 0x40;
  const unsigned before = _mm_getcsr();
  const bool changes = (before & kZeroForSubnormal) != 0;
  if (changes) _mm_setcsr(before & ~kZeroForSubnormal);
  code_->entry<void (*)(VectorFrame*)>()(&frame);
  if (changes) _mm_setcsr(before);
}

bool has_vector_compiler() {
  static const bool has = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                          __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  return has;
}

namespace {

constexpr int kZmmRegisters = 32, kMaskRegisters = 8;
// Code that looks at codes is the first to read them. So many bytes further on are those of rows
// that a later block of a norm or a softmax will read: until then it jumps from stick to stick,
// which processors do not expect.
constexpr int kAhead = 8192;
constexpr int kMostFixed = 16;  // registers for values that are the same in all groups
constexpr int kFrame = RDI, kGroups = RSI, kScratch = RAX;
// Those of streams; the last six belong to the caller.
constexpr std::array<int, 12> kPointers = {RCX, RDX, R8,  R9,  R10, R11,
                                           RBX, RBP, R12, R13, R14, R15};
constexpr size_t kFreePointers = 6;

int32_t offset_of_stream(int stream) {
  return static_cast<int32_t>(offsetof(VectorFrame, streams) +
                              stream * sizeof(VectorFrame::Stream));
}

class Compiler {
 public:
  // Constants that have registers from kZmmRegisters - kept.size() on; streams of `totals` have
  // those below.
  Compiler(const VectorCode& code, const VectorCode* cold, int lanes, std::vector<uint32_t> kept,
           bool keeps_halves, const FixedValues& fixed, const std::vector<int>& totals)
      : hot_(code),
        cold_(cold),
        lanes_(lanes),
        kept_(std::move(kept)),
        fixed_(fixed),
        totals_(totals),
        free_(kZmmRegisters - static_cast<int>(kept_.size() + totals.size()) -
              (keeps_halves ? 1 : 0) - fixed.registers(lanes)),
        halves_(keeps_halves ? free_ + fixed.registers(lanes) : -1),
        pool_(code.is_split()),
        registers_(0, free_),
        masks_(1, kMaskRegisters) {}

  std::vector<uint8_t> compile() {
    const size_t streams = hot_.streams().size();
    const size_t pointers = std::min(streams, kPointers.size());
    for (size_t i = kFreePointers; i < pointers; i++) as_.push(kPointers[i]);
    for (size_t i = 0; i < kept_.size(); i++) {
      as_.vector(kBroadcast, kZmmRegisters - 1 - static_cast<int>(i), 0,
                 VectorOperand::constant(pool_.offset_of(kept_[i]), false));
    }
    if (halves_ >= 0) {
      as_.vector(kLoadPs, halves_, 0, VectorOperand::constant(ConstantPool::kUpperHalves, false));
    }
    const size_t part = as_.position();
    emit_start(streams, pointers);
    emit_fixed();
    const size_t loop = as_.position();
    for_totals([&](int reg, const VectorOperand& place) { as_.vector(kLoadPs, reg, 0, place); });
    for (iteration_ = 0; iteration_ < iterations(); iteration_++) {
      emit_iteration(hot_);
      ends_.push_back(as_.position());
    }
    for_totals([&](int reg, const VectorOperand& place) { as_.vector(kStorePs, reg, 0, place); });
    for (size_t i = 0; i < streams; i++) {
      const int32_t at = offset_of_stream(static_cast<int>(i));
      const int32_t step = at + static_cast<int32_t>(offsetof(VectorFrame::Stream, step));
      if (i < pointers) {
        as_.add_memory(kPointers[i], kFrame, step);
      } else {
        as_.load(kScratch, kFrame, at);
        as_.add_memory(kScratch, kFrame, step);
        as_.store(kScratch, kFrame, at);
      }
    }
    as_.decrement(kGroups);
    as_.jump_if_not_zero(loop);
    as_.load(kScratch, kFrame, offsetof(VectorFrame, parts));
    as_.decrement(kScratch);
    as_.store(kScratch, kFrame, offsetof(VectorFrame, parts));
    as_.jump_if_not_zero(part);
    as_.vzeroupper();
    for (size_t i = pointers; i-- > kFreePointers;) as_.pop(kPointers[i]);
    as_.ret();
    for (iteration_ = 0; iteration_ < iterations() && !guards_.empty(); iteration_++) {
      for (const auto& [iteration, jump] : guards_) {
        if (iteration == iteration_) as_.resolve(jump);
      }
      as_.load(kScratch, kFrame, offsetof(VectorFrame, cold));
      as_.decrement(kScratch);
      as_.store(kScratch, kFrame, offsetof(VectorFrame, cold));
      emit_iteration(*cold_);
      as_.jump(ends_[iteration_]);
    }
    return as_.finish(pool_.words());
  }

  int registers_used() const { return most_used_; }

 private:
  int iterations() const { return lanes_ / kLanesOfIteration; }

  // Where the streams of a part begin. Those that have no register are found in the frame.
  void emit_start(size_t streams, size_t pointers) {
    constexpr int32_t kWord = sizeof(int64_t);
    as_.load(kScratch, kFrame, offsetof(VectorFrame, starts));
    for (size_t i = 0; i < streams; i++) {
      const int to = i < pointers ? kPointers[i] : kGroups;
      as_.load(to, kScratch, static_cast<int32_t>(i + 1) * kWord);
      if (i >= pointers) as_.store(to, kFrame, offset_of_stream(static_cast<int>(i)));
    }
    as_.load(kGroups, kScratch, 0);
    as_.add_memory(kScratch, kFrame, offsetof(VectorFrame, bytes_of_start));
    as_.store(kScratch, kFrame, offsetof(VectorFrame, starts));
  }

  // Sums of moments that are in registers while the lanes of a group are added to them.
  template <class Do>
  void for_totals(Do&& act) {
    code_ = &hot_;
    iteration_ = 0;
    for (int stream : totals_) act(register_of_total(stream), memory(stream, 0));
  }
  int register_of_total(int stream) const {
    const auto at = std::find(totals_.begin(), totals_.end(), stream);
    if (at == totals_.end()) return -1;
    return kZmmRegisters - static_cast<int>(kept_.size() + totals_.size()) +
           static_cast<int>(at - totals_.begin());
  }
  // `value`'s register is free to change.
  void add_to_total(int stream, int value) {
    const int total = register_of_total(stream);
    if (total >= 0) {
      as_.vector(kAddPd, total, total, VectorOperand::reg(value));
      return;
    }
    const VectorOperand place = memory(stream, 0);
    as_.vector(kAddPd, value, value, place);
    as_.vector(kStorePs, value, 0, place);
  }

  // Values of the hot form that are the same in all groups, by iteration: from free_ on.
  int fixed_register(size_t number) const {
    return free_ + static_cast<int>(iteration_ * fixed_.used.size() + number);
  }
  void emit_fixed() {
    for (iteration_ = 0; iteration_ < iterations() && !fixed_.used.empty(); iteration_++) {
      begin(hot_, [&](size_t i) { return fixed_.is_fixed[i]; });
      for (size_t i = 0; i < values().size(); i++) {
        if (!fixed_.is_fixed[i]) continue;
        const int value = static_cast<int>(i);
        emit(value);
        const auto at = std::find(fixed_.used.begin(), fixed_.used.end(), value);
        if (at == fixed_.used.end()) continue;
        as_.vector(kMoveD, fixed_register(at - fixed_.used.begin()), 0,
                   VectorOperand::reg(where_.at(i)));
        if (last_use_[i] < 0) registers_.give(where_.at(i));
      }
      most_used_ = std::max(most_used_, registers_.highest() + 1);
    }
  }

  template <class Counts>
  void begin(const VectorCode& code, Counts&& counts) {
    code_ = &code;
    last_use_.assign(values().size(), -1);
    where_.assign(values().size(), -1);
    for (size_t i = 0; i < values().size(); i++) {
      if (!counts(i)) continue;
      const VectorValue& v = values()[i];
      for (int input : {v.a, v.b, v.c}) {
        if (input >= 0) last_use_[input] = static_cast<int>(i);
      }
    }
    registers_ = FreeRegisters(0, free_);
    masks_ = FreeRegisters(1, kMaskRegisters);
  }

  void emit_iteration(const VectorCode& code) {
    const auto is_fixed = [&](size_t i) { return &code == &hot_ && fixed_.is_fixed[i]; };
    begin(code, [&](size_t i) { return !is_fixed(i); });
    for (size_t i = 0; &code == &hot_ && i < fixed_.used.size(); i++) {
      where_[fixed_.used[i]] = fixed_register(i);
      last_use_[fixed_.used[i]] = INT_MAX;
    }
    for (size_t i = 0; i < values().size(); i++) {
      if (values()[i].op != VectorOp::CONSTANT && !is_fixed(i)) emit(static_cast<int>(i));
    }
    most_used_ = std::max(most_used_, registers_.highest() + 1);
  }
  const std::vector<VectorValue>& values() const { return code_->values(); }

  // ---- Where values are -------------------------------------------------------------------------

  bool dies(int value, int at) const {
    return value >= 0 && !code_->is_constant(value) && last_use_[value] == at;
  }
  void free_inputs(int at, int except = -1) {
    const VectorValue& v = values()[at];
    std::array<int, 3> inputs = {v.a, v.b, v.c};
    for (size_t i = 0; i < inputs.size(); i++) {
      const int input = inputs[i];
      if (input == except || !dies(input, at)) continue;
      if (std::find(inputs.begin(), inputs.begin() + i, input) != inputs.begin() + i) continue;
      (is_mask(values()[input].op) ? masks_ : registers_).give(where_.at(input));
    }
    for (int reg : temporaries_) registers_.give(reg);
    temporaries_.clear();
  }
  int kept_register(uint32_t word) const {
    const auto at = std::find(kept_.begin(), kept_.end(), word);
    return at == kept_.end() ? -1 : kZmmRegisters - 1 - static_cast<int>(at - kept_.begin());
  }
  // In a register, if need be one that lasts for this instruction.
  int in_register(int value) {
    if (!code_->is_constant(value)) return where_.at(value);
    const uint32_t word = values()[value].word;
    const int kept = kept_register(word);
    if (kept >= 0) return kept;
    const int reg = registers_.take();
    temporaries_.push_back(reg);
    as_.vector(kBroadcast, reg, 0, VectorOperand::constant(pool_.offset_of(word), false));
    return reg;
  }
  // As the last operand of an instruction.
  VectorOperand operand(int value) {
    if (!code_->is_constant(value)) return VectorOperand::reg(where_.at(value));
    const uint32_t word = values()[value].word;
    const int kept = kept_register(word);
    if (kept >= 0) return VectorOperand::reg(kept);
    return VectorOperand::constant(pool_.offset_of(word), true);
  }
  int take_result(int at) {
    const int reg = registers_.take();
    place(at, reg);
    return reg;
  }
  void place(int at, int reg) { where_[at] = reg; }

  VectorOperand memory(int stream, int32_t inside) {
    const int32_t displacement =
        inside + static_cast<int32_t>(iteration_ * code_->streams()[stream].step);
    if (stream < static_cast<int>(kPointers.size())) {
      return VectorOperand::at(kPointers[stream], displacement);
    }
    as_.load(kScratch, kFrame, offset_of_stream(stream));
    return VectorOperand::at(kScratch, displacement);
  }

  // ---- Instructions -----------------------------------------------------------------------------

  void binary(int at, const Encoding& encoding, bool commutes) {
    int a = values()[at].a, b = values()[at].b;
    if (commutes && code_->is_constant(a)) std::swap(a, b);
    const int first = in_register(a);
    const VectorOperand second = operand(b);
    free_inputs(at);
    as_.vector(encoding, take_result(at), first, second);
  }
  void unary(int at, const Encoding& encoding) {
    const VectorOperand input = operand(values()[at].a);
    free_inputs(at);
    as_.vector(encoding, take_result(at), 0, input);
  }
  void shift(int at, ShiftKind kind) {
    const VectorOperand input = operand(values()[at].a);
    free_inputs(at);
    as_.vector_imm(kShiftD, static_cast<int>(kind), take_result(at), input, values()[at].imm);
  }
  void compare(int at, const Encoding& encoding) {
    const VectorValue& v = values()[at];
    const int first = in_register(v.a);
    const VectorOperand second = operand(v.b);
    free_inputs(at);
    const int mask = masks_.take();
    as_.vector_imm(encoding, mask, first, second, v.imm);
    place(at, mask);
  }
  void mask_op(int at, uint8_t opcode) {
    const VectorValue& v = values()[at];
    const int a = where_.at(v.a), b = v.b < 0 ? a : where_.at(v.b);
    free_inputs(at);
    const int mask = masks_.take();
    as_.mask_op(opcode, mask, a, b);
    place(at, mask);
  }

  // The sum's register is the result's, or else that of a factor.
  void fma(int at, const Encoding& onto_factor, const Encoding& onto_sum) {
    const VectorValue& v = values()[at];
    if (dies(v.c, at) && v.c != v.a && v.c != v.b) {
      int a = v.a, b = v.b;
      if (code_->is_constant(a)) std::swap(a, b);
      const int to = where_.at(v.c);
      const int first = in_register(a);
      as_.vector(onto_sum, to, first, operand(b));
      free_inputs(at, v.c);
      place(at, to);
      return;
    }
    int a = v.a, b = v.b;
    const bool b_dies = dies(b, at) && b != v.c && a != b;
    const bool a_dies = dies(a, at) && a != v.c && a != b;
    if (b_dies && !a_dies) std::swap(a, b);
    const bool reuses = a_dies || b_dies;
    // Everything else must be in place before the copy, which may take a register that dies here.
    const int second = in_register(b);
    int to;
    if (reuses) {
      to = where_.at(a);
    } else {
      to = registers_.take();
      move_into(to, a);
    }
    as_.vector(onto_factor, to, second, operand(v.c));
    free_inputs(at, reuses ? a : -1);
    place(at, to);
  }
  void move_into(int to, int value) {
    if (code_->is_constant(value) && kept_register(values()[value].word) < 0) {
      as_.vector(kBroadcast, to, 0,
                 VectorOperand::constant(pool_.offset_of(values()[value].word), false));
    } else {
      as_.vector(kMoveD, to, 0, VectorOperand::reg(in_register(value)));
    }
  }
  // c ? a : b of bits; a's register is the result's.
  void take_bits(int at) {
    const VectorValue& v = values()[at];
    const bool reuses = dies(v.a, at) && v.a != v.b && v.a != v.c;
    int to;
    if (reuses) {
      to = where_.at(v.a);
    } else {
      to = registers_.take();
      move_into(to, v.a);
    }
    const int second = in_register(v.b);
    constexpr int kThirdSelects = 0xe4;  // bit 4a + 2b + c of the table: c ? a : b
    as_.vector_imm(kTernaryLogicD, to, second, operand(v.c), kThirdSelects);
    free_inputs(at, reuses ? v.a : -1);
    place(at, to);
  }
  void select(int at) {
    const VectorValue& v = values()[at];
    const int mask = where_.at(v.a), no = in_register(v.c);
    const VectorOperand yes = operand(v.b);
    free_inputs(at);
    as_.vector(kBlendPs, take_result(at), no, yes, mask);
  }
  void keep(int at) {
    const VectorValue& v = values()[at];
    const int mask = where_.at(v.a);
    VectorOperand value = operand(v.b);
    free_inputs(at);
    const bool from_memory = value.kind == VectorOperand::Kind::CONSTANT;
    value.broadcast = false;
    as_.vector(from_memory ? kBroadcast : kMoveD, take_result(at), 0, value, mask, true);
  }
  // Where the mask is set, of b and c; elsewhere b, whose register is the result's.
  void combine_where(int at, const Encoding& encoding) {
    const VectorValue& v = values()[at];
    const bool reuses = dies(v.b, at) && v.b != v.c;
    int to;
    if (reuses) {
      to = where_.at(v.b);
    } else {
      to = registers_.take();
      move_into(to, v.b);
    }
    as_.vector(encoding, to, to, operand(v.c), where_.at(v.a));
    free_inputs(at, reuses ? v.b : -1);
    place(at, to);
  }
  void keep_maximum(int at) {
    const VectorValue& v = values()[at];
    const int mask = where_.at(v.a), first = in_register(v.b);
    const VectorOperand second = operand(v.c);
    free_inputs(at);
    as_.vector(kMaxSD, take_result(at), first, second, mask, true);
  }
  void test(int at) {
    const VectorValue& v = values()[at];
    const int first = in_register(v.a);
    const VectorOperand second = operand(v.b);
    free_inputs(at);
    const int mask = masks_.take();
    as_.vector(kTestD, mask, first, second);
    place(at, mask);
  }
  void store_codes(int at) {
    const VectorValue& v = values()[at];
    const bool reuses = dies(v.a, at) && v.a != v.b;
    int packed;
    if (reuses) {
      packed = where_.at(v.a);
    } else {
      packed = registers_.take();
      move_into(packed, v.a);
    }
    as_.vector(kPermuteWords2, packed, halves_, VectorOperand::reg(in_register(v.b)));
    as_.vector(kStorePs, packed, 0, memory(static_cast<int>(v.word), 0));
    free_inputs(at, reuses ? v.a : -1);
    registers_.give(packed);
  }

  // Codes in the upper half of words, those of even lanes from the lower half, shifted right.
  void load_split(int at, int by) {
    const VectorValue& v = values()[at];
    const auto shift = [&](ShiftKind kind, const VectorOperand& from, int bits) {
      as_.vector_imm(kShiftD, static_cast<int>(kind), where_.at(at), from, bits);
    };
    const VectorOperand from = memory(static_cast<int>(v.word), 0);
    take_result(at);
    if (v.half == 0) shift(ShiftKind::LEFT, from, 16);
    shift(ShiftKind::RIGHT_SIGNED, v.half == 0 ? VectorOperand::reg(where_.at(at)) : from, by);
  }

  // Sums of 32 lanes as ((0 + 1) + (2 + 3)) of vectors of 8, squares one after another; then both
  // to what is in memory.
  void add_moments(int at) {
    const VectorValue& v = values()[at];
    std::array<int, 4> eights;
    for (int i = 0; i < 4; i++) {
      const int sixteen = in_register(i < 2 ? v.a : v.b);
      eights[i] = registers_.take();
      if (i % 2 == 0) {
        as_.vector(kToDoubles, eights[i], 0, VectorOperand::reg(sixteen));
      } else {
        as_.vector_imm(kUpperLanes, sixteen, 0, VectorOperand::reg(eights[i]), 1);
        as_.vector(kToDoubles, eights[i], 0, VectorOperand::reg(eights[i]));
      }
    }
    const int sum = registers_.take(), other = registers_.take();
    as_.vector(kMulPd, sum, eights[0], VectorOperand::reg(eights[0]));
    for (int i = 1; i < 4; i++) {
      as_.vector(kFma231Pd, sum, eights[i], VectorOperand::reg(eights[i]));
    }
    add_to_total(v.second, sum);
    as_.vector(kAddPd, sum, eights[0], VectorOperand::reg(eights[1]));
    as_.vector(kAddPd, other, eights[2], VectorOperand::reg(eights[3]));
    as_.vector(kAddPd, sum, sum, VectorOperand::reg(other));
    add_to_total(static_cast<int>(v.word), sum);
    for (int reg : eights) registers_.give(reg);
    registers_.give(sum);
    registers_.give(other);
    free_inputs(at);
  }
  // Even and odd lanes in float32, then the halves of these 16 sums.
  void add_short_moments(int at) {
    const VectorValue& v = values()[at];
    int a = in_register(v.a), b = in_register(v.b);
    std::array<int, 2> apart = {-1, -1};
    for (int first = 0; first < 2 && !code_->is_split(); first++) {
      apart[first] = registers_.take();
      const int numbers = registers_.take();
      as_.vector(kLoadPs, numbers, 0,
                 VectorOperand::constant(ConstantPool::every_other(first), false));
      as_.vector(kMoveD, apart[first], 0, VectorOperand::reg(a));
      as_.vector(kPermuteLanes2, apart[first], numbers, VectorOperand::reg(b));
      registers_.give(numbers);
    }
    if (!code_->is_split()) {
      a = apart[0];
      b = apart[1];
    }
    const int sum = registers_.take(), square = registers_.take(), upper = registers_.take();
    const auto add = [&](int stream, int value) {
      as_.vector_imm(kUpperLanes, value, 0, VectorOperand::reg(upper), 1);
      as_.vector(kAddPs.of_lower_half(), value, value, VectorOperand::reg(upper));
      as_.vector(kToDoubles, value, 0, VectorOperand::reg(value));
      add_to_total(stream, value);
    };
    as_.vector(kMulPs, square, a, VectorOperand::reg(a));
    as_.vector(kAddPs, sum, a, VectorOperand::reg(b));
    as_.vector(kFma231Ps, square, b, VectorOperand::reg(b));
    add(static_cast<int>(v.word), sum);
    add(v.second, square);
    for (int reg : {sum, square, upper, apart[0], apart[1]}) {
      if (reg >= 0) registers_.give(reg);
    }
    free_inputs(at);
  }

  // Twice a code is twice its magnitude: the sign is gone.
  void guard_codes(int stream, int number, bool fetches) {
    const int codes = registers_.take(), mask = masks_.take();
    const VectorOperand from = memory(stream, 0);
    if (fetches) as_.prefetch(from.number, from.displacement + kAhead);
    as_.vector(kLoadPs, codes, 0, from);
    as_.vector(kAddW, codes, codes, VectorOperand::reg(codes));
    as_.vector(kTestW, mask, codes, VectorOperand::reg(codes));
    as_.load(kScratch, kFrame, offsetof(VectorFrame, limits));
    const auto limits = static_cast<int32_t>(number * sizeof(CodeLimits));
    const auto at = [&](size_t inside) {
      return VectorOperand::at(kScratch, limits + static_cast<int32_t>(inside));
    };
    constexpr int kGreater = 6;
    as_.vector(kSubW, codes, codes, at(offsetof(CodeLimits, least)));
    as_.vector_imm(kCompareUW, mask, codes, at(offsetof(CodeLimits, span)), kGreater, mask);
    as_.test_long_mask(mask);
    guards_.push_back({iteration_, as_.jump_if_not_zero_later()});
    registers_.give(codes);
    masks_.give(mask);
  }

  void emit(int at) {
    const VectorValue& v = values()[at];
    const int stream = static_cast<int>(v.word);
    switch (v.op) {
      case VectorOp::CONSTANT:
        return;
      case VectorOp::LOAD_CODES:
        if (code_->is_split()) return load_split(at, 16);
        return as_.vector(kLoadCodes, take_result(at), 0, memory(stream, 32 * v.half));
      case VectorOp::LOAD_SHIFTED:
        return load_split(at, 16 - Dlfloat16::kShift);
      case VectorOp::LOAD_LANES:
        return as_.vector(kLoadPs, take_result(at), 0, memory(stream, 64 * v.half));
      case VectorOp::LOAD_SPLAT:
        return as_.vector(kBroadcast, take_result(at), 0, memory(stream, 0));
      case VectorOp::STORE_LANES: {
        const int from = in_register(v.a);
        as_.vector(kStorePs, from, 0, memory(stream, 64 * v.half));
        return free_inputs(at);
      }
      case VectorOp::STORE_CODES:
        return store_codes(at);
      case VectorOp::ADD_MOMENTS:
        return v.imm != 0 ? add_short_moments(at) : add_moments(at);
      case VectorOp::GUARD:
        as_.test_masks(where_.at(v.a), where_.at(v.b < 0 ? v.a : v.b));
        guards_.push_back({iteration_, as_.jump_if_not_zero_later()});
        return free_inputs(at);
      case VectorOp::GUARD_CODES:
        return guard_codes(stream, v.second, v.imm != 0);
      case VectorOp::ADD:
        return binary(at, kAddPs, true);
      case VectorOp::SUB:
        return binary(at, kSubPs, false);
      case VectorOp::MUL:
        return binary(at, kMulPs, true);
      case VectorOp::DIV:
        return binary(at, kDivPs, false);
      case VectorOp::FMA:
        return fma(at, kFma213Ps, kFma231Ps);
      case VectorOp::FMS:
        return fma(at, kFms213Ps, kFms231Ps);
      case VectorOp::FNMA:
        return fma(at, kFnma213Ps, kFnma231Ps);
      case VectorOp::SQRT:
        return unary(at, kSqrtPs);
      case VectorOp::MAX:
        return binary(at, kMaxPs, false);
      case VectorOp::MIN:
        return binary(at, kMinPs, false);
      case VectorOp::ROUND: {
        const VectorOperand input = operand(v.a);
        free_inputs(at);
        constexpr int kQuiet = 8;
        return as_.vector_imm(kRoundPs, take_result(at), 0, input, v.imm | kQuiet);
      }
      case VectorOp::TO_INT:
        return unary(at, kToInt);
      case VectorOp::TO_FLOAT:
        return unary(at, kToFloat);
      case VectorOp::INT_ADD:
        return binary(at, kAddD, true);
      case VectorOp::INT_SUB:
        return binary(at, kSubD, false);
      case VectorOp::INT_MUL:
        return binary(at, kMulD, true);
      case VectorOp::INT_MAXIMUM:
        return binary(at, kMaxSD, true);
      case VectorOp::INT_MINIMUM:
        return binary(at, kMinSD, true);
      case VectorOp::UINT_MAXIMUM:
        return binary(at, kMaxUD, true);
      case VectorOp::UINT_MINIMUM:
        return binary(at, kMinUD, true);
      case VectorOp::AND:
        return binary(at, kAndD, true);
      case VectorOp::OR:
        return binary(at, kOrD, true);
      case VectorOp::XOR:
        return binary(at, kXorD, true);
      case VectorOp::SHIFT_LEFT:
        return shift(at, ShiftKind::LEFT);
      case VectorOp::SHIFT_RIGHT:
        return shift(at, ShiftKind::RIGHT);
      case VectorOp::SHIFT_RIGHT_SIGNED:
        return shift(at, ShiftKind::RIGHT_SIGNED);
      case VectorOp::TAKE_BITS:
        return take_bits(at);
      case VectorOp::COMPARE:
        return compare(at, kComparePs);
      case VectorOp::INT_COMPARE:
        return compare(at, kCompareD);
      case VectorOp::UINT_COMPARE:
        return compare(at, kCompareUD);
      case VectorOp::MASK_AND:
        return mask_op(at, 0x41);
      case VectorOp::MASK_OR:
        return mask_op(at, 0x45);
      case VectorOp::MASK_NOT:
        return mask_op(at, 0x44);
      case VectorOp::MASK_LANES: {
        const int mask = where_.at(v.a);
        free_inputs(at);
        return as_.vector(kMaskToLanes, take_result(at), 0, VectorOperand::reg(mask));
      }
      case VectorOp::SELECT:
        return select(at);
      case VectorOp::KEEP:
        return keep(at);
      case VectorOp::TEST:
        return test(at);
      case VectorOp::IS_SUBNORMAL: {
        const VectorOperand input = operand(v.a);
        free_inputs(at);
        place(at, masks_.take());
        return as_.vector_imm(kClassPs, where_[at], 0, input, kSubnormal);
      }
      case VectorOp::ADD_WHERE:
        return combine_where(at, kAddD);
      case VectorOp::MAXIMUM_WHERE:
        return combine_where(at, kMaxSD);
      case VectorOp::KEEP_MAXIMUM:
        return keep_maximum(at);
    }
  }

  const VectorCode& hot_;
  const VectorCode* cold_;
  const int lanes_;
  const std::vector<uint32_t> kept_;
  const FixedValues fixed_;
  const std::vector<int> totals_;  // streams of moments that have registers
  const int free_;                 // registers that values can have
  const int halves_;               // register with the numbers of upper halves, or -1
  const VectorCode* code_ = nullptr;
  int iteration_ = 0;
  int most_used_ = 0;
  std::vector<size_t> ends_;                    // by iteration
  std::vector<std::pair<int, size_t>> guards_;  // iterations, jumps
  Assembler as_;
  ConstantPool pool_;
  FreeRegisters registers_, masks_;
  std::vector<int> temporaries_;
  std::vector<int> last_use_, where_;  // by value
};

// Constants by how often they are used, the most used first.
std::vector<uint32_t> constants_by_use(const VectorCode& code) {
  std::map<uint32_t, int> uses;
  for (const VectorValue& v : code.values()) {
    for (int input : {v.a, v.b, v.c}) {
      if (input >= 0 && code.is_constant(input)) uses[code.values()[input].word]++;
    }
  }
  std::vector<std::pair<int, uint32_t>> order;
  for (const auto& [word, count] : uses) order.push_back({-count, word});
  std::sort(order.begin(), order.end());
  std::vector<uint32_t> words;
  for (const auto& [count, word] : order) words.push_back(word);
  return words;
}

std::vector<int> streams_of_moments(const VectorCode& code) {
  std::vector<int> streams;
  for (const VectorValue& v : code.values()) {
    if (v.op != VectorOp::ADD_MOMENTS) continue;
    streams.push_back(static_cast<int>(v.word));
    streams.push_back(v.second);
  }
  return streams;
}

// Nothing when there are too few registers.
std::unique_ptr<CompiledVectors> compile_in_order(const VectorCode& code, int lanes,
                                                  const VectorCode* cold) {
  const bool halves = std::any_of(code.values().begin(), code.values().end(),
                                  [](const auto& v) { return v.op == VectorOp::STORE_CODES; });
  // What has registers for as long as the code runs, as long as there are enough.
  struct Way {
    FixedValues fixed;
    std::vector<int> totals;
  };
  const FixedValues fixed = FixedValues::of(code), none = FixedValues::none(code);
  const std::vector<int> totals = streams_of_moments(code);
  std::vector<Way> ways;
  if (!fixed.used.empty() && fixed.registers(lanes) <= kMostFixed) ways.push_back({fixed, totals});
  ways.push_back({none, totals});
  if (!totals.empty()) ways.push_back({none, {}});
  for (const Way& way : ways) {
    try {
      // First without registers for constants: what is left over is theirs.
      Compiler without(code, cold, lanes, {}, halves, way.fixed, way.totals);
      without.compile();
      std::vector<uint32_t> kept = constants_by_use(code);
      const int room = kZmmRegisters - (halves ? 1 : 0) - way.fixed.registers(lanes) -
                       static_cast<int>(way.totals.size()) - without.registers_used();
      if (static_cast<int>(kept.size()) > room) kept.resize(std::max(room, 0));
      std::unique_ptr<MachineCode> made = MachineCode::make(
          Compiler(code, cold, lanes, std::move(kept), halves, way.fixed, way.totals).compile());
      if (made == nullptr) return nullptr;
      return std::make_unique<CompiledVectors>(std::move(made), code.streams().size());
    } catch (const OutOfRegisters&) {
      continue;
    }
  }
  return nullptr;
}

}  // namespace

std::unique_ptr<CompiledVectors> compile_vectors(VectorCode code, int lanes,
                                                 const VectorCode* cold) {
  if (!has_vector_compiler() || code.streams().size() > kMaxStreams) return nullptr;
  code.drop_unused();
  VectorCode split_cold;
  if (code.can_split() && (cold == nullptr || cold->can_split())) {
    code.split();
    if (cold != nullptr) {
      split_cold = *cold;
      split_cold.split();
      cold = &split_cold;
    }
  }
  for (const VectorStream& stream : code.streams()) {
    const int64_t reach = stream.step * (lanes / kLanesOfIteration);
    if (reach < INT32_MIN / 2 || reach > INT32_MAX / 2) return nullptr;
  }
  VectorCode alternating = code;
  alternating.alternate();
  auto made = compile_in_order(alternating, lanes, cold);
  return made != nullptr ? std::move(made) : compile_in_order(code, lanes, cold);
}

#else

void CompiledVectors::run_parts(VectorFrame&) const {}
bool has_vector_compiler() { return false; }
std::unique_ptr<CompiledVectors> compile_vectors(VectorCode, int, const VectorCode*) {
  return nullptr;
}

#endif

}  // namespace spyre::card
