// The signature of a call: all that its program depends on, in words.
//
//   x + 1, x float16 (64, 128)  ->  words: the form and layout of x, "a number"; inputs: x, 1
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/core/Scalar.h>
#include <c10/util/SmallVector.h>

#include <optional>
#include <vector>

#include "card/memory/layout.h"
#include "eager/eager.h"
#include "eager/operations.h"

namespace spyre {

struct Key {
  std::vector<int64_t> words;
  uint64_t hash = 0;
  bool operator==(const Key& other) const { return words == other.words; }
};
struct KeyHash {
  size_t operator()(const Key& key) const { return key.hash; }
};

// The refusal of a call that writes every second column: on a dense copy it is none.
inline constexpr const char* kWritesGaps = "what it writes is not dense in memory";

uint64_t hash_of(const int64_t* words, size_t count);

// Reads a call: its words, and what a program is run with. Where there is something that programs
// do not have, the boxed path does it, or says what is wrong with it.
class EagerCall {
 public:
  EagerCall(const EagerFacts& facts, c10::ArrayRef<c10::IValue> arguments);

  const char* refusal = nullptr;  // what programs do not have; null: nothing
  c10::SmallVector<int64_t, 160> words;
  std::vector<EagerQuestion::Input> inputs;
  std::vector<int> classes;  // of the integers among them (hooks/integers.h), else 0
  std::vector<int64_t> input_of;
  std::optional<c10::DeviceIndex> device;

 private:
  void refuse(const char* why) { refusal = refusal == nullptr ? why : refusal; }
  const char* unsuitable(const at::Tensor& t) const;
  void push(std::initializer_list<int64_t> more) { words.append(more.begin(), more.end()); }
  void push_list(c10::ArrayRef<int64_t> list);
  void read(const c10::IValue& value, size_t i);
  void read_value(const c10::IValue& value, size_t i);
  void read_number(const c10::Scalar& value, size_t i);
  bool is_operand(const c10::Scalar& value, size_t i) const;
  void add_input(EagerQuestion::Input input, int integer_class);
  void read_tensor(const at::Tensor& t, size_t i);
  void push_tensor(const at::Tensor& t, const card::Placement& placement);
  bool see_type(c10::ScalarType type);
  void round_numbers();
  bool may_run() const;

  const EagerFacts& facts_;
  bool numbers_ = false;
  bool any_float_ = false, any_bool_ = false, any_integer_ = false, any_number_ = false;
  bool leaves_out_ = false;  // tensors without elements
  bool written_ = false, aliases_ = false;
  std::optional<c10::ScalarType> type_;  // of the last tensor
};

}  // namespace spyre
