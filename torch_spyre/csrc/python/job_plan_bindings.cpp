#include "python/job_plan_bindings.h"

#include <pybind11/stl/filesystem.h>
#include <torch/csrc/Stream.h>
#include <torch/csrc/autograd/python_variable.h>

#include "card/program/program.h"
#include "card/program/step_profile.h"
#include "hooks/integers.h"
#include "launch/job_plan.h"

namespace spyre {
namespace {

namespace py = pybind11;

std::string type_name(const py::handle& object) { return py::str(py::type::handle_of(object)); }

// None, a torch.Stream (torch.spyre.Stream is one) or a _SpyreStreamBase.
std::optional<c10::Stream> to_stream(const py::object& stream) {
  if (stream.is_none()) return std::nullopt;
  if (THPStream_Check(stream.ptr())) {
    const auto* known = reinterpret_cast<THPStream*>(stream.ptr());
    return c10::Stream::unpack3(known->stream_id,
                                static_cast<c10::DeviceIndex>(known->device_index),
                                static_cast<c10::DeviceType>(known->device_type));
  }
  const auto base = py::module_::import("torch_spyre._C").attr("_SpyreStreamBase");
  TORCH_CHECK_TYPE(py::isinstance(stream, base),
                   "stream must be None or a stream of a spyre device, found ", type_name(stream));
  return c10::Stream(c10::Stream::UNSAFE, stream.attr("device")().cast<c10::Device>(),
                     stream.attr("id")().cast<c10::StreamId>());
}

std::vector<at::Tensor> to_tensors(const py::sequence& args) {
  std::vector<at::Tensor> tensors;
  for (size_t i = 0; i < args.size(); i++) {
    const py::object arg = args[i];
    TORCH_CHECK_TYPE(THPVariable_Check(arg.ptr()), "args[", i, "] must be a spyre tensor, found ",
                     type_name(arg));
    tensors.push_back(THPVariable_Unpack(arg.ptr()));
  }
  return tensors;
}

std::string step_type(const JobPlan& plan, int64_t index) {
  const auto count = static_cast<int64_t>(plan.steps.size());
  TORCH_CHECK_INDEX(index >= 0 && index < count, "Step index out of range: ", index,
                    "; the plan has ", count, " steps");
  return name(plan.steps[index].type);
}

py::bytes pinned_bytes(const JobPlan& plan, const std::string& handle) {
  const auto* buffer = plan.find_buffer(handle);
  if (buffer == nullptr) throw py::key_error("the plan has no pinned buffer '" + handle + "'");
  return {reinterpret_cast<const char*>(buffer->bytes()), buffer->size};
}

}  // namespace

void bind_job_plans(py::module& m) {
  py::class_<JobPlan, JobPlanPtr>(m, "JobPlan", "A prepared kernel: program memory and steps.")
      .def("num_steps", [](const JobPlan& plan) { return plan.steps.size(); })
      .def("job_allocation_size", [](const JobPlan& plan) { return plan.allocation_size; })
      .def("get_step_type", &step_type, py::arg("idx"), "'H2D', 'D2H', 'Compute' or 'HostCompute'.")
      .def("_pinned", &pinned_bytes, py::arg("handle"),
           "What a pinned buffer holds now; synchronize first.")
      .def("__repr__", &JobPlan::repr);
  m.def(
      "prepare_kernel",
      [](const std::filesystem::path& directory, const py::object& stream) {
        const auto on = to_stream(stream);
        NoGil no_gil;
        return prepare_kernel(directory, on);
      },
      py::arg("spyrecode_dir"), py::arg("stream") = py::none(),
      "Load a SpyreCode directory onto the card of the stream (default: the current one).");
  m.def(
      "launch_jobplan",
      [](const JobPlanPtr& plan, const py::sequence& args) {
        const auto tensors = to_tensors(args);
        NoGil no_gil;
        launch(plan, tensors);
        for (const auto& tensor : tensors) forget_limits(tensor);
      },
      py::arg("job_plan"), py::arg("args"), "Queue the steps of a plan on the current stream.");
  m.def(
      "launch_kernel",
      [](const std::filesystem::path& directory, const py::sequence& args) {
        const auto tensors = to_tensors(args);
        NoGil no_gil;
        launch_kernel(directory, tensors);
        for (const auto& tensor : tensors) forget_limits(tensor);
      },
      py::arg("code_dir"), py::arg("args"), "Load a kernel in the older form, once, and run it.");
  m.def("_start_step_profile", &card::start_step_profile,
        "From now on the time of each step of a program is measured.");
  m.def(
      "_stop_step_profile",
      [] {
        py::list rows;
        for (const auto& row : card::stop_step_profile()) {
          rows.append(py::make_tuple(row.name, card::step_kind_name(row.kind), row.count,
                                     row.fastest * static_cast<double>(row.count), row.device_us));
        }
        return rows;
      },
      "(name, kind, count, seconds, modelled microseconds of one run) of each step. The seconds "
      "are "
      "those of its fastest run on this host, times the count.");
  m.def("_clear_kernel_cache", [] {
    NoGil no_gil;
    clear_kernel_cache();
  });
}

}  // namespace spyre
