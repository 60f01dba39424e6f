// Fallbacks for kinds of tensors and modes that only a program with tensors on the card can meet.
//
// PyTorch goes over all operators for each fallback, 2 to 4 ms, which `import torch` need not wait
// for. Operators that someone registers for these keys go first, whenever they were registered.
#pragma once

namespace spyre {

// Once per process: when the runtime starts, or earlier when autocast is asked for.
void register_late_fallbacks();

}  // namespace spyre
