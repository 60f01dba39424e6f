#include "program.h"

#include <algorithm>
#include <cctype>
#include <cstdio>

namespace spyre::card {
namespace {

constexpr size_t kBytesPerLine = 128;

struct Header {
  uint32_t version;
  uint32_t steps;
};

uint32_t read_u32(std::span<const std::byte> bytes, size_t at) {
  uint32_t value = 0;
  for (size_t i = 4; i-- > 0;) value = value << 8 | std::to_integer<uint32_t>(bytes[at + i]);
  return value;
}

// Bytes as text: what can be printed as it is, the rest as \xNN.
std::string printable(std::span<const std::byte> bytes) {
  std::string text;
  for (std::byte b : bytes) {
    const int c = std::to_integer<int>(b);
    char escaped[8];
    std::snprintf(escaped, sizeof escaped, c >= 0x20 && c < 0x7F && c != '\\' ? "%c" : "\\x%02x",
                  c);
    text += escaped;
  }
  return text;
}

Header read_header(const Program& program) {
  const std::string where = hex_address(program.address);
  if (program.bytes.size() < kProgramHeaderBytes) {
    throw ProgramError("no Spyre program at " + where + ": expected a header of " +
                       std::to_string(kProgramHeaderBytes) + " bytes, found " +
                       std::to_string(program.bytes.size()) + " bytes of program memory");
  }
  const auto magic = program.bytes.first(kProgramMagic.size());
  if (printable(magic) != kProgramMagic) {
    throw ProgramError("no Spyre program at " + where + ": expected magic '" +
                       std::string(kProgramMagic) + "', found '" + printable(magic) + "'");
  }
  Header header{read_u32(program.bytes, 8), read_u32(program.bytes, 12)};
  if (header.version != kProgramVersion) {
    throw ProgramError("program version " + std::to_string(header.version) + " at " + where +
                       ": this card runs version " + std::to_string(kProgramVersion) +
                       "; compile the kernel again");
  }
  return header;
}

// Step kinds belong here: read each step after the header, find what runs its kind, run it with the
// arguments. So far there are none, and only the empty program is one.
void run_steps(const Program& program, const Header& header, std::span<const Address> /*arguments*/,
               Memory& /*memory*/) {
  if (header.steps == 0) return;
  throw ProgramError("the program at " + hex_address(program.address) + " has " +
                     std::to_string(header.steps) + " steps of unknown kind; this card knows none");
}

// ---- Text form --------------------------------------------------------------------------------

std::string_view trim(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r";
  const size_t first = text.find_first_not_of(kSpace);
  if (first == text.npos) return {};
  return text.substr(first, text.find_last_not_of(kSpace) - first + 1);
}

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  const int lower = std::tolower(static_cast<unsigned char>(c));
  return lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
}

void append_line(std::vector<std::byte>& out, std::string_view line, const std::string& where) {
  for (size_t i = 0; i < line.size(); i++) {
    if (hex_digit(line[i]) >= 0) continue;
    const auto bad = std::as_bytes(std::span(line.substr(i, 1)));
    throw std::runtime_error(where + "expected hex digits, found '" + printable(bad) +
                             "' at digit " + std::to_string(i + 1));
  }
  if (line.size() != 2 * kBytesPerLine) {
    throw std::runtime_error(where + "expected " + std::to_string(2 * kBytesPerLine) +
                             " hex digits a line, found " + std::to_string(line.size()));
  }
  for (size_t i = kBytesPerLine; i-- > 0;) {
    out.push_back(static_cast<std::byte>(hex_digit(line[2 * i]) << 4 | hex_digit(line[2 * i + 1])));
  }
}

}  // namespace

void run_program(const Program& program, std::span<const Address> arguments, Memory& memory) {
  run_steps(program, read_header(program), arguments, memory);
}

std::vector<std::byte> parse_hex_program(std::string_view text, const std::string& name) {
  std::vector<std::byte> bytes;
  for (size_t number = 1; !text.empty(); number++) {
    const size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    line = trim(line.substr(0, line.find('#')));
    if (!line.empty()) append_line(bytes, line, name + ":" + std::to_string(number) + ": ");
  }
  if (bytes.empty()) {
    throw std::runtime_error(name + ": holds no program: expected lines of " +
                             std::to_string(2 * kBytesPerLine) + " hex digits");
  }
  return bytes;
}

std::string hex_address(Address address) {
  char text[24];
  std::snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(address));
  return text;
}

}  // namespace spyre::card
