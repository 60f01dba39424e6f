#include "step/steps.h"

namespace spyre::card {

OperandAddress parse_address(WordReader& reader, const StepHead& head) {
  OperandAddress address;
  address.space = static_cast<Space>(reader.next(0, 3, "the space of an address"));
  const int64_t most = address.space == Space::ARGUMENT ? INT32_MAX : 0;
  address.argument = static_cast<int>(reader.next(0, most, "the argument of an address"));
  address.offsets = reader.list(head.cores);
  address.loop_strides = reader.list(head.loops);
  return address;
}

std::byte* resolve(const OperandAddress& address, int core, const RunContext& context) {
  int64_t offset = address.offsets[core];
  for (size_t i = 0; i < address.loop_strides.size(); i++) {
    offset += address.loop_strides[i] * context.loop_index[i];
  }
  switch (address.space) {
    case Space::DEVICE:
      return context.memory.host(static_cast<Address>(offset));
    case Space::ARGUMENT: {
      const size_t count = context.arguments.size();
      if (static_cast<size_t>(address.argument) >= count) {
        throw ProgramError("the program uses argument " + std::to_string(address.argument) +
                           ", but was launched with " + std::to_string(count));
      }
      return context.memory.host(context.arguments[address.argument]) + offset;
    }
    case Space::SHARED:
      if (context.shared == nullptr) throw ProgramError("the card has no scratchpads");
      return context.shared + offset;
    case Space::LX:
      break;
  }
  if (static_cast<size_t>(core) >= context.lx.size()) {
    throw ProgramError("the program uses the scratchpad of core " + std::to_string(core) +
                       ", but the card has " + std::to_string(context.lx.size()) + " cores");
  }
  return context.lx[core] + offset;
}

}  // namespace spyre::card
