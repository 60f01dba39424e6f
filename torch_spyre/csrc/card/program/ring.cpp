#include "program/ring.h"

#include <cstring>

namespace spyre::card {

RingStep parse_ring(WordReader& reader, const StepHead& head) {
  RingStep step;
  const int64_t axes = reader.next(0, 16, "the number of dimensions");
  for (int64_t i = 0; i < axes; i++) {
    RingStep::Axis axis;
    axis.extent = reader.next(1, INT32_MAX, "an extent");
    axis.source_stride = reader.next(0, INT32_MAX, "a stride");
    axis.target_stride = reader.next(0, INT32_MAX, "a stride");
    step.axes.push_back(axis);
  }
  step.source = parse_address(reader, head);
  step.target = parse_address(reader, head);
  for (const OperandAddress* address : {&step.source, &step.target}) {
    if (address->space != Space::LX) reader.fail("it moves something that is not in scratchpads");
  }
  const int64_t transfers = reader.next(0, 1 << 20, "the number of transfers");
  for (int64_t i = 0; i < transfers; i++) {
    RingStep::Transfer transfer;
    transfer.source = static_cast<int>(reader.next(0, head.cores - 1, "a core"));
    transfer.target = static_cast<int>(reader.next(0, head.cores - 1, "a core"));
    transfer.source_offset = reader.next(0, INT32_MAX, "an offset");
    transfer.target_offset = reader.next(0, INT32_MAX, "an offset");
    step.transfers.push_back(transfer);
  }
  return step;
}

void run_ring(const RingStep& step, const StepHead&, const RunContext& context) {
  const int64_t sticks = step.sticks();
  context.pool.run(static_cast<int>(step.transfers.size()), [&](int i) {
    const RingStep::Transfer& transfer = step.transfers[i];
    const std::byte* from = resolve(step.source, transfer.source, context) + transfer.source_offset;
    std::byte* to = resolve(step.target, transfer.target, context) + transfer.target_offset;
    for (int64_t n = 0; n < sticks; n++) {
      const auto [here, there] = step.stick(n);
      std::memcpy(to + there, from + here, kStickBytes);
    }
  });
}

}  // namespace spyre::card
