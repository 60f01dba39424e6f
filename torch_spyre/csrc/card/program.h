// The program container: what lies in program memory where a compute step starts, and what runs it.
//
// A program begins with a header of 16 bytes, little endian; the steps follow:
//
//   byte  0  magic "SPYREPRG"
//   byte  8  uint32 version: 1
//   byte 12  uint32 number of steps; 0 is the empty program, which does nothing
//
// Addresses of programs are those of the program segment, as the compiler sees them; the runtime
// maps the segment onto an allocation of the card.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "memory.h"

namespace spyre::card {

constexpr Address kProgramSegment = 0x1C'0000'0000;
constexpr Address kProgramSegmentEnd = 0x20'0000'0000;

constexpr std::string_view kProgramMagic = "SPYREPRG";
constexpr uint32_t kProgramVersion = 1;
constexpr size_t kProgramHeaderBytes = 16;

struct ProgramError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// A program in place: its first byte up to the end of its allocation.
struct Program {
  Address address = 0;  // in the program segment; for messages
  std::span<const std::byte> bytes;
};

// Runs a program to its end, on the calling thread. `arguments` are the device addresses of the
// tensors it was launched with. Throws ProgramError for bytes that are no program of this card.
void run_program(const Program& program, std::span<const Address> arguments, Memory& memory);

// The text form of a program (init.txt): 256 hex digits a line are 128 bytes, the last pair of
// digits first; '#' starts a comment. Errors begin with "<name>:<line>: ".
std::vector<std::byte> parse_hex_program(std::string_view text, const std::string& name);

std::string hex_address(Address address);  // "0x1c00000000"

}  // namespace spyre::card
