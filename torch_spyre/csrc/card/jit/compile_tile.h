// The bodies of a tile program's phases as machine code, once it has been parsed.
#pragma once

#include "tile/tile.h"

namespace spyre::card {

// Fills TilePhase::code; what cannot be translated is left to the interpreter. Bodies may load
// again what an earlier phase has left in a register.
void compile_tile(TileStep& step);

}  // namespace spyre::card
