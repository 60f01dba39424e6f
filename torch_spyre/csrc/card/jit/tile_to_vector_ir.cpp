// Translating instructions of tile programs: which form computes what, and when a form may be used.
// jit/specialisations.h says what the forms are; jit/specialisations.cpp runs them.
#include <algorithm>
#include <array>
#include <bit>
#include <functional>
#include <map>
#include <mutex>
#include <set>

#include "jit/record.h"
#include "jit/specialisations.h"

namespace spyre::card {
namespace {

bool is_lane_format(DataFormat format) {
  return format == DataFormat::IEEE_FP32 || format == DataFormat::IEEE_INT32 ||
         format == DataFormat::SENUINT32;
}

// Results that need no rounding where the inputs need none, and that rounding may follow as well.
bool commutes_with_rounding(int opcode) {
  return opcode == RELU || opcode == NEG || opcode == ABS || opcode == COPY;
}

// Results that are never much larger than the input, or than 1.
bool stays_below_input(int opcode) {
  switch (opcode) {
    case SHORT_SIGMOID:
    case SHORT_TANH:
    case SHORT_SILU:
    case SHORT_GELU_ERF:
    case SHORT_GELU_TANH:
      return true;
    default:
      return false;
  }
}

// Whether the groups of a run have other lanes of this operand each.
bool moves(const TileStep& step, int operand) {
  return std::any_of(step.walks.begin(), step.walks.end(), [&](const TileWalk& walk) {
    return !walk.kept.empty() && walk.kept.back().strides[operand] != 0;
  });
}

// Whether it goes over blocks of rows, stick by stick.
bool is_of_rows(const TileStep& step) { return !step.phases.empty() && step.reduces(); }

bool contains(const std::vector<int>& numbers, int number) {
  return std::find(numbers.begin(), numbers.end(), number) != numbers.end();
}

struct Untranslatable {};

}  // namespace

// How much is known of magnitudes; see jit/specialisations.h.
enum class TileForm { ORDINARY, GUARDED, NOT_LARGE, CHECKED, ANY };

class TileTranslator {
 public:
  // `scales`: whether lanes are left as codes have them where that saves something. `powers`:
  // factors of one value are powers of two.
  TileTranslator(const TileStep& step, SpecialisedCode& to, TileForm form, bool scales = false,
                 bool powers = false)
      : step_(step), to_(to), form_(form), scales_(scales), powers_(powers) {
    for (const SpecialisedCode::Stream& stream : to_.streams_) {
      code_.add_stream(stream.apart, is_fixed(stream));
    }
  }

  VectorCode run() {
    if (form_ == TileForm::GUARDED) {
      for (size_t i = 0; i < to_.guards_.size(); i++) {
        code_.guard_codes(operand_stream(to_.guards_[i]), static_cast<int>(i), is_of_rows(step_));
      }
    }
    for (half_ = 0; half_ < 2; half_++) {
      registers_.fill({});
      for (size_t i = 0; i < to_.instructions_.size(); i++) translate(i);
      reduce();
      for (int reg : to_.lasting_) {
        if (registers_[reg].value < 0) continue;  // what was there before lasts
        store_lanes(stream(SpecialisedCode::Source::REGISTER, reg, kLanesBytes),
                    rounded(reg).value);
      }
    }
    if (is_checked()) {
      guard();
      for (const auto& effect : late_) effect();
    }
    code_.drop_unused();
    code_.fold_scaling();
    return std::move(code_);
  }

 private:
  static constexpr int64_t kLanesBytes = 32 * sizeof(uint32_t);

  // What a register of the program holds of the half that is being translated.
  struct Lanes {
    int value = -1;
    bool coarse = false;     // no more fraction bits than DLFloat16, and in its range if not ANY
    bool unrounded = false;  // shall be rounded before it is computed with
    int scaled = -1;         // the value times 2^-96, as a code has it when it is shifted; or none
    bool exact = false;      // `scaled` is just that, even if it is out of range: a sum
    bool not_large = false;  // it is not too large if nothing is that has been looked at before
    int operand = -1;        // of one value, which this is
  };

