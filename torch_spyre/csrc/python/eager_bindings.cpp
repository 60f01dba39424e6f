// The questions that the table of eager programs asks Python, and the programs it is given.
#include "python/eager_bindings.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <pybind11/stl.h>
#include <torch/csrc/DynamicTypes.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/jit/python/pybind_utils.h>

#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "eager/eager.h"
#include "python/bindings.h"

namespace spyre {
namespace {

namespace py = pybind11;

// ---- Questions ---------------------------------------------------------------------------------

py::object to_python(const c10::Scalar& value) {
  if (value.isFloatingPoint()) return py::float_(value.toDouble());
  if (value.isBoolean()) return py::bool_(value.toBool());
  return py::int_(value.toLong());
}

bool is_dtype(const c10::Argument& argument) {
  return argument.real_type()->isSubtypeOf(*c10::OptionalType::create(c10::ScalarTypeType::get()));
}

// An input is a tuple with its number, everything else what it is.
py::object to_python(const c10::IValue& value, const c10::Argument& argument,
                     const std::vector<int64_t>& input_of, size_t& position) {
  if (value.isTensorList() || value.isOptionalTensorList()) {
    py::list list;
    for (size_t n = value.toListRef().size(); n > 0; n--) {
      const int64_t input = input_of[position++];
      if (input == kLeftOut) continue;
      if (input >= 0) {
        list.append(py::make_tuple(input));
      } else {
        list.append(py::none());
      }
    }
    return list;
  }
  const int64_t input = input_of[position++];
  if (input >= 0) return py::make_tuple(input);
  if (value.isTensor()) {  // a number, or nothing
    return value.toTensor().defined() ? to_python(value.toTensor().item()) : py::none();
  }
  if (value.isInt() && is_dtype(argument)) {
    const auto type = static_cast<c10::ScalarType>(value.toInt());
    return py::reinterpret_borrow<py::object>(
        reinterpret_cast<PyObject*>(torch::getTHPDtype(type)));
  }
  return torch::jit::toPyObject(value);
}

EagerAnswer ask_python(const EagerQuestion& question) {
  const auto& schema = question.op.schema();
  py::gil_scoped_acquire gil;
  try {
    py::list arguments, inputs;
    size_t position = 0;
    const size_t first = question.arguments.size() - schema.arguments().size();
    for (size_t i = 0; i < schema.arguments().size(); i++) {
      arguments.append(to_python(question.arguments[first + i], schema.arguments()[i],
                                 question.input_of, position));
    }
    for (const auto& input : question.inputs) {
      if (const auto* tensor = std::get_if<at::Tensor>(&input)) {
        inputs.append(py::cast(*tensor));
      } else {
        inputs.append(to_python(std::get<c10::Scalar>(input)));
      }
    }
    const py::tuple answer =
        py::module_::import("torch_spyre.ops.eager")
            .attr("resolve")(schema.name(), schema.overload_name(), arguments, inputs,
                             question.classes, static_cast<int>(question.device));
    return {answer[0].cast<std::shared_ptr<EagerProgram>>(), answer[1].cast<std::string>(),
            answer[2].cast<bool>()};
  } catch (py::error_already_set& error) {  // an interruption, or no memory
    error.restore();
    python_error kept;
    kept.persist();
    throw kept;
  }
}

// A ContextVar, as settings are: each thread has its own. Never released.
PyObject* known_epoch = nullptr;

int64_t read_epoch() {
  py::gil_scoped_acquire gil;
  PyObject* known = nullptr;
  if (PyContextVar_Get(known_epoch, nullptr, &known) < 0) throw py::error_already_set();
  const auto epoch = py::reinterpret_steal<py::object>(known);
  if (!epoch.is_none()) return epoch.cast<int64_t>();
  return py::module_::import("torch_spyre.ops.eager").attr("find_epoch")().cast<int64_t>();
}

void ask_for_epoch(const py::object& known) {
  if (known_epoch == nullptr) known_epoch = py::object(known).release().ptr();
  set_eager_epoch_reader(&read_epoch);
}

// ---- Programs ----------------------------------------------------------------------------------

using Form = std::tuple<card::Dims, card::Dims, py::object, std::optional<card::StickLayout>>;

EagerProgram::Made to_made(const Form& form) {
  const auto& [size, stride, dtype, layout] = form;
  const auto type = to_scalar_type(dtype);
  return {
      size, stride, type,
      layout ? explicit_tiling(size, stride, type, *layout) : default_tiling(size, stride, type)};
}

c10::Scalar to_scalar(const py::object& value) {
  if (py::isinstance<py::bool_>(value)) return value.cast<bool>();
  if (py::isinstance<py::int_>(value)) return value.cast<int64_t>();
  return value.cast<double>();
}

std::shared_ptr<EagerProgram> make_program(
    int device, const std::vector<std::tuple<py::object, std::optional<Form>, bool>>& inputs,
    const std::vector<Form>& made, const std::vector<at::Tensor>& tables,
    const std::vector<std::tuple<JobPlanPtr, std::vector<std::pair<std::string, size_t>>,
                                 std::vector<std::pair<py::object, py::object>>>>& calls,
    const std::vector<std::tuple<size_t, card::Dims, card::Dims, int64_t>>& results) {
  auto program = std::make_shared<EagerProgram>();
  program->device = static_cast<c10::DeviceIndex>(device);
  for (const auto& [number, relaid, written] : inputs) {
    EagerProgram::Input input;
    if (!number.is_none()) input.number = to_scalar_type(number);
    if (relaid) input.relaid = to_made(*relaid);
    input.written = written;
    program->inputs.push_back(std::move(input));
  }
  for (const auto& form : made) program->made.push_back(to_made(form));
  program->tables = tables;
  for (const auto& [plan, arguments, constants] : calls) {
    EagerProgram::Call call{plan, {}, {}};
    for (const auto& [source, index] : arguments) {
      const auto from = source == "made"    ? EagerProgram::Source::MADE
                        : source == "table" ? EagerProgram::Source::TABLE
                                            : EagerProgram::Source::INPUT;
      const size_t count = source == "made"    ? made.size()
                           : source == "table" ? tables.size()
                                               : inputs.size();
      TORCH_CHECK_INDEX(index < count, "an argument of the program does not exist: ", source, " ",
                        index);
      call.arguments.push_back({from, index});
    }
    for (const auto& [value, dtype] : constants) {
      call.constants.push_back(
          number_on_card(to_scalar(value), to_scalar_type(dtype), program->device));
    }
    program->calls.push_back(std::move(call));
  }
  for (const auto& [index, size, stride, offset] : results) {
    TORCH_CHECK_INDEX(index < made.size(), "the result of the program does not exist: ", index);
    const auto& whole = program->made[index];
    const bool is_view = whole.size != size || whole.stride != stride || offset != 0;
    program->results.push_back({index, size, stride, offset, is_view});
  }
  return program;
}

}  // namespace

void bind_eager(py::module& m) {
  py::class_<EagerProgram, std::shared_ptr<EagerProgram>>(m, "_EagerProgram")
      .def(py::init(&make_program), py::arg("device"), py::arg("inputs"), py::arg("made"),
           py::arg("tables"), py::arg("calls"), py::arg("results"));
  m.def("_eager_on_card", &get_eager_on_card);
  m.def("_set_eager_on_card", &set_eager_on_card, py::arg("on_card"));
  m.def("_eager_counts", &eager_counts);
  m.def("_reset_eager_counts", &reset_eager_counts);
  m.def("_clear_eager_programs", [] {
    NoGil no_gil;
    clear_eager_programs();
  });
  m.def("_ask_for_eager_epoch", &ask_for_epoch, py::arg("known"));
  set_eager_resolver(&ask_python);
}

}  // namespace spyre
