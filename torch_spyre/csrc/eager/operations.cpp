#include "eager/operations.h"

#include <algorithm>
#include <unordered_map>

namespace spyre {
namespace {

// What may be among the arguments, besides floating point.
enum Rule : int {
  PLAIN = 0,
  // Numbers beside tensors are operands of the program like any other, so that x * 2 and x * 3 are
  // one program. In other operations numbers decide what the program is.
  NUMBERS = 1,
  TRUTH_VALUES = 2,  // truth values alone
  INTEGERS = 4,      // moved, compared, or row numbers: any that the card can hold
  COMPARES = 8,
  OWN_DOOR = 16,  // a file beside this one calls it, not PyTorch's dispatcher
  MOVES = TRUTH_VALUES | INTEGERS,
  // Integers of which something is computed: a program for each class of their sizes
  // (hooks/integers.h), so that the compiler can prove that 32 bits are enough.
  COUNTS = INTEGERS | 32,
  FLOAT8 = 64,          // which the card casts and does not compute with
  STORES_NUMBER = 128,  // as it is: PyTorch refuses one that the tensor's type does not hold
};

const std::unordered_map<std::string, int>& rules() {
  static const std::unordered_map<std::string, int> by_name = {
      // REFERENCE 9.5: what eager PyTorch does on the card, in all forms that reach a device.
      {"mm", PLAIN},
      {"silu", PLAIN},
      {"mish", PLAIN},
      {"abs", COUNTS},
      {"add", NUMBERS | COUNTS},
      {"bitwise_not", TRUTH_VALUES | COUNTS},
      {"logical_not", MOVES},
      {"bmm", PLAIN},
      {"cat", MOVES},
      {"div", NUMBERS | COUNTS},
      {"exp", PLAIN},
      {"floor", PLAIN},
      {"log", PLAIN},
      {"mean", PLAIN},
      {"mul", NUMBERS | COUNTS | TRUTH_VALUES},
      {"reciprocal", PLAIN},
      {"neg", COUNTS},
      {"relu", PLAIN},
      {"rsqrt", PLAIN},
      {"sigmoid", PLAIN},
      {"_softmax", PLAIN},
      {"stack", MOVES},
      {"sum", COUNTS},
      {"sqrt", PLAIN},
      {"tanh", PLAIN},
      {"sub", NUMBERS | COUNTS},
      {"addmm", PLAIN},
      {"eq", NUMBERS | MOVES | COMPARES},
      {"le", NUMBERS | INTEGERS | COMPARES},
      {"ne", NUMBERS | MOVES | COMPARES},
      {"ge", NUMBERS | INTEGERS | COMPARES},
      {"gt", NUMBERS | INTEGERS | COMPARES},
      {"lt", NUMBERS | INTEGERS | COMPARES},
      {"maximum", COUNTS},
      {"minimum", COUNTS},
      {"pow", PLAIN},
      {"linalg_vector_norm", PLAIN},
      {"where", MOVES},
      {"clamp", COUNTS},
      {"constant_pad_nd", MOVES | STORES_NUMBER},
      // Beyond: what models are made of.
      {"index_select", MOVES},
      {"index", MOVES},
      {"index_copy", MOVES},
      {"_index_put_impl", MOVES},
      {"gather", MOVES},
      {"copy", MOVES | FLOAT8 | OWN_DOOR},  // to another type: eager/cast.cpp
      {"gelu", PLAIN},
      {"native_layer_norm", PLAIN},
      {"softplus", PLAIN},
      {"amax", COUNTS},
      {"amin", COUNTS},
      {"max", COUNTS},
      {"min", COUNTS},
      {"argmax", COUNTS},
      {"argmin", COUNTS},
      {"any", MOVES},
      {"all", MOVES},
      {"isin", INTEGERS},
      {"cumsum", COUNTS},
      {"tril", MOVES},
      {"triu", MOVES},
      {"masked_fill", MOVES | STORES_NUMBER},
      {"sign", COUNTS},
      {"ceil", PLAIN},
      {"trunc", PLAIN},
      {"round", PLAIN},
      {"sin", PLAIN},
      {"cos", PLAIN},
      {"erf", PLAIN},
      {"log1p", PLAIN},
      {"expm1", PLAIN},
      {"isneginf", PLAIN},
      {"bitwise_and", TRUTH_VALUES | COUNTS},
      {"bitwise_or", TRUTH_VALUES | COUNTS},
      {"bitwise_xor", TRUTH_VALUES | COUNTS},
      {"logical_and", TRUTH_VALUES},
      {"logical_or", TRUTH_VALUES},
      {"logical_xor", TRUTH_VALUES},
      {"addcmul", PLAIN},
      {"addcdiv", PLAIN},
      {"lerp", PLAIN},
      {"baddbmm", PLAIN},
      {"_log_softmax", PLAIN},
      {"_safe_softmax", PLAIN},
      {"scaled_dot_product_attention", TRUTH_VALUES | OWN_DOOR},  // eager/attention.cpp
      {"leaky_relu", PLAIN},
      {"elu", PLAIN},
      {"hardswish", PLAIN},
      {"var", PLAIN},
      {"std", PLAIN},
      {"topk", COUNTS},
  };
  return by_name;
}

std::string base_name(const std::string& full_name) {
  std::string name = full_name.substr(sizeof("aten::") - 1);
  if (name.size() > 1 && name.back() == '_') name.pop_back();
  return name;
}

int rule_of(const c10::FunctionSchema& schema) { return rules().at(base_name(schema.name())); }

size_t count_written(const c10::FunctionSchema& schema) {
  return std::count_if(schema.arguments().begin(), schema.arguments().end(), [](const auto& a) {
    return a.alias_info() != nullptr && a.alias_info()->isWrite();
  });
}

}  // namespace

bool may_be_eager(const std::string& full_name) {
  return full_name.rfind("aten::", 0) == 0 && rules().count(base_name(full_name)) > 0;
}

// Forms that take a dtype have no kernel anywhere else either; composite ones are other operations
// by the time they get here. Of forms with several results none writes to its arguments.
bool is_eager_operation(const c10::OperatorHandle& op) {
  const auto& schema = op.schema();
  if (!may_be_eager(schema.name()) || rule_of(schema) & OWN_DOOR) return false;
  if (schema.overload_name().find("dtype") != std::string::npos) return false;
  if (schema.returns().size() > 1 && count_written(schema) > 0) return false;
  if (op.hasKernelForDispatchKey(c10::DispatchKey::CPU)) return true;
  // Without a CPU kernel of their own: of those, the plain forms. The others end in these.
  return op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd) &&
         schema.overload_name().empty();
}