  void translate(size_t at) {
    const TileInstruction& in = to_.instructions_[at];
    switch (in.opcode) {
      case LOAD:
        registers_[in.destination] = load(in.a);
        return;
      case STORE:
        return store(at);
      case ROUND: {
        Lanes lanes = get(in.a);
        if (is_code_format(in.format)) {
          lanes.unrounded = !lanes.coarse;
        } else if (in.format != DataFormat::IEEE_FP32) {
          throw Untranslatable{};
        }
        registers_[in.destination] = lanes;
        return;
      }
      case SPREAD:
        registers_[in.destination] = result(in.a);
        return;
      default:
        break;
    }
    const int inputs = inputs_of(in.opcode);
    const bool immediate = in.opcode == ADD_CONSTANT || in.opcode == MUL_CONSTANT;
    Lanes b, c;
    if (to_.divides_[at] && is_ordinary()) {
      const int reciprocal = splat(SpecialisedCode::Source::RESULT_RECIPROCAL, in.b);
      registers_[in.destination] = {code_.make(VectorOp::MUL, rounded(in.a).value, reciprocal),
                                    false, in.then_round};
      return;
    }
    if (!immediate && inputs > 1) b = second(in.b, in.b_is);
    if (inputs > 2) c = rounded(in.c);
    Lanes lanes = apply(in, in.opcode, inputs > 0 ? in.a : -1, b, c);
    if (in.is_pair()) {
      registers_[in.destination] = lanes;
      lanes = apply(in, in.then_opcode, in.destination, second(in.c, in.b_is), {});
    }
    if (in.then_round && !lanes.coarse) lanes.unrounded = true;
    registers_[in.destination] = lanes;
  }

  Lanes apply(const TileInstruction& in, int opcode, int a_register, const Lanes& b,
              const Lanes& c) {
    Lanes a;
    if (a_register >= 0) {
      a = commutes_with_rounding(opcode) ? get(a_register) : rounded(a_register);
    }
    Lanes lanes;
    const bool near = nearness_of(opcode) > 0 &&
                      (is_ordinary() || (is_checked() && a.coarse && opcode == SHORT_GELU_ERF));
    lanes.value =
        near ? record_near(code_, opcode, a.value)
             : record_instruction(code_, opcode, a.value, b.value, c.value, in.imm0, in.imm1);
    if (lanes.value < 0) throw Untranslatable{};
    if (commutes_with_rounding(opcode)) {
      lanes.coarse = a.coarse;
      lanes.unrounded = a.unrounded;
    } else if (opcode == MAXIMUM || opcode == MINIMUM) {
      lanes.coarse = a.coarse && b.coarse;
    } else if (opcode == WHERE) {
      lanes.coarse = b.coarse && c.coarse;
    } else if (opcode == MUL_CONSTANT && form_ != TileForm::ANY) {
      lanes.coarse = a.coarse && is_power_of_two(in.imm0);
      if (lanes.coarse) watch(lanes.value);
    } else if (opcode == MUL && ((a.coarse && b.operand >= 0) || (b.coarse && a.operand >= 0))) {
      const int factor = a.coarse && b.operand >= 0 ? b.operand : a.operand;
      if (!contains(to_.factors_, factor)) to_.factors_.push_back(factor);
      lanes.coarse = powers_;
    } else {
      lanes.coarse = is_comparison(opcode);
    }
    lanes.scaled = scaled(in, opcode, a, b);
    const bool is_product = opcode == MUL || opcode == MUL_CONSTANT;
    if (is_product && lanes.coarse && is_ordinary()) {
      code_.mark_exact(lanes.value);
      if (lanes.scaled >= 0) code_.mark_exact(lanes.scaled);
    }
    lanes.exact = lanes.scaled >= 0 && !is_product;
    lanes.not_large = a.coarse && stays_below_input(opcode);
    return lanes;
  }

