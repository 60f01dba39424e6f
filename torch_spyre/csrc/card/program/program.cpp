#include "program/program.h"

#include <algorithm>
#include <bit>
#include <cctype>
#include <chrono>
#include <cstdio>
#include <utility>

#include "jit/compile_tile.h"
#include "program/step_profile.h"
#include "program/work.h"

namespace spyre::card {
namespace {

constexpr size_t kBytesPerLine = 128;

struct Header {
  uint32_t version;
  uint32_t words;
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

// ---- Steps ------------------------------------------------------------------------------------

constexpr int64_t kMaxCores = 1024;
constexpr int64_t kMaxLoops = 32;
constexpr int64_t kMaxNameBytes = 4096;

std::vector<int64_t> read_words(const Program& program, const Header& header) {
  const auto bytes = program.bytes.subspan(kProgramHeaderBytes);
  if (header.words > bytes.size() / 8) {
    throw ProgramError("the program at " + hex_address(program.address) + " has " +
                       std::to_string(header.words) + " words, but its memory ends after " +
                       std::to_string(bytes.size() / 8));
  }
  std::vector<int64_t> words(header.words);
  for (size_t i = 0; i < words.size(); i++) {
    const uint64_t low = read_u32(bytes, 8 * i), high = read_u32(bytes, 8 * i + 4);
    words[i] = static_cast<int64_t>(high << 32 | low);
  }
  return words;
}

std::string read_name(WordReader& reader) {
  const int64_t length = reader.next(0, kMaxNameBytes, "the length of its name");
  std::string name;
  for (int64_t i = 0; i < (length + 7) / 8; i++) {
    const auto word = static_cast<uint64_t>(reader.next());
    for (int byte = 0; byte < 8; byte++) name += static_cast<char>(word >> 8 * byte & 0xff);
  }
  name.resize(length);
  return name;
}

class Parser {
 public:
  explicit Parser(const Program& program) : where_(hex_address(program.address)) {
    const Header header = read_header(program);
    words_ = read_words(program, header);
    result_->bytes = kProgramHeaderBytes + 8 * words_.size();
  }

  std::shared_ptr<const ParsedProgram> parse() {
    for (size_t at = 0; at < words_.size();) at += parse_step(at);
    if (!open_loops_.empty()) {
      throw ProgramError("the program at " + where_ + " ends inside a loop");
    }
    if (has_work_) {
      throw ProgramError("the program at " + where_ + " ends with a work that has no step");
    }
    return result_;
  }

 private:
  // The number of words of the step.
  size_t parse_step(size_t at) {
    const std::string number = std::to_string(number_++);
    const size_t left = words_.size() - at;
    const int64_t length = left < 2 ? 0 : words_[at + 1];
    if (length < 6 || static_cast<uint64_t>(length) > left) {
      throw ProgramError("the program at " + where_ + " is malformed: step " + number + " has " +
                         std::to_string(length) + " words, " + std::to_string(left) +
                         " are left and 6 the fewest");
    }
    const auto words = std::span<const int64_t>(words_).subspan(at, length);
    ProgramStep step;
    WordReader head_reader(words, number);
    step.head = parse_head(head_reader);
    const size_t head_words = 6 + (step.head.name.size() + 7) / 8;
    WordReader reader(words.subspan(head_words), number + " " + step.head.name);
    const bool is_loop = step.head.kind == LOOP_BEGIN || step.head.kind == LOOP_END;
    if (is_loop && has_work_) reader.fail("the work before it has no step");
    if (step.head.kind == WORK) {
      work_ += parse_work(reader, step.head);
      has_work_ = true;
    } else if (step.head.kind == LOOP_END) {
      end_loop(step.head, reader);
    } else {
      parse_payload(step, reader);
      work_.device_us += step.head.device_us;
      step.head.device_us = work_.device_us;
      step.totals = std::exchange(work_, {});
      has_work_ = false;
      result_->device_us += step.head.device_us * repeats_;
      result_->steps.push_back(std::move(step));
      if (result_->steps.back().head.kind == LOOP_BEGIN) begin_loop();
    }
    if (!reader.done()) reader.fail("it has more words than its kind needs");
    return length;
  }

  StepHead parse_head(WordReader& reader) const {
    StepHead head;
    head.kind = reader.next();
    if (head.kind < TILE || head.kind > CHOSEN_MATMUL) {
      reader.fail("its kind is " + std::to_string(head.kind) + ", this card knows 1 to 10");
    }
    reader.next();  // its length
    head.cores = static_cast<int>(reader.next(0, kMaxCores, "the number of cores"));
    head.loops = static_cast<int>(reader.next(0, kMaxLoops, "the number of loops"));
    head.name = read_name(reader);
    head.device_us = std::bit_cast<double>(reader.next());
    if (!(head.device_us >= 0)) reader.fail("its time is not a number from 0 on");
    const size_t around = open_loops_.size();
    if (head.kind != LOOP_END && static_cast<size_t>(head.loops) != around) {
      reader.fail("it says that " + std::to_string(head.loops) +
                  " loops are around it, there are " + std::to_string(around));
    }
    return head;
  }

