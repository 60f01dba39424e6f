#include "eager/signature.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <variant>

#include "hooks/integers.h"
#include "hooks/storage.h"

namespace spyre {
namespace {

using c10::IValue;

// Tags that begin the words of an argument, so that no two signatures read the same.
enum Tag : int64_t {
  NOTHING = -1,
  TENSOR = -2,
  AGAIN = -3,  // a tensor that came before
  NUMBER = -4,
  INT = -5,
  DOUBLE = -6,
  BOOL = -7,
  STRING = -8,
  INTS = -9,
  TENSORS = -10,
  DEVICE = -11,
};

bool is_number(const at::Tensor& t) {
  return t.is_cpu() && t.dim() == 0 && t.unsafeGetTensorImpl()->is_wrapped_number();
}

c10::Scalar number_in(const at::Tensor& t) {
  switch (t.scalar_type()) {
    case at::kDouble:
      return *t.const_data_ptr<double>();
    case at::kLong:
      return *t.const_data_ptr<int64_t>();
    case at::kBool:
      return *t.const_data_ptr<bool>();
    default:
      return t.item();
  }
}

// Whether DLFloat16 holds a number to rounding; infinities and NaN it does hold.
bool fits_the_format(double value) {
  constexpr double kLeast = 0x1p-30, kMost = 0x1.fe8p32;
  const double size = std::abs(value);
  return !(size > 0 && size < kLeast) && (size <= kMost || std::isinf(size) || std::isnan(size));
}

bool holds(c10::ScalarType type, const c10::Scalar& value) {
  if (type == at::kHalf) return !c10::overflows<at::Half, double>(value.toDouble());
  if (type == at::kInt) return !c10::overflows<int32_t, int64_t>(value.toLong());
  return true;
}

bool is_integer(c10::ScalarType type) { return type == at::kLong || type == at::kInt; }

int class_of_number(int64_t value) {
  const int64_t small = int64_t{1} << SMALL, fitting = int64_t{1} << (FITTING - 1);
  if (-small < value && value < small) return SMALL;
  return -fitting <= value && value < fitting ? FITTING : CARRIED;
}

// Whether tensors without elements can be left out of those that are joined: a cache begins as a
// tensor of no rows. Not where there is anything to be said about them.
bool may_leave_out(const std::vector<at::Tensor>& tensors, int64_t dim) {
  const auto one = std::find_if(tensors.begin(), tensors.end(),
                                [](const at::Tensor& t) { return t.numel() > 0; });
  if (one == tensors.end()) return false;
  if (dim < 0) dim += one->dim();
  return std::all_of(tensors.begin(), tensors.end(), [&](const at::Tensor& t) {
    if (t.numel() > 0) return true;
    if (t.device() != one->device() || t.scalar_type() != one->scalar_type()) return false;
    if (t.dim() == 1 && t.size(0) == 0) return true;  // goes with all, as ever
    if (t.dim() != one->dim()) return false;
    for (int64_t d = 0; d < t.dim(); d++) {
      if (d != dim && t.size(d) != one->size(d)) return false;
    }
    return true;
  });
}

bool is_one(const IValue& value) {
  return (value.isInt() && value.toInt() == 1) || (value.isDouble() && value.toDouble() == 1);
}

}  // namespace

uint64_t hash_of(const int64_t* words, size_t count) {
  uint64_t hash = 0x9e3779b97f4a7c15ull ^ count;
  for (size_t i = 0; i < count; i++) {
    hash = (hash ^ static_cast<uint64_t>(words[i])) * 0xff51afd7ed558ccdull;
    hash ^= hash >> 32;
  }
  return hash;
}

EagerCall::EagerCall(const EagerFacts& facts, c10::ArrayRef<IValue> arguments) : facts_(facts) {
  numbers_ = !facts.alpha || is_one(arguments[*facts.alpha]);
  for (const IValue& value : arguments) {
    if (value.isTensor()) {
      const at::Tensor& t = value.toTensor();
      any_integer_ |= t.defined() && !is_number(t) && is_integer(t.scalar_type());
    }
  }
  if (facts.joins) {
    leaves_out_ = may_leave_out(arguments[0].toTensorVector(), arguments[1].toInt());
  }
  for (size_t i = 0; refusal == nullptr && i < arguments.size(); i++) read(arguments[i], i);
  if (facts_.is_comparison) round_numbers();
  if (!device) refuse("none of its operands is on the card");
  if (!may_run()) refuse("the card has no exact form of it for these types");
}

void EagerCall::push_list(c10::ArrayRef<int64_t> list) {
  words.push_back(static_cast<int64_t>(list.size()));
  words.append(list.begin(), list.end());
}

void EagerCall::read(const IValue& value, size_t i) {
  if (value.isTensor()) {
    read_tensor(value.toTensor(), i);
  } else if (value.isTensorList()) {
    const auto& list = value.toTensorVector();
    push({TENSORS, static_cast<int64_t>(list.size())});
    for (const at::Tensor& t : list) {
      if (leaves_out_ && t.numel() == 0) {
        push({NOTHING});
        input_of.push_back(kLeftOut);
      } else if (refusal == nullptr) {
        read_tensor(t, i);
      }
    }
  } else if (value.isOptionalTensorList()) {
    const auto list = value.toOptionalTensorVector();
    push({TENSORS, static_cast<int64_t>(list.size())});
    for (const std::optional<at::Tensor>& t : list) {
      // A mask selects as many elements as it has true ones: no program of a known size.
      if (t && t->defined() && (t->scalar_type() == at::kBool || t->scalar_type() == at::kByte)) {
        refuse("the size of the result depends on the values of a mask");
      }
      if (refusal == nullptr) read_tensor(t.value_or(at::Tensor()), i);
    }
  } else {
    read_value(value, i);
  }
}

void EagerCall::read_value(const IValue& value, size_t i) {
  if (facts_.number[i] && (value.isInt() || value.isDouble() || value.isBool())) {
    return read_number(value.toScalar(), i);
  }
  const at::Tensor* first = inputs.empty() ? nullptr : std::get_if<at::Tensor>(inputs.data());
  if (facts_.stores_number && value.isScalar() && first != nullptr &&
      !holds(first->scalar_type(), value.toScalar())) {
    return refuse("a number that the tensor's type does not hold is an error of the host's");
  }
  input_of.push_back(-1);
  if (value.isNone()) {
    push({NOTHING});
  } else if (value.isInt()) {
    push({INT, value.toInt()});
  } else if (value.isDouble()) {
    push({DOUBLE, std::bit_cast<int64_t>(value.toDouble())});
  } else if (value.isBool()) {
    push({BOOL, value.toBool()});
  } else if (value.isIntList()) {
    push({INTS});
    push_list(value.toIntVector());
  } else if (value.isDevice()) {
    if (value.toDevice().type() != kSpyre) refuse("its result is not on the card");
    push({DEVICE, value.toDevice().index()});
  } else if (value.isString()) {
    const auto& text = value.toStringRef();
    push({STRING, static_cast<int64_t>(text.size())});
    for (char c : text) words.push_back(c);
  } else {
    refuse("an argument of this kind is not part of a program");
  }
}

void EagerCall::read_number(const c10::Scalar& value, size_t i) {
  if (value.isComplex()) return refuse("the card has no complex numbers");
  any_number_ = true;
  if (is_operand(value, i)) {
    // As the compiler has it: x / 3 is a product.
    const bool is_divisor = facts_.is_quotient && i == 1;
    const int size = any_integer_ ? class_of_number(value.toLong()) : 0;
    push({NUMBER, size});  // of whatever type: beside floating point it makes no difference
    return add_input(is_divisor ? c10::Scalar(1.0 / value.toDouble()) : value, size);
  }
  input_of.push_back(-1);
  const int64_t type = value.isFloatingPoint() ? DOUBLE : value.isBoolean() ? BOOL : INT;
  const double number = value.isFloatingPoint() ? value.toDouble() : 0;
  push({type, value.isFloatingPoint() ? std::bit_cast<int64_t>(number) : value.toLong()});
}

// The compiler knows what x + 0 and x * 1 are: no program of two operands. And it takes numbers
// apart that the card's format does not hold.
bool EagerCall::is_operand(const c10::Scalar& value, size_t i) const {
  if (!numbers_ || !facts_.number[i] || value.equal(0) || value.equal(1)) return false;
  if (any_integer_) {
    return !facts_.is_quotient && !facts_.is_product && value.isIntegral(/*includeBool=*/false) &&
           class_of_number(value.toLong()) <= FITTING;
  }
  return fits_the_format(facts_.is_quotient && i == 1 ? 1.0 / value.toDouble() : value.toDouble());
}

void EagerCall::add_input(EagerQuestion::Input input, int integer_class) {
  input_of.push_back(static_cast<int64_t>(inputs.size()));
  inputs.push_back(std::move(input));
  classes.push_back(integer_class);
}

// x == 0.1 asks for the float16 that is nearest to 0.1; in arithmetic 0.1 is a float32.
void EagerCall::round_numbers() {
  for (auto& input : inputs) {
    auto* number = std::get_if<c10::Scalar>(&input);
    if (number == nullptr || !type_) continue;
    const double value = number->toDouble();
    if (*type_ == at::kHalf) *number = static_cast<double>(at::Half(static_cast<float>(value)));
    if (*type_ == at::kBFloat16) {
      *number = static_cast<double>(at::BFloat16(static_cast<float>(value)));
    }
  }
}

const char* EagerCall::unsuitable(const at::Tensor& t) const {
  if (t.device().type() != kSpyre) return "an operand is on the host";
  if (device && *device != t.device().index()) return "its operands are on two cards";
  if (t.numel() == 0) return "an operand has no elements";
  const bool is_plain = t.layout() == c10::kStrided && t.has_storage() && !t.is_conj() &&
                        !t.is_neg() && !t._is_zerotensor() &&
                        !t.unsafeGetTensorImpl()->is_wrapped_number();
  return is_plain ? nullptr : "an operand is no plain tensor";
}

void EagerCall::read_tensor(const at::Tensor& t, size_t i) {
  if (!t.defined()) {
    input_of.push_back(-1);
    return push({NOTHING});
  }
  if (is_number(t)) return read_number(number_in(t), i);
  if (const char* why = unsuitable(t)) return refuse(why);
  device = t.device().index();
  type_ = t.scalar_type();
  // Neither fake tensors nor plain storages over device addresses have one.
  const auto* storage = dynamic_cast<const SpyreStorageImpl*>(t.storage().unsafeGetStorageImpl());
  if (storage == nullptr || storage->tiling == nullptr ||
      storage->tiling->dtype != t.scalar_type()) {
    return refuse("an operand has no device layout");
  }
  if (!see_type(t.scalar_type())) return refuse("the card computes it in floating point");
  if (facts_.written[i] && !t.is_non_overlapping_and_dense()) {
    return refuse(kWritesGaps);
  }
  for (size_t j = 0; j < inputs.size(); j++) {
    const auto* other = std::get_if<at::Tensor>(&inputs[j]);
    if (other == nullptr || !other->is_alias_of(t)) continue;
    if (same_view(*other, t)) {
      written_ |= facts_.written[i];
      input_of.push_back(static_cast<int64_t>(j));
      return push({AGAIN, static_cast<int64_t>(j)});
    }
    aliases_ = true;
  }
  written_ |= facts_.written[i];
  if (aliases_ && (written_ || facts_.result)) {
    return refuse("it writes a tensor of which another operand is a different view");
  }
  push_tensor(t, storage->tiling->placement);
  int size = 0;
  if (t.scalar_type() == at::kLong) {
    size = facts_.computes_integers ? integer_class(t) : FITTING;
    push({size});
  }
  add_input(t, size);
}

void EagerCall::push_tensor(const at::Tensor& t, const card::Placement& placement) {
  push({TENSOR, static_cast<int64_t>(t.scalar_type()), t.storage_offset()});
  push_list(t.sizes());
  push_list(t.strides());
  push_list(placement.layout.device_size);
  push_list(placement.layout.stride_map);
  push({static_cast<int64_t>(placement.layout.format),
        static_cast<int64_t>(placement.layout.arrangement)});
  push_list(placement.sizes);
  push_list(placement.strides);
}

// The card computes in floating point, and integers of PyTorch have 64 bits: sums of them stay
// exact on the host.
bool EagerCall::see_type(c10::ScalarType type) {
  const bool is_float = type == at::kHalf || type == at::kFloat || type == at::kBFloat16;
  any_float_ |= is_float;
  any_bool_ |= type == at::kBool;
  any_integer_ |= is_integer(type);
  return is_float || type == at::kBool || (facts_.integers && is_integer(type)) ||
         (facts_.float8 && type == at::kFloat8_e4m3fn);
}

bool EagerCall::may_run() const {
  return any_float_ || any_integer_ || (any_bool_ && facts_.truth_values && !any_number_);
}

}  // namespace spyre