  // Between decoding, which multiplies with 2^96, and encoding, which multiplies with 2^-96, many
  // instructions can do without both. They have the same bits, as long as what they make is in
  // range. Products are looked at where they are rounded or stored, so no other one is passed on. A
  // sum that is subnormal on that scale is exact on both, and none of 2^-30 and more is subnormal.
  int scaled(const TileInstruction& in, int opcode, const Lanes& a, const Lanes& b) {
    if (!scales_ || !is_ordinary()) return -1;
    const auto is_in_range = [](const Lanes& lanes) {
      return lanes.scaled >= 0 && (lanes.coarse || lanes.unrounded || lanes.exact);
    };
    switch (opcode) {
      case COPY:
      case NEG:
      case ABS:
      case RELU:
      case MUL_CONSTANT:
        if (!is_in_range(a)) return -1;
        return record_instruction(code_, opcode, a.scaled, -1, -1, in.imm0, in.imm1);
      case ADD:
      case SUB:
      case MAXIMUM:
      case MINIMUM:
        if (!is_in_range(a) || !is_in_range(b)) return -1;
        return record_instruction(code_, opcode, a.scaled, b.scaled, -1, 0, 0);
      case MUL:
        if (is_in_range(b)) return code_.make(VectorOp::MUL, a.value, b.scaled);
        if (is_in_range(a)) return code_.make(VectorOp::MUL, a.scaled, b.value);
        return -1;
      default:
        return -1;
    }
  }

  bool is_ordinary() const { return form_ == TileForm::ORDINARY || form_ == TileForm::GUARDED; }
  bool is_checked() const { return form_ == TileForm::NOT_LARGE || form_ == TileForm::CHECKED; }

  Lanes& get(int reg) {
    Lanes& lanes = registers_[reg];
    if (lanes.value < 0) {
      lanes.value = code_.load(VectorOp::LOAD_LANES,
                               stream(SpecialisedCode::Source::REGISTER, reg, kLanesBytes), half_);
    }
    return lanes;
  }
  Lanes& rounded(int reg) {
    Lanes& lanes = get(reg);
    if (lanes.unrounded) {
      watch(lanes.value, lanes.not_large);
      const int scaled = lanes.scaled < 0 ? -1 : record_round(code_, lanes.scaled, true);
      lanes = {record_round(code_, lanes.value, form_ != TileForm::ANY), true, false, scaled};
    }
    return lanes;
  }
  Lanes second(int number, SecondInput kind) {
    switch (kind) {
      case SecondInput::REGISTER:
        return rounded(number);
      case SecondInput::RESULT:
        return result(number);
      default:
        return load(number);
    }
  }
  Lanes result(int number) {
    if (step_.reduce_lanes) {
      return {splat(SpecialisedCode::Source::RESULT_SPLAT, number), false, false};
    }
    return {code_.load(VectorOp::LOAD_LANES,
                       stream(SpecialisedCode::Source::RESULT_LANES, number, kLanesBytes), half_),
            false, false};
  }
  Lanes load(int number) {
    const TileOperand& operand = step_.operands[number];
    to_.loaded_[number] = true;
    if (operand.form != OperandForm::VECTOR) {
      Lanes one{splat(SpecialisedCode::Source::SPLAT_OPERAND, number), false, false};
      one.operand = number;
      return one;
    }
    const int from = operand_stream(number);
    if (is_lane_format(operand.format)) {
      return {code_.load(VectorOp::LOAD_LANES, from, half_), false, false};
    }
    const int codes = code_.load(VectorOp::LOAD_CODES, from, half_);
    const int scaled = scales_ && is_ordinary() ? record_scaled(code_, codes) : -1;
    return {record_decode(code_, codes, form_ != TileForm::ANY), true, false, scaled};
  }
  void store(size_t at) {
    const TileInstruction& in = to_.instructions_[at];
    const TileOperand& operand = step_.operands[in.destination];
    if (operand.form != OperandForm::VECTOR) throw Untranslatable{};
    const int to = operand_stream(in.destination);
    if (is_lane_format(operand.format)) return store_lanes(to, rounded(in.a).value);
    const Lanes& lanes = get(in.a);
    const bool coarse = lanes.coarse && !lanes.unrounded;
    const int codes =
        form_ == TileForm::ANY ? record_encode(code_, lanes.value) : encode_in_range(lanes, coarse);
    if (half_ == 0) {
      first_halves_[at] = codes;
      return;
    }
    const int first = first_halves_.at(at);
    effect([this, to, first, codes] { code_.store(VectorOp::STORE_CODES, to, 0, first, codes); });
  }
  int encode_in_range(const Lanes& lanes, bool coarse) {
    const int scaled = lanes.scaled >= 0 ? lanes.scaled : record_scaled_down(code_, lanes.value);
    if (!coarse && is_checked()) {
      if (!lanes.not_large) watch_large(lanes.value);
      const int small = code_.make(VectorOp::IS_SUBNORMAL, scaled);
      // Two masks are tested at once; there are few registers for them.
      if (small_.size() < 2) {
        small_.push_back(small);
      } else {
        small_[1] = code_.make(VectorOp::MASK_OR, small_[1], small);
      }
    }
    return record_encode_scaled(code_, scaled, coarse);
  }
  void store_lanes(int to, int value) {
    effect(
        [this, to, value, half = half_] { code_.store(VectorOp::STORE_LANES, to, half, value); });
  }