  static void parse_payload(ProgramStep& step, WordReader& reader) {
    switch (step.head.kind) {
      case TILE:
        compile_tile(step.what.emplace<TileStep>(parse_tile(reader, step.head)));
        break;
      case MATMUL:
        step.what = parse_matmul(reader, step.head);
        break;
      case CHOSEN_MATMUL:
        step.what = parse_chosen_matmul(reader, step.head);
        break;
      case COPY_STEP:
        step.what = parse_copy(reader, step.head);
        break;
      case GATHER:
        step.what = parse_gather(reader, step.head);
        break;
      case SCATTER:
        step.what = parse_scatter(reader, step.head);
        break;
      case TOPK:
        step.what = parse_topk(reader, step.head);
        break;
      case RING:
        step.what = parse_ring(reader, step.head);
        break;
      default:
        step.what = LoopStep{reader.next(0, INT64_MAX, "the count of a loop"), 0};
    }
  }

  void begin_loop() {
    open_loops_.push_back(result_->steps.size() - 1);
    repeats_of_.push_back(repeats_);
    repeats_ *= static_cast<double>(std::get<LoopStep>(result_->steps.back().what).count);
  }
  void end_loop(const StepHead& head, WordReader& reader) {
    if (open_loops_.empty()) reader.fail("it ends a loop, but none has begun");
    std::get<LoopStep>(result_->steps[open_loops_.back()].what).end = result_->steps.size();
    result_->device_us += head.device_us * repeats_;
    open_loops_.pop_back();
    repeats_ = repeats_of_.back();
    repeats_of_.pop_back();
  }

  const std::string where_;
  std::vector<int64_t> words_;
  size_t number_ = 0;  // of the step, for messages
  std::vector<size_t> open_loops_;
  double repeats_ = 1;
  std::vector<double> repeats_of_;
  Totals work_;  // of operations whose step comes next
  bool has_work_ = false;
  std::shared_ptr<ParsedProgram> result_ = std::make_shared<ParsedProgram>();
};

void run_step(const ProgramStep& step, const RunContext& context) {
  switch (step.head.kind) {
    case TILE:
      return run_tile(std::get<TileStep>(step.what), step.head, context);
    case MATMUL:
    case CHOSEN_MATMUL:
      return run_matmul(std::get<MatmulStep>(step.what), step.head, context);
    case COPY_STEP:
      return run_copy(std::get<CopyStep>(step.what), step.head, context);
    case GATHER:
    case SCATTER:
      return run_gather(std::get<GatherStep>(step.what), step.head, context);
    case TOPK:
      return run_topk(std::get<TopkStep>(step.what), step.head, context);
    case RING:
      return run_ring(std::get<RingStep>(step.what), step.head, context);
  }
}

// Steps first ... last; loop_index has the loops around them.
void run_steps(const ParsedProgram& program, size_t first, size_t last, RunContext& context,
               std::vector<int64_t>& loop_index, bool profile, Totals& totals,
               StepObserver* observer) {
  using Clock = std::chrono::steady_clock;
  for (size_t i = first; i < last; i++) {
    const ProgramStep& step = program.steps[i];
    if (step.head.kind == LOOP_BEGIN) {
      const LoopStep& loop = std::get<LoopStep>(step.what);
      loop_index.push_back(0);
      for (; loop_index.back() < loop.count; ++loop_index.back()) {
        run_steps(program, i + 1, loop.end, context, loop_index, profile, totals, observer);
      }
      loop_index.pop_back();
      i = loop.end - 1;
      continue;
    }
    context.loop_index = loop_index;
    if (observer) observer->before(i, loop_index);
    if (!profile) {
      run_step(step, context);
      totals += step.totals;
      continue;
    }
    const auto begin = Clock::now();
    run_step(step, context);
    totals += step.totals;
    note_step(program, i, std::chrono::duration<double>(Clock::now() - begin).count());
  }
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

const char* step_kind_name(int64_t kind) {
  switch (kind) {
    case TILE:
      return "tile";
    case MATMUL:
    case CHOSEN_MATMUL:
      return "matmul";
    case COPY_STEP:
      return "copy";
    case GATHER:
      return "gather";
    case SCATTER:
      return "scatter";
    case TOPK:
      return "topk";
    case RING:
      return "ring";
    default:
      return "loop";
  }
}

std::shared_ptr<const ParsedProgram> parse_program(const Program& program) {
  return Parser(program).parse();
}

void run_program(const ParsedProgram& program, std::span<const Address> arguments,
                 const RunEnvironment& environment, Counters* counters, StepObserver* observer) {
  RunContext context{environment, arguments, {}};
  std::vector<int64_t> loop_index;
  loop_index.reserve(kMaxLoops);
  Totals totals;
  // What has run counts, also when a step after it fails.
  const auto count = [&] {
    if (counters != nullptr) counters->add(totals);
  };
  try {
    run_steps(program, 0, program.steps.size(), context, loop_index, is_profiling_steps(), totals,
              observer);
  } catch (...) {
    count();
    throw;
  }
  count();
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
