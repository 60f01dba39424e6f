#include "program/copy_step.h"

#include <stdexcept>

namespace spyre::card {
namespace {

using Side = CopyStep::Side;
using Part = CopyStep::Part;

// Reads one side and appends the view of each core.
Side parse_side(WordReader& reader, const StepHead& head, std::vector<View>& views) {
  constexpr int64_t kMostDims = 64;
  Side side;
  StickLayout& layout = side.placement.layout;
  layout.format = reader.format();
  layout.arrangement = static_cast<ElementArrangement>(reader.next(0, 3, "an arrangement"));
  const int64_t axes = reader.next(1, kMostDims, "the number of device axes");
  layout.device_size = reader.list(axes);
  layout.stride_map = reader.list(axes);
  const int64_t shape = reader.next(0, kMostDims, "the number of dimensions of a layout");
  side.placement.sizes = reader.list(shape);
  side.placement.strides = reader.list(shape);
  const int64_t rank = reader.next(0, kMostDims, "the number of dimensions of a view");
  const Dims strides = reader.list(rank);
  for (int core = 0; core < head.cores; ++core) {
    const int64_t offset = reader.next();
    views.push_back({reader.list(rank), strides, offset});
    for (int64_t size : views.back().sizes) {
      if (size < 0) reader.fail("a view has the size " + std::to_string(size));
    }
  }
  side.address = parse_address(reader, head);
  try {
    check_placement(side.placement);
    side.map = make_address_map(side.placement);
    side.elem_bytes = bytes_per_elem(layout.format);
    for (const View& view : views) {
      if (num_elements(view) > 0) check_view(side.map, view);
    }
  } catch (const std::invalid_argument& error) {
    reader.fail(error.what());
  }
  return side;
}

// True when two cores see the storage at the same place.
bool same_base(const OperandAddress& address, int a, int b) {
  return a == b || (address.space != Space::LX && address.offsets[a] == address.offsets[b]);
}

// True when `second` continues `first` along dimension d on both sides.
bool continues(const Part& first, const Part& second, size_t d) {
  for (size_t other = 0; other < first.source.sizes.size(); ++other) {
    if (other != d && first.source.sizes[other] != second.source.sizes[other]) return false;
  }
  const auto goes_on = [&](const View& view, const View& next) {
    return next.offset == view.offset + view.sizes[d] * view.strides[d];
  };
  return goes_on(first.source, second.source) && goes_on(first.destination, second.destination);
}

// Joins parts that are neighbours along one dimension until none are. There are as many parts as
// cores, so looking at all pairs is cheap.
void join_parts(CopyStep& step) {
  std::vector<Part>& parts = step.parts;
  const auto join_once = [&] {
    for (size_t d = parts.empty() ? 0 : parts[0].source.sizes.size(); d-- > 0;) {
      for (size_t a = 0; a < parts.size(); ++a) {
        for (size_t b = 0; b < parts.size(); ++b) {
          if (a == b || !same_base(step.source.address, parts[a].core, parts[b].core) ||
              !same_base(step.destination.address, parts[a].core, parts[b].core) ||
              !continues(parts[a], parts[b], d)) {
            continue;
          }
          parts[a].source.sizes[d] += parts[b].source.sizes[d];
          parts[a].destination.sizes[d] = parts[a].source.sizes[d];
          parts.erase(parts.begin() + b);
          return true;
        }
      }
    }
    return false;
  };
  while (join_once()) {
  }
}

}  // namespace

CopyStep parse_copy(WordReader& reader, const StepHead& head) {
  CopyStep step;
  std::vector<View> sources, destinations;  // by core
  step.source = parse_side(reader, head, sources);
  step.destination = parse_side(reader, head, destinations);
  if (step.source.elem_bytes != step.destination.elem_bytes) {
    reader.fail("elements of " + std::to_string(step.source.elem_bytes) + " and " +
                std::to_string(step.destination.elem_bytes) + " bytes do not match");
  }
  for (int core = 0; core < head.cores; ++core) {
    const View &source = sources[core], &destination = destinations[core];
    if (source.sizes != destination.sizes) {
      reader.fail("the views of core " + std::to_string(core) + " have different sizes");
    }
    if (num_elements(source) > 0) step.parts.push_back({core, source, destination});
  }
  join_parts(step);
  return step;
}

void run_copy(const CopyStep& step, const StepHead&, const RunContext& context) {
  const auto copy = [&](const Part& part, ThreadPool* pool) {
    const auto mapped = [&](const Side& side) {
      return MappedCard{side.map, resolve(side.address, part.core, context), side.elem_bytes,
                        &side.placement};
    };
    copy_mapped(mapped(step.source), part.source, mapped(step.destination), part.destination, pool);
  };
  // Many parts are shared among the threads, each of a few is.
  const int parts = static_cast<int>(step.parts.size());
  int64_t elements = 0;
  for (const Part& part : step.parts) elements += num_elements(part.source);
  if (elements < kSerialElements || parts < 2 * context.pool.threads()) {
    for (const Part& part : step.parts) copy(part, &context.pool);
  } else {
    context.pool.run(parts, [&](int i) { copy(step.parts[i], nullptr); });
  }
}

}  // namespace spyre::card