  // ---- Reductions
  // ---------------------------------------------------------------------------------

  void reduce() {
    for (size_t i = 0; i < to_.reductions_.size(); i++) {
      const TileReduction& reduction = to_.reductions_[i];
      const int value = rounded(reduction.source).value;
      const int number = static_cast<int>(i);
      if (reduction.op == ReduceOp::EXX2) {
        add_moments(number, value, reduction.few_bits);
        continue;
      }
      constexpr std::array<int, kNumFoldOps> kFolds = {ADD, MAXIMUM, MINIMUM, MUL};
      const int opcode = kFolds[static_cast<size_t>(reduction.op)];
      const int total = stream(SpecialisedCode::Source::TOTAL, number, kLanesBytes);
      effect([this, opcode, total, value, half = half_] {
        const int before = code_.load(VectorOp::LOAD_LANES, total, half);
        code_.store(VectorOp::STORE_LANES, total, half,
                    record_instruction(code_, opcode, before, value, -1, 0, 0));
      });
    }
  }
  void add_moments(int number, int value, bool few_bits) {
    const int sums = stream(SpecialisedCode::Source::SUMS, number, 0);
    const int squares = stream(SpecialisedCode::Source::SQUARES, number, 0);
    if (half_ == 0) {
      first_moments_[number] = value;
      return;
    }
    const int first = first_moments_.at(number);
    effect([=, this] { code_.add_moments(sums, squares, first, value, few_bits); });
  }

  // ---- Looking
  // ------------------------------------------------------------------------------------

  // Done at once, or after the guard.
  void effect(std::function<void()> what) {
    if (is_checked()) {
      late_.push_back(std::move(what));
    } else {
      what();
    }
  }

  // Twice the bits of a magnitude, so that the sign is gone; less one, so that zero is large.
  void watch(int value, bool not_large = false) {
    if (!is_checked()) return;
    if (!not_large) watch_large(value);
    if (!small_watched_.insert(value).second) return;
    const int less = code_.make(VectorOp::INT_ADD, twice(value), code_.constant(~0u));
    least_ = least_ < 0 ? less : code_.make(VectorOp::UINT_MINIMUM, least_, less);
  }
  void watch_large(int value) {
    if (form_ != TileForm::CHECKED || !large_watched_.insert(value).second) return;
    most_ = most_ < 0 ? twice(value) : code_.make(VectorOp::UINT_MAXIMUM, most_, twice(value));
  }
  int twice(int value) { return code_.make(VectorOp::INT_ADD, value, value); }

