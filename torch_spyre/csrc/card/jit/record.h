// What instructions of tile programs do to a vector, as values of a VectorCode: the definitions of
// tile/operations.inl, written down instead of computed, so that translated code has their bits.
//
// Example: record_instruction(code, ADD, x, y, -1, 0, 0) is the value of x + y.
#pragma once

#include <cstdint>

#include "jit/vector_ir.h"

namespace spyre::card {

// -1 when the instruction cannot be recorded.
int record_instruction(VectorCode& code, int opcode, int a, int b, int c, uint32_t imm0,
                       uint32_t imm1);

// The same bits in fewer operations for an input of a magnitude of nearness_of(opcode) at most;
// only for instructions for which that is not zero.
int record_near(VectorCode& code, int opcode, int a);
float nearness_of(int opcode);

// Codes of DLFloat16, as LOAD_CODES gives them, to float32; rounding; and codes again, in the upper
// halves of the lanes. `ordinary`: all are zero or of magnitudes from 2^-30 to 2^32, before and
// after rounding.
int record_decode(VectorCode& code, int codes, bool ordinary);
int record_round(VectorCode& code, int value, bool ordinary);
int record_encode(VectorCode& code, int value);
// Ordinary numbers times 2^-96, which a code is as it stands: of codes, of lanes, and codes again.
// `coarse`: they need no rounding. Where an ordinary number is not zero it is not subnormal then;
// smaller ones are, or they are zero as their code is.
int record_scaled(VectorCode& code, int codes);
int record_scaled_down(VectorCode& code, int value);
int record_encode_scaled(VectorCode& code, int scaled, bool coarse);

}  // namespace spyre::card
