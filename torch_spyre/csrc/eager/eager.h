// Eager operations on the card: single-operation programs, found by what an operation is called
// with.
//
//   y = x + 1  ->  signature: aten::add.Tensor, float16 (64, 128) in this layout, a number
//              ->  program: one kernel over (x, number, made 0), result made 0
//              ->  launch
//
// The table of this process is here; what is not in it, Python looks up on disk or compiles
// (torch_spyre/ops/eager.py). What the card cannot do takes the boxed path (eager/fallback.h), and
// so does everything that is unusual: that path is right for all of PyTorch.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/boxing/OperatorKernel.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/Scalar.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "hooks/storage.h"
#include "launch/job_plan.h"

namespace spyre {

// A compiled operation on one card, for one signature.
struct EagerProgram {
  struct Made {  // a tensor that a call makes: results, intermediates, the pool
    card::Dims size, stride;
    c10::ScalarType dtype;
    TilingPtr tiling;
  };
  struct Input {
    std::optional<c10::ScalarType> number;  // a number, which is a 0-D tensor of this type
    std::optional<Made> relaid;             // the layout that the kernels expect, if it is another
    bool written = false;
  };
  enum class Source { INPUT, MADE, TABLE };
  struct Argument {
    Source source;
    size_t index;  // among those
  };
  struct Call {
    JobPlanPtr plan;
    std::vector<Argument> arguments;
    std::vector<at::Tensor> constants;
  };
  struct Result {
    size_t made;
    card::Dims size, stride;
    int64_t offset;
    bool is_view;  // of what was made
  };
  c10::DeviceIndex device = 0;
  std::vector<Input> inputs;
  std::vector<Made> made;
  std::vector<at::Tensor> tables;  // computed by the compiler: the mask of tril
  std::vector<Call> calls;
  std::vector<Result> results;  // none: the operation writes one of its arguments
};
using EagerProgramPtr = std::shared_ptr<const EagerProgram>;

// In place of an input: a tensor of a list that is no part of the program.
inline constexpr int64_t kLeftOut = -2;

// A call that the table does not know.
struct EagerQuestion {
  using Input = std::variant<at::Tensor, c10::Scalar>;
  const c10::OperatorHandle& op;
  const torch::jit::Stack& arguments;
  // By argument, tensors of lists one by one: its input; -1 for a value.
  const std::vector<int64_t>& input_of;
  const std::vector<Input>& inputs;  // tensors, and numbers that are not part of the signature
  const std::vector<int>& classes;   // of inputs that are integers (hooks/integers.h), else 0
  c10::DeviceIndex device;
};
struct EagerAnswer {
  EagerProgramPtr program;  // null: the host computes it
  std::string why_not;      // if it does
  bool remember = true;
};

// An operation that PyTorch's dispatcher does not bring here under its own name. Lives as long as
// the process.
class EagerDoor {
 public:
  explicit EagerDoor(const char* name);
  // Arguments on the stack. Whether the card did it: results are then in their place.
  bool try_run(torch::jit::Stack* stack) const;

 private:
  c10::OperatorHandle op_;
  c10::OperatorKernel* kernel_;
};

// Set by Python; without one everything takes the boxed path.
void set_eager_resolver(EagerAnswer (*resolver)(const EagerQuestion&));

// Which programs count: those of other settings of the compiler have another epoch. With a reader,
// each call asks for it.
void set_eager_epoch_reader(int64_t (*reader)());

// Whether operations that the card can do run there: as SPYRE_EAGER says, or as set.
bool get_eager_on_card();
void set_eager_on_card(bool on_card);

// How often each operation ran on the card since the last reset, by full name.
std::map<std::string, int64_t> eager_counts();
void reset_eager_counts();

void clear_eager_programs();
// A 0-D tensor with a number, on the card. Kept for the next time.
at::Tensor number_on_card(const c10::Scalar& value, c10::ScalarType dtype, c10::DeviceIndex device);

}  // namespace spyre
