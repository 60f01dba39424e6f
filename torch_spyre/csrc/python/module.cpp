// The Python module torch_spyre._C: the documented names, and what the package itself needs
// (names with a leading underscore). Bindings only; what they do lives in the file named after it.

#include <torch/csrc/Dtype.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/Generator.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/csrc/utils/pycfunction_helpers.h>

#include <cstring>

#include "card/numerics/dlfloat16.h"
#include "eager/fallback.h"
#include "eager/late_fallbacks.h"
#include "hooks/copy.h"
#include "hooks/dtypes.h"
#include "hooks/empty.h"
#include "hooks/hooks.h"
#include "hooks/storage.h"
#include "hooks/stream.h"
#include "hooks/views.h"
#include "python/bindings.h"
#include "python/compiled_bindings.h"
#include "python/eager_bindings.h"
#include "python/job_plan_bindings.h"
#include "python/sanitizer_bindings.h"
#include "runtime.h"

namespace spyre {
namespace {

namespace py = pybind11;

// ---- runtime and devices
// ------------------------------------------------------------------------------

py::dict settings_dict(const Settings& s) {
  py::dict d;
  d["device_count"] = s.device_count;
  d["default_device"] = s.default_device;
  d["cores"] = s.cores;
  d["memory_bytes"] = s.memory_bytes;
  d["threads"] = s.threads;
  d["numerics"] = s.numerics == card::Numerics::IEEE ? "ieee" : "dlfloat16";
  d["launch_blocking"] = s.launch_blocking;
  d["sanitize"] = s.sanitize;
  d["pairs"] = s.pairs;
  d["downcast_warning"] = s.downcast_warning;
  d["fallback_warning"] = s.fallback_warning;
  d["eager_on_card"] = s.eager_on_card;
  d["eager_limit"] = s.eager_limit;
  return d;
}

void bind_runtime(py::module& m) {
  m.def("start_runtime", &start, "Start the cards. Happens by itself on first use.");
  m.def("free_runtime", &stop, "Stop the cards; refused while tensors are alive.");
  m.def("device_count", [] { return static_cast<int>(device_count()); });
  m.def("current_device", [] { return static_cast<int>(current_device()); });
  m.def("set_device", &remember_device, py::arg("index"));
  m.def(
      "_exchange_device", [](int64_t index) { return static_cast<int>(exchange_device(index)); },
      py::arg("index"));
  m.def("_is_started", &is_started);
  m.def("_in_bad_fork", &in_bad_fork);
  m.def("_mark_bad_fork", &mark_bad_fork);
  m.def("_adds_pairs", &adds_pairs);
  m.def("_set_adds_pairs", &set_adds_pairs, py::arg("on"),
        "Whether large products are added by pairs from now on; SPYRE_PAIRS says it at the start.");
  m.def("_register_late_fallbacks", &register_late_fallbacks);
  m.def("_settings", [] { return settings_dict(settings()); });
  m.def("_read_settings", [] { return settings_dict(read_settings()); });
  m.def(
      "_set_hardware",
      [](int cores, size_t lx_bytes, size_t memory_bytes, int64_t span_bytes,
         double memory_bytes_per_us, double host_bytes_per_us, double job_us, double dma_us) {
        set_hardware({cores, lx_bytes, memory_bytes, span_bytes, memory_bytes_per_us,
                      host_bytes_per_us, job_us, dma_us});
      },
      py::kw_only(), py::arg("cores"), py::arg("lx_bytes"), py::arg("memory_bytes"),
      py::arg("span_bytes"), py::arg("memory_bytes_per_us"), py::arg("host_bytes_per_us"),
      py::arg("job_us"), py::arg("dma_us"));
  m.def("_memory_summary",
        [](int device) { return get_card(check_device_index(device)).memory.summary(); });
  m.def("_empty_cache",
        [](int device) { get_card(check_device_index(device)).memory.empty_cache(); });
  m.def("_busy_us",
        [](int device) { return get_card(check_device_index(device)).queue.busy_us(); });
  m.def("_num_threads", [] { return thread_pool().threads(); });
}

// ---- layouts
// --------------------------------------------------------------------------------------------

void bind_layouts(py::module& m) {
  using card::DataFormat;
  using card::ElementArrangement;
  using card::StickLayout;
  py::enum_<DataFormat> formats(m, "DataFormats", "Element formats of the card.");
  for (int i = 0; i < card::kNumDataFormats; i++) {
    auto format = static_cast<DataFormat>(i);
    formats.value(card::name(format), format);
  }
  formats.def(
      "elems_per_stick", [](DataFormat f) { return card::elems_per_stick(f); },
      "Elements in a 128-byte stick; 0 when the format has no tensor form.");
  py::enum_<ElementArrangement>(m, "ElementArrangement", "Order of the elements inside a stick.")
      .value("STANDARD", ElementArrangement::STANDARD)
      .value("DL16_TO_FP32", ElementArrangement::DL16_TO_FP32)
      .value("QFP8CH", ElementArrangement::QFP8CH)
      .value("EXX2", ElementArrangement::EXX2);

  auto from_dtype = [](const py::object& dtype) {
    return checked_device_format(to_scalar_type(dtype));
  };
  py::class_<StickLayout>(m, "SpyreTensorLayout",
                          "How a tensor lies on the card: sticks of 128 bytes, tiled.")
      .def(py::init([=](const card::Dims& host_size, const py::object& dtype) {
             return card::make_layout(host_size, from_dtype(dtype));
           }),
           py::arg("host_size"), py::arg("dtype"))
      .def(py::init([=](const card::Dims& host_size, const py::object& dtype,
                        const card::Dims& dim_order, ElementArrangement arrangement) {
             return card::make_layout(host_size, from_dtype(dtype), dim_order, arrangement);
           }),
           py::arg("host_size"), py::arg("dtype"), py::arg("dim_order"),
           py::arg("element_arrangement") = ElementArrangement::STANDARD)
      .def(py::init([=](const card::Dims& host_size, const card::Dims& host_strides,
                        const py::object& dtype, const card::Dims& dim_order,
                        ElementArrangement arrangement) {
             return card::make_layout(host_size, host_strides, from_dtype(dtype), dim_order,
                                      arrangement);
           }),
           py::arg("host_size"), py::arg("host_strides"), py::arg("dtype"), py::arg("dim_order"),
           py::arg("element_arrangement") = ElementArrangement::STANDARD)
      .def(py::init([](card::Dims device_size, card::Dims stride_map, DataFormat format,
                       ElementArrangement arrangement) {
             StickLayout layout{std::move(device_size), std::move(stride_map), format, arrangement};
             card::check_layout(layout);
             return layout;
           }),
           py::arg("device_size"), py::arg("stride_map"), py::arg("device_dtype"),
           py::arg("element_arrangement") = ElementArrangement::STANDARD)
      .def_property_readonly("device_size", [](const StickLayout& l) { return l.device_size; })
      .def_property_readonly("stride_map", [](const StickLayout& l) { return l.stride_map; })
      .def_property_readonly("device_dtype", [](const StickLayout& l) { return l.format; })
      .def_property_readonly("element_arrangement",
                             [](const StickLayout& l) { return l.arrangement; })
      .def("elems_per_stick", [](const StickLayout& l) { return card::elems_per_stick(l.format); })
      .def(
          "with_element_arrangement",
          [](StickLayout l, ElementArrangement arrangement) {
            l.arrangement = arrangement;
            return l;
          },
          py::arg("element_arrangement"))
      .def("__eq__",
           [](const StickLayout& a, const py::object& b) {
             return py::isinstance<StickLayout>(b) && a == b.cast<const StickLayout&>();
           })
      .def("__hash__",
           [](const StickLayout& l) {
             return py::hash(py::make_tuple(
                 py::tuple(py::cast(l.device_size)), py::tuple(py::cast(l.stride_map)),
                 static_cast<int>(l.format), static_cast<int>(l.arrangement)));
           })
      .def("__repr__", &StickLayout::repr)
      .def(py::pickle([](const StickLayout& l) { return layout_to_state(l); },
                      [](const py::tuple& state) { return layout_from_state(state); }));

  m.def("get_spyre_tensor_layout", &get_layout, py::arg("tensor"),
        py::call_guard<py::gil_scoped_release>());
  m.def("set_spyre_tensor_layout", &set_layout, py::arg("tensor"), py::arg("layout"),
        py::call_guard<py::gil_scoped_release>());
  m.def(
      "get_elem_in_stick",
      [=](const py::object& dtype) { return card::elems_per_stick(from_dtype(dtype)); },
      py::arg("dtype"));
  m.def("get_device_dtype", from_dtype, py::arg("dtype"));
  m.def(
      "encode_constant",
      [](double value, DataFormat format) -> int64_t {
        auto single = static_cast<float>(value);
        if (format != DataFormat::IEEE_FP32) return card::encode_dlfloat16(single);
        uint32_t bits;
        std::memcpy(&bits, &single, sizeof(bits));
        return bits;
      },
      py::arg("value"), py::arg("format"),
      "The bits of a constant in a program: float32, or DLFloat16 for every other format.");
  m.def("_decode_dlfloat16", [](uint16_t code) { return card::decode_dlfloat16(code); });
}

// ---- tensors
// -----------------------------------------------------------------------------------------------

void bind_tensors(py::module& m) {
  using card::Dims;
  m.def(
      "spyre_empty_with_layout",
      [](const Dims& size, const Dims& stride, const py::object& dtype,
         const card::StickLayout& layout) {
        return spyre_empty_with_layout(size, stride, to_scalar_type(dtype), layout);
      },
      py::arg("size"), py::arg("stride"), py::arg("dtype"), py::arg("layout"));
  m.def(
      "empty_with_layout",
      [](const Dims& size, const card::StickLayout& layout, const py::object& dtype,
         std::optional<at::Device> device, std::optional<bool> pin_memory,
         std::optional<at::MemoryFormat> memory_format) {
        std::optional<at::ScalarType> type;
        if (!dtype.is_none()) type = to_scalar_type(dtype);
        return empty_with_layout(size, layout, type, device, pin_memory, memory_format);
      },
      py::arg("size"), py::arg("layout"), py::arg("dtype") = py::none(),
      py::arg("device") = py::none(), py::arg("pin_memory") = py::none(),
      py::arg("memory_format") = py::none());
  m.def(
      "as_strided_with_layout",
      [](const at::Tensor& t, const Dims& size, const Dims& stride, std::optional<int64_t> offset,
         const card::StickLayout& layout) {
        return as_strided_with_layout(t, size, stride, offset, layout);
      },
      py::arg("tensor"), py::arg("size"), py::arg("stride"), py::arg("offset"), py::arg("layout"));
  m.def(
      "reinterpret_tensor",
      [](const at::Tensor& t, const Dims& size, const Dims& stride, int64_t offset_increment) {
        return reinterpret_tensor(t, size, stride, offset_increment);
      },
      py::arg("tensor"), py::arg("size"), py::arg("stride"), py::arg("offset_increment") = 0);
  m.def(
      "reinterpret_tensor_with_layout",
      [](const at::Tensor& t, const Dims& size, const Dims& stride, int64_t offset_increment,
         const card::StickLayout& layout) {
        return as_strided_with_layout(t, size, stride, t.storage_offset() + offset_increment,
                                      layout);
      },
      py::arg("tensor"), py::arg("size"), py::arg("stride"), py::arg("offset_increment"),
      py::arg("layout"));
  m.def("copy_tensor", &copy_tensor, py::arg("self"), py::arg("dst"),
        py::arg("non_blocking") = false, py::call_guard<py::gil_scoped_release>());
  m.def("get_downcast_warning", &get_downcast_warning);
  m.def("set_downcast_warning", &set_downcast_warning, py::arg("enabled"));
}

// ---- streams
// -----------------------------------------------------------------------------------------------

struct StreamBase {
  c10::Stream stream;
};

void bind_streams(py::module& m) {
  auto index = [](const py::object& device) { return to_device_index(device); };
  py::class_<StreamBase>(m, "_SpyreStreamBase", "A stream as the runtime sees it.")
      .def(
          "synchronize", [](const StreamBase& s) { s.stream.synchronize(); },
          py::call_guard<py::gil_scoped_release>())
      .def("query", [](const StreamBase& s) { return s.stream.query(); })
      .def("device", [](const StreamBase& s) { return s.stream.device(); })
      .def("id", [](const StreamBase& s) { return s.stream.id(); })
      .def("priority", [](const StreamBase& s) { return stream_priority(s.stream.id()); })
      .def("__eq__",
           [](const StreamBase& a, const py::object& b) {
             return py::isinstance<StreamBase>(b) && a.stream == b.cast<const StreamBase&>().stream;
           })
      .def("__hash__", [](const StreamBase& s) { return std::hash<c10::Stream>()(s.stream); })
      .def("__repr__", [](const StreamBase& s) {
        return "<torch_spyre.Stream device=" + std::to_string(s.stream.device_index()) +
               " id=" + std::to_string(s.stream.id()) + ">";
      });
  m.def(
      "get_stream_from_pool",
      [=](const py::object& device, int priority) {
        return StreamBase{stream_from_pool(index(device), priority)};
      },
      py::arg("device") = py::none(), py::arg("priority") = 0);
  m.def(
      "current_stream",
      [=](const py::object& device) { return StreamBase{current_stream(index(device))}; },
      py::arg("device") = py::none());
  m.def(
      "default_stream",
      [=](const py::object& device) { return StreamBase{default_stream(index(device))}; },
      py::arg("device") = py::none());
  m.def(
      "set_current_stream",
      [](const StreamBase& s) { return StreamBase{exchange_stream(s.stream)}; }, py::arg("stream"));
  m.def(
      "synchronize",
      [=](const py::object& device) {
        auto which = index(device);
        NoGil no_gil;
        get_card(which).queue.synchronize();
      },
      py::arg("device") = py::none());
  m.def("_stream_time_us", [](int device, int stream) {
    return get_card(check_device_index(device)).queue.stream_time_us(stream);
  });
  // What programs have done; work that is queued is waited for, so that it is all there.
  m.def("_counters", [](int device) {
    auto& card = get_card(check_device_index(device));
    card::Totals totals;
    {
      NoGil no_gil;
      card.queue.drain();
      totals = card.counters.get();
    }
    py::dict result;
    result["device_time_us"] = totals.device_us;
    result["hbm_read_bytes"] = totals.memory_read;
    result["hbm_write_bytes"] = totals.memory_written;
    result["lx_bytes"] = totals.lx;
    result["ring_bytes"] = totals.ring;
    result["launches"] = totals.launches;
    return result;
  });
  m.def("_reset_counters", [](int device) {
    auto& card = get_card(check_device_index(device));
    NoGil no_gil;
    card.queue.drain();
    card.counters.reset();
  });
  m.def("_host_callback", [](int device, int stream, py::function function) {
    // The function is called, and dropped, with the GIL held.
    auto* held = new py::function(std::move(function));
    auto& card = get_card(check_device_index(device));
    NoGil no_gil;
    card.queue.callback(stream, [held] {
      py::gil_scoped_acquire gil;
      std::unique_ptr<py::function> mine(held);
      try {
        (*mine)();
      } catch (py::error_already_set& error) {
        throw std::runtime_error(error.what());
      }
    });
  });
}

// ---- random numbers, statistics, fallbacks
// ---------------------------------------------------------------------

at::Generator generator_of(int device) {
  return default_generator(static_cast<c10::DeviceIndex>(device));
}

void bind_random(py::module& m) {
  auto lock = [](at::Generator& g) { return std::lock_guard<std::mutex>(g.mutex()); };
  m.def(
      "manual_seed",
      [=](uint64_t seed, int device) {
        auto g = generator_of(device);
        auto guard = lock(g);
        g.set_current_seed(seed);
      },
      py::arg("seed"), py::arg("device") = -1);
  m.def(
      "manual_seed_all",
      [=](uint64_t seed) {
        for (int i = 0; i < device_count(); i++) {
          auto g = generator_of(i);
          auto guard = lock(g);
          g.set_current_seed(seed);
        }
      },
      py::arg("seed"));
  m.def(
      "get_rng_state",
      [=](int device) {
        auto g = generator_of(device);
        auto guard = lock(g);
        return at::Tensor(g.get_state());
      },
      py::arg("device") = -1);
  m.def(
      "set_rng_state",
      [=](const at::Tensor& state, int device) {
        auto g = generator_of(device);
        auto guard = lock(g);
        g.set_state(state);
      },
      py::arg("new_state"), py::arg("device") = -1);
  m.def(
      "initial_seed", [=](int device) { return generator_of(device).current_seed(); },
      py::arg("device") = -1);
  m.def(
      "_get_default_generator",
      [](int device) {
        return py::reinterpret_steal<py::object>(
            THPGenerator_initDefaultGenerator(generator_of(device)));
      },
      py::arg("device") = -1);
}

void bind_statistics(py::module& m) {
  m.def(
      "_spyre_get_allocator_stats",
      [](int device) {
        auto stats = get_card(check_device_index(device)).memory.stats();
        py::dict d;
        d["allocated_bytes.all.current"] = stats.allocated_bytes.current;
        d["allocation.all.current"] = stats.allocation.current;
        return d;
      },
      py::arg("device"));
  m.def("_spyre_reset_accumulated_stats",
        [](int device) { get_card(check_device_index(device)).memory.reset_accumulated_stats(); });
  m.def("_spyre_reset_peak_stats",
        [](int device) { get_card(check_device_index(device)).memory.reset_peak_stats(); });
  m.def("fallback_counts", &fallback_counts);
  m.def("reset_fallback_counts", &reset_fallback_counts);
  m.def("get_fallback_warning", &get_fallback_warning);
  m.def("set_fallback_warning", &set_fallback_warning, py::arg("enabled"));
  set_fallback_warner([](const FallbackReport& r) {
    py::gil_scoped_acquire gil;
    const auto warn = py::module_::import("torch_spyre.ops.fallbacks").attr("warn_fallback");
    warn(r.op, r.why, r.bytes_to_host, r.bytes_to_card, r.milliseconds);
  });
}

}  // namespace
}  // namespace spyre

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.doc() = "The native side of torch_spyre: the emulated card and PyTorch's hooks to it.";
  spyre::bind_runtime(m);
  spyre::bind_layouts(m);
  spyre::bind_tensors(m);
  spyre::bind_streams(m);
  spyre::bind_random(m);
  spyre::bind_statistics(m);
  spyre::bind_job_plans(m);
  spyre::bind_compiled(m);
  spyre::bind_eager(m);
  spyre::bind_sanitizer(m);
}