  // Lanes that are not in the range of ordinary ones.
  void guard() {
    const auto limit = [](float x) { return 2 * std::bit_cast<uint32_t>(x); };
    std::vector<int> outside = small_;
    if (most_ >= 0) {
      outside.push_back(code_.make(VectorOp::UINT_COMPARE, code_.constant(limit(0x1p32f)), most_,
                                   -1, static_cast<int>(Comparison::LESS_EQUAL)));
    }
    if (least_ >= 0) {
      outside.push_back(code_.make(VectorOp::UINT_COMPARE, least_,
                                   code_.constant(limit(0x1p-30f) - 1), -1,
                                   static_cast<int>(Comparison::LESS)));
    }
    if (outside.empty()) throw Untranslatable{};  // nothing to look at
    while (outside.size() > 2) {
      const int last = outside.back();
      outside.pop_back();
      outside.back() = code_.make(VectorOp::MASK_OR, outside.back(), last);
    }
    code_.guard(outside[0], outside.size() > 1 ? outside[1] : -1);
  }

  // ---- Streams
  // ------------------------------------------------------------------------------------

  int splat(SpecialisedCode::Source source, int number) {
    return code_.load(VectorOp::LOAD_SPLAT, stream(source, number, 0), 0);
  }
  // Of 32 lanes: half a stick of codes, a stick of lanes.
  int operand_stream(int number) {
    const TileOperand& operand = step_.operands[number];
    const int sticks = step_.shapes[number].sticks;
    if (is_code_format(operand.format) && sticks == 1) {
      return stream(SpecialisedCode::Source::OPERAND, number, kStickBytes / 2);
    }
    if (!is_lane_format(operand.format)) throw Untranslatable{};
    return stream(SpecialisedCode::Source::OPERAND, number,
                  sticks == 1 ? kStickBytes : operand.sub_stride);
  }
  int stream(SpecialisedCode::Source source, int number, int64_t apart) {
    const SpecialisedCode::Stream wanted{source, number, apart};
    const auto at = std::find(to_.streams_.begin(), to_.streams_.end(), wanted);
    if (at != to_.streams_.end()) return static_cast<int>(at - to_.streams_.begin());
    if (to_.streams_.size() == kMaxStreams) throw Untranslatable{};
    to_.streams_.push_back(wanted);
    return code_.add_stream(apart, is_fixed(wanted));
  }
  bool is_fixed(const SpecialisedCode::Stream& stream) const {
    return stream.source == SpecialisedCode::Source::OPERAND && !moves(step_, stream.number);
  }

