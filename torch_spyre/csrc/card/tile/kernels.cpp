// Which of the forms of tile/kernels.inl to use, and how many registers an opcode reads.
#include "tile/kernels.h"

#include <stdexcept>

namespace spyre::card {

int inputs_of(int opcode) {
  if (opcode < 0 || opcode >= kNumOpcodes) return -1;
  if (simd_portable::kTileTable.registers[opcode].plain == nullptr) return -1;
  switch (opcode) {
    case CONSTANT:
    case CONSTANT_BITS:
      return 0;
    case WHERE:
      return 3;
    default:
      break;
  }
  const bool binary = (opcode >= ADD && opcode <= POW) || (opcode >= INT_ADD && opcode <= INT_GE);
  return binary ? 2 : 1;
}

const TileTable& tile_table(Simd simd) {
#if defined(__x86_64__) || defined(__i386__)
  if (!has_simd(simd)) throw std::invalid_argument("this processor has no AVX2, FMA and F16C");
  if (simd != Simd::PORTABLE) return simd_avx2::kTileTable;
#else
  if (!has_simd(simd)) throw std::invalid_argument("AVX2 exists on x86 only");
#endif
  return simd_portable::kTileTable;
}

}  // namespace spyre::card
