// Which operations have programs of their own, and what may be among their arguments.
//
// In: the schema of an operation. Out: facts about it, which do not depend on a call.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <optional>
#include <string>
#include <vector>

namespace spyre {

// Whether an operation has a kernel here.
bool is_eager_operation(const c10::OperatorHandle& op);
// The name alone says that it has none.
bool may_be_eager(const std::string& full_name);

// What is worth knowing about an operation, found once.
struct EagerFacts {
  explicit EagerFacts(const c10::FunctionSchema& schema);

  std::string name;
  bool truth_values;             // exact on truth values alone: nothing is added up
  bool integers;                 // may be among the arguments
  bool float8;                   // may be among the arguments
  bool stores_number;            // which the tensor's type has to hold
  bool computes_integers;        // ... and whether the card does it depends on how large they are
  bool is_comparison;            // with a number as the type of the tensor holds it
  bool is_product = false;       // of integers, 32 bits are enough for a number that is known
  bool joins = false;            // tensors of a list: those without elements add nothing
  bool is_rounded = false;       // a quotient that is rounded to an integer
  bool is_quotient = false;      // a number that divides is an operand as its inverse
  std::vector<bool> written;     // by argument
  std::vector<bool> number;      // by argument: a number there is an operand
  std::optional<size_t> result;  // the argument that the operation writes and returns
  std::optional<size_t> alpha;
};

}  // namespace spyre