  const TileStep& step_;
  SpecialisedCode& to_;
  const TileForm form_;
  const bool scales_, powers_;
  VectorCode code_;
  std::array<Lanes, kTileRegisters> registers_;
  std::map<size_t, int> first_halves_;
  std::map<int, int> first_moments_;
  std::vector<std::function<void()>> late_;
  std::set<int> large_watched_, small_watched_;
  int most_ = -1, least_ = -1;  // of what is watched
  std::vector<int> small_;      // masks of results that are too small
  int half_ = 0;
};

namespace {

// Whether a result probably has the few bits of DLFloat16; that it does is seen when it is used.
bool is_coarse_result(const TileStep& step, int number) {
  const auto has_few_bits = [](uint32_t word) {
    return (word & ((1u << Dlfloat16::kShift) - 1)) == 0;
  };
  bool coarse = false;
  for (const TilePhase& phase : step.phases) {
    for (const TileReduction& reduction : phase.reductions) {
      if (reduction.destination == number) coarse = false;
    }
    for (const TileInstruction& in : phase.epilogue) {
      if (in.opcode == STORE || in.destination != number) continue;
      const bool limits =
          in.opcode == CLIP && in.a == number && has_few_bits(in.imm0) && has_few_bits(in.imm1);
      coarse =
          in.then_round || (in.opcode == ROUND && is_code_format(in.format)) || (limits && coarse);
    }
  }
  return coarse;
}

// Where a division is by one value for each row and its quotient is needed in DLFloat16 only, a
// product with a reciprocal gives the same code, if that is not too small and less than 2^-22 too
// large. Dividend and divisor have 10 significant bits, a limit between two codes has 11. So a
// quotient that is not on such a limit is further away from it than 2^-21, and one that is on it
// belongs to the code above, as everything does that is a little larger.
bool divides_by_reciprocal(const TileStep& step, const std::vector<TileInstruction>& instructions,
                           size_t at, const std::vector<int>& lasting,
                           const std::vector<TileReduction>& reductions) {
  const TileInstruction& division = instructions[at];
  if (division.opcode != DIV || division.b_is != SecondInput::RESULT || division.is_pair() ||
      !step.reduce_lanes || !step.compact || !is_coarse_result(step, division.b)) {
    return false;
  }
  if (division.then_round) return true;
  const int reg = division.destination;
  for (size_t i = at + 1; i < instructions.size(); i++) {
    const TileInstruction& in = instructions[i];
    if (in.opcode == STORE && in.a == reg) {
      if (!is_code_format(step.operands[in.destination].format)) return false;
    } else if (in.opcode != LOAD && (in.a == reg || in.b == reg || in.c == reg)) {
      return false;
    }
    if (in.opcode != STORE && in.destination == reg) return true;
  }
  return !contains(lasting, reg) &&
         std::none_of(reductions.begin(), reductions.end(),
                      [&](const TileReduction& r) { return r.source == reg; });
}

// Code stores later than the program says, at the end of 32 lanes: nothing may load from where
// something was stored before.
bool loads_what_it_stored(const TileStep& step, const std::vector<TileInstruction>& instructions) {
  std::vector<const OperandAddress*> stored;
  const auto was_stored = [&](int operand) {
    const OperandAddress& from = step.operands[operand].address;
    return std::any_of(stored.begin(), stored.end(), [&](const OperandAddress* to) {
      return to->space == from.space && to->argument == from.argument;
    });
  };
  for (const TileInstruction& in : instructions) {
    if (in.opcode == STORE) stored.push_back(&step.operands[in.destination].address);
    if (in.opcode == LOAD && was_stored(in.a)) return true;
    if (in.b_is != SecondInput::OPERAND && in.b_is != SecondInput::STILL_OPERAND) continue;
    if (was_stored(in.b) || (in.is_pair() && was_stored(in.c))) return true;
  }
  return false;
}

// All that the translation depends on.
std::vector<int64_t> key_of(const TileStep& step, const std::vector<TileInstruction>& instructions,
                            const std::vector<int>& lasting,
                            const std::vector<TileReduction>& reductions) {
  std::vector<int64_t> key{step.lanes,
                           step.reduce_lanes,
                           is_of_rows(step),
                           step.phases.size() > 1,
                           static_cast<int64_t>(lasting.size()),
                           static_cast<int64_t>(reductions.size())};
  key.insert(key.end(), lasting.begin(), lasting.end());
  for (const TileReduction& reduction : reductions) {
    key.insert(key.end(),
               {static_cast<int64_t>(reduction.op), reduction.few_bits, reduction.source});
  }
  const auto add_operand = [&](int number) {
    const TileOperand& operand = step.operands[number];
    key.insert(key.end(), {static_cast<int64_t>(operand.format), static_cast<int64_t>(operand.form),
                           operand.sub_stride, step.shapes[number].sticks, moves(step, number)});
  };
  for (const TileInstruction& in : instructions) {
    key.insert(key.end(), {in.opcode, in.destination, in.a, in.b, in.c, in.imm0, in.imm1,
                           static_cast<int64_t>(in.format), in.then_round,
                           static_cast<int64_t>(in.b_is), in.then_opcode});
    if (in.opcode == DIV && in.b_is == SecondInput::RESULT) {
      key.push_back(step.compact && is_coarse_result(step, in.b));
    }
    if (in.opcode == LOAD) add_operand(in.a);
    if (in.opcode == STORE) add_operand(in.destination);
    if (in.b_is == SecondInput::OPERAND || in.b_is == SecondInput::STILL_OPERAND) {
      add_operand(in.b);
      if (in.is_pair()) add_operand(in.c);
    }
  }
  return key;
}

}  // namespace

std::shared_ptr<const TileCode> SpecialisedCode::translate(
    const TileStep& step, const std::vector<TileInstruction>& instructions,
    std::vector<int> lasting, const std::vector<TileReduction>& reductions) {
  if (!has_vector_compiler() || instructions.empty() || loads_what_it_stored(step, instructions)) {
    return nullptr;
  }
  std::sort(lasting.begin(), lasting.end());
  lasting.erase(std::unique(lasting.begin(), lasting.end()), lasting.end());
  static std::mutex mutex;
  static std::map<std::vector<int64_t>, std::shared_ptr<const TileCode>> known;
  const std::lock_guard lock(mutex);
  const auto [at, is_new] = known.try_emplace(key_of(step, instructions, lasting, reductions));
  if (!is_new) return at->second;
  auto code = std::make_shared<SpecialisedCode>();
  code->instructions_ = instructions;
  code->lasting_ = std::move(lasting);
  code->reductions_ = reductions;
  for (const TileOperand& operand : step.operands) {
    code->codes_.push_back(is_code_format(operand.format));
  }
  code->loaded_.resize(step.operands.size());
  code->most_room_ = step.phases.size() > 1 ? 16 : 32;
  for (size_t i = 0; i < instructions.size(); i++) {
    code->divides_.push_back(
        divides_by_reciprocal(step, instructions, i, code->lasting_, reductions));
  }
  try {
    const VectorCode any = TileTranslator(step, *code, TileForm::ANY).run();
    for (size_t i = 0; i < step.operands.size(); i++) {
      const int number = static_cast<int>(i);
      if (!step.phases.empty() && code->loaded_[i] && code->codes_[i] && moves(step, number) &&
          step.operands[i].form == OperandForm::VECTOR) {
        code->guards_.push_back(number);
      }
    }
    if (code->guards_.size() > kMaxGuards) code->guards_.clear();
    code->depends_on_guards_ =
        code->lasting_.empty() &&
        std::all_of(code->streams_.begin(), code->streams_.end(), [&](const Stream& stream) {
          if (stream.source == Source::SPLAT_OPERAND) return true;
          return stream.source == Source::OPERAND &&
                 (!code->loaded_[stream.number] || contains(code->guards_, stream.number));
        });
    const auto shorter = [&](TileForm form, bool powers) {
      VectorCode plain = TileTranslator(step, *code, form, false, powers).run();
      VectorCode scaled = TileTranslator(step, *code, form, true, powers).run();
      return scaled.values().size() < plain.values().size() ? scaled : plain;
    };
    const auto quick = [&](bool powers) {
      Quick forms;
      forms.ordinary = compile_vectors(shorter(TileForm::ORDINARY, powers), step.lanes);
      if (!code->guards_.empty()) {
        forms.guarded = compile_vectors(shorter(TileForm::GUARDED, powers), step.lanes, &any);
      }
      return forms;
    };
    code->any_ = compile_vectors(any, step.lanes);
    if (code->any_ == nullptr) return nullptr;
    code->quick_ = quick(false);
    if (!code->factors_.empty()) {
      Quick powers = quick(true);
      if (powers.ordinary != nullptr && (powers.guarded != nullptr || code->guards_.empty())) {
        code->quick_powers_ = std::move(powers);
      }
    }
    try {
      const auto with_looks = [&](TileForm form) {
        return compile_vectors(TileTranslator(step, *code, form).run(), step.lanes, &any);
      };
      code->checked_ = with_looks(TileForm::CHECKED);
      code->not_large_ = with_looks(TileForm::NOT_LARGE);
    } catch (const Untranslatable&) {
      // Nothing to look at: the form for everything does without.
    }
  } catch (const Untranslatable&) {
    return nullptr;
  }
  at->second = std::move(code);
  return at->second;
}

}  // namespace spyre::card