EagerFacts::EagerFacts(const c10::FunctionSchema& schema)
    : name(schema.overload_name().empty() ? schema.name()
                                          : schema.name() + "." + schema.overload_name()),
      truth_values(rule_of(schema) & TRUTH_VALUES),
      integers(rule_of(schema) & INTEGERS),
      float8(rule_of(schema) & FLOAT8),
      stores_number(rule_of(schema) & STORES_NUMBER),
      computes_integers((rule_of(schema) & COUNTS) == COUNTS),
      is_comparison(rule_of(schema) & COMPARES) {
  const bool numbers = rule_of(schema) & NUMBERS;
  for (size_t i = 0; i < schema.arguments().size(); i++) {
    const auto& argument = schema.arguments()[i];
    const bool is_written = argument.alias_info() != nullptr && argument.alias_info()->isWrite();
    if (is_written) result = i;
    if (argument.name() == "alpha") alpha = i;
    if (argument.name() == "rounding_mode") is_rounded = true;
    written.push_back(is_written);
    number.push_back(numbers && i < 2);
  }
  if (is_rounded) std::fill(number.begin(), number.end(), false);
  is_product = base_name(schema.name()) == "mul";
  joins = base_name(schema.name()) == "cat";
  is_quotient = base_name(schema.name()) == "div" && !is_rounded;
}

}  // namespace spyre
