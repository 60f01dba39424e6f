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

namespace c10 {
class OperatorHandle;
}

namespace spyre {

// Whether an operation has a kernel here.
bool is_eager_operation(const c10::OperatorHandle& op);

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
  struct Argument {
    bool made;  // of the tensors that are made, else of the inputs
    size_t index;
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
  std::vector<Call> calls;
  std::optional<Result> result;  // none: the operation writes one of its arguments
};
using EagerProgramPtr = std::shared_ptr<const EagerProgram>;

// A call that the table does not know.
struct EagerQuestion {
  using Input = std::variant<at::Tensor, c10::Scalar>;
  const c10::OperatorHandle& op;
  const torch::jit::Stack& arguments;
  const std::vector<int64_t>& input_of;  // by argument, tensors of lists one by one; -1: a value
  const std::vector<Input>& inputs;      // tensors, and numbers that are not part of the signature
  c10::DeviceIndex device;
};
struct EagerAnswer {
  EagerProgramPtr program;  // null: the host computes it
  bool remember = true;
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
