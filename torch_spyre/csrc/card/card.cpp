// Puts the parts of a card together.
#include "card.h"

namespace spyre::card {

Card::Card(int index, const Hardware& hardware, size_t memory_bytes)
    : index(index), hardware(hardware), memory(index, memory_bytes), queue(index, memory) {
  // Memory that was freed comes back when the queued work that still reads it is done.
  memory.set_reclaim([this] { queue.drain(); });
}

}  // namespace spyre::card
