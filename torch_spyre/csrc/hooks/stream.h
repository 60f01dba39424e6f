// Streams of the cards: 65 each, the thread's current one, and hand-out from the two pools.
#pragma once

#include <c10/core/Stream.h>

#include "runtime.h"

namespace spyre {

int current_stream_id(c10::DeviceIndex device);
c10::Stream current_stream(c10::DeviceIndex device);
c10::Stream default_stream(c10::DeviceIndex device);
c10::Stream exchange_stream(const c10::Stream& stream);  // returns the previous one of that card
// Round robin over ids 1..32 (priority 0) or 33..64 (any other priority).
c10::Stream stream_from_pool(c10::DeviceIndex device, int priority);
int stream_priority(c10::StreamId id);        // 0, or -1 for the high pool
int check_stream(const c10::Stream& stream);  // its id; throws for a foreign or unknown stream

}  // namespace spyre
