#include "python/sanitizer_bindings.h"

#include <torch/csrc/Exceptions.h>

#include "card/sanitizer/sanitizer.h"
#include "runtime.h"

namespace spyre {
namespace {

namespace py = pybind11;

// torch.spyre.SanitizerError; never released: errors may come until the very end. When Python
// cannot import any more, its base class says the same.
PyObject* error_class() {
  static PyObject* type = nullptr;  // set under the GIL, which an import may let go: perhaps twice
  if (type != nullptr) return type;
  try {
    const auto module = py::module_::import("torch_spyre.device.sanitizer");
    type = py::object(module.attr("SanitizerError")).release().ptr();
    return type;
  } catch (const py::error_already_set&) {
    return PyExc_RuntimeError;
  }
}

// What the queue hands on as it is, and PyTorch's own bindings turn into the right Python error.
struct SanitizerError final : torch::PyTorchError, card::KeptError {
  explicit SanitizerError(const std::string& text) : torch::PyTorchError(text) {}
  PyObject* python_type() override { return error_class(); }
};

[[noreturn]] void raise(const card::SanitizerFindings& findings) {
  throw SanitizerError(findings.what());
}

// The cards are idle while the sanitizer comes or goes: queued work was not noted.
void set_sanitizing(bool on) {
  start();
  NoGil no_gil;
  for (int i = 0; i < device_count(); i++) {
    card::Card& card = get_card(static_cast<c10::DeviceIndex>(i));
    card.queue.drain();  // errors stay for whoever asks next
    if (on) {
      card.sanitizer->enable();
    } else {
      card.sanitizer->disable();
    }
  }
}

}  // namespace

void bind_sanitizer(py::module& m) {
  card::set_raise_findings(&raise);
  py::register_exception_translator([](std::exception_ptr error) {
    try {
      if (error) std::rethrow_exception(error);
    } catch (SanitizerError& found) {
      PyErr_SetString(found.python_type(), found.what());
    }
  });
  m.def("_set_sanitizing", &set_sanitizing, py::arg("on"),
        "Check every access of device programs, or no longer. Waits for the cards.");
  m.def("_is_sanitizing", &card::is_sanitizing);
  m.def(
      "_sanitizer_counts",
      [] {
        const card::SanitizerCounts counts = card::sanitizer_counts();
        py::dict result;
        result["followed"] = counts.followed;
        result["known"] = counts.known;
        result["findings"] = counts.findings;
        return result;
      },
      "Launches that were checked, followed access by access or known from one like it, and what "
      "was "
      "found.");
}

}  // namespace spyre
