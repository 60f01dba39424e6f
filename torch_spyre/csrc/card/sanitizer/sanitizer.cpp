// In reading order: findings, the sanitizer of a card, a launch.
#include "sanitizer/sanitizer.h"

#include <algorithm>

#include "sanitizer/shadow_run.h"

namespace spyre::card {
namespace {

constexpr size_t kMostFindings = 20;  // of one launch

std::string joined(const std::vector<Finding>& findings) {
  std::string text = "the sanitizer found " + std::to_string(findings.size()) +
                     (findings.size() == 1 ? " fault" : " faults");
  for (const Finding& finding : findings) text += "\n" + finding.text();
  return text;
}

std::atomic<int64_t> launches_followed{0}, launches_known{0}, findings_raised{0};
std::mutex all_mutex;  // guards the list
std::vector<Sanitizer*>& all_sanitizers() {
  static auto* list = new std::vector<Sanitizer*>();
  return *list;
}

}  // namespace

std::string Finding::text() const {
  std::string text = kernel + ": " + operation + " " + what;
  text += "\n    tensor   " + tensor + "\n    address  " + address;
  if (core >= 0) text += "\n    core     " + std::to_string(core);
  if (!source.empty()) text += "\n    source   " + source;
  text += "\n    written  " + last_writer;
  return text;
}

SanitizerFindings::SanitizerFindings(std::vector<Finding> found)
    : std::runtime_error(joined(found)), findings(std::move(found)) {}

namespace {
std::atomic<void (*)(const SanitizerFindings&)> raise_instead{nullptr};
}

void set_raise_findings(void (*raise)(const SanitizerFindings& findings)) { raise_instead = raise; }

void raise_findings(std::vector<Finding> findings) {
  findings_raised += static_cast<int64_t>(findings.size());
  const SanitizerFindings found(std::move(findings));
  if (auto* raise = raise_instead.load()) raise(found);
  throw found;
}

// ---- The sanitizer of a card --------------------------------------------------------------------

Sanitizer::Sanitizer(int card, Memory& memory, std::span<std::byte* const> lx, size_t lx_bytes,
                     int64_t span_bytes)
    : memory_(memory),
      base_(base_address(card)),
      lx_(lx),
      lx_bytes_(lx_bytes),
      span_bytes_(span_bytes) {}

Sanitizer::~Sanitizer() { disable(); }

void Sanitizer::enable() {
  if (is_enabled()) return;
  if (!device_) {
    device_ = std::make_unique<Shadow>(memory_.capacity());
    for (size_t core = 0; core < lx_.size(); core++) {
      scratchpads_.push_back(std::make_unique<Shadow>(lx_bytes_));
    }
  }
  const StickState known{Bits::full(), BEFORE, 0, 0};
  for (const auto& [address, bytes] : memory_.blocks()) {
    device_->fill(offset_of(address), bytes, known);
  }
  for (const auto& scratchpad : scratchpads_) scratchpad->fill(0, lx_bytes_, known);
  memory_.set_watcher(this);
  {
    std::lock_guard lock(all_mutex);
    all_sanitizers().push_back(this);
    static auto* checker = new CopyChecker();
    set_copy_observer(checker);
  }
  enabled_.store(true, std::memory_order_release);
}

void Sanitizer::disable() {
  if (!is_enabled()) return;
  enabled_.store(false, std::memory_order_release);
  memory_.set_watcher(nullptr);
  std::lock_guard lock(all_mutex);
  std::erase(all_sanitizers(), this);
  if (all_sanitizers().empty()) set_copy_observer(nullptr);
  device_->clear();
  for (const auto& scratchpad : scratchpads_) scratchpad->clear();
}

Sanitizer* Sanitizer::find(const std::byte* memory) {
  std::lock_guard lock(all_mutex);
  for (Sanitizer* sanitizer : all_sanitizers()) {
    const std::byte* first = sanitizer->memory_.host(sanitizer->base_);
    if (memory >= first && memory < first + sanitizer->memory_.capacity()) return sanitizer;
  }
  return nullptr;
}

void Sanitizer::allocated(Address address, size_t bytes) {
  device_->forget(offset_of(address), bytes);
}

void Sanitizer::freed(Address address, size_t bytes) {
  // Large ones are not remembered: who reads them reads memory that no tensor has.
  constexpr size_t kRemembered = 16 << 20;
  if (bytes > kRemembered) return device_->forget(offset_of(address), bytes);
  device_->fill(offset_of(address), bytes, {{}, FREED, 0, 0});
}

uint32_t Sanitizer::new_run(const std::string& who) {
  std::lock_guard lock(mutex_);
  const auto [entry, is_new] = name_numbers_.try_emplace(who, static_cast<uint32_t>(names_.size()));
  if (is_new) names_.push_back(who);
  runs_.push_back(entry->second);
  return static_cast<uint32_t>(FIRST_RUN + runs_.size() - 1);
}

std::string Sanitizer::describe_run(uint32_t run, int core) const {
  switch (run) {
    case NOBODY:
      return "by nobody since it was allocated";
    case BEFORE:
      return "before the sanitizer was on";
    case FREED:
      return "by nobody: the tensor that had this memory was freed";
    default:
      break;
  }
  return "by " + name_of_run(run) + (core == kNoCore ? "" : ", core " + std::to_string(core));
}

std::string Sanitizer::name_of_run(uint32_t run) const {
  std::lock_guard lock(mutex_);
  return names_[runs_[run - FIRST_RUN]];
}

// ---- Plans -------------------------------------------------------------------------------------

std::vector<Finding> check_plan(const std::string& kernel, const ProgramNames& names) {
  std::vector<Finding> findings;
  for (const ProgramNames::Buffer& late : names.buffers) {
    for (const ProgramNames::Buffer& kept : names.buffers) {
      // The operation that reads the one for the last time may write the other: in place.
      const bool meets = late.begins && kept.first < late.first && late.first < kept.last;
      if (!meets || late.name == kept.name || !late.overlaps(kept)) continue;
      const ProgramNames::Operation& writer = names.operations[late.first];
      const ProgramNames::Operation& reader = names.operations[kept.last];
      Finding finding;
      finding.what = "writes an intermediate where another one is still needed: " + kept.name +
                     " is read by " + reader.name;
      finding.kernel = kernel;
      finding.operation = writer.name;
      finding.source = writer.source;
      finding.tensor = late.name + (late.space == Space::LX ? " in LX" : " in the pool");
      finding.address = std::to_string(late.offset) + " to " +
                        std::to_string(late.offset + late.bytes) + ", " + kept.name + " has " +
                        std::to_string(kept.offset) + " to " +
                        std::to_string(kept.offset + kept.bytes);
      finding.last_writer = "by " + names.operations[kept.first].name + ", as " + kept.name;
      if (findings.size() < kMostFindings) findings.push_back(std::move(finding));
    }
  }
  return findings;
}

// ---- A launch -----------------------------------------------------------------------------------

CheckedLaunch::CheckedLaunch(Sanitizer& sanitizer, std::shared_ptr<const CheckedProgram> program,
                             std::span<const Address> arguments)
    : sanitizer_(sanitizer),
      program_(std::move(program)),
      arguments_(arguments.begin(), arguments.end()),
      written_(arguments.size()),
      written_lx_(sanitizer.scratchpads()),
      number_(sanitizer.new_launch()),
      first_run_(sanitizer.new_run("the begin of " + program_->kernel)) {
  findings_ = program_->plan;
  for (Address address : arguments_) {
    Range range{&sanitizer_.device(), 0, 0};
    if (const Block* block = address ? sanitizer_.memory().find(address) : nullptr) {
      range.low = static_cast<int64_t>(sanitizer_.offset_of(address));
      range.high = static_cast<int64_t>(sanitizer_.offset_of(block->address) + block->size);
    }
    blocks_.push_back(range);
  }
  for (Address address : arguments_) {
    const auto first = std::find(arguments_.begin(), arguments_.end(), address);
    same_as_.push_back(static_cast<int>(first - arguments_.begin()));
  }
  const int pool = program_->names.pool;
  if (program_->program->is_decided) {
    std::vector<int64_t> own_kind = kind();
    known_ = program_->known.find(own_kind, blocks_);
    if (known_) return;
    recorder_ = LaunchRecorder(std::move(own_kind), blocks_, pool);
  }
  if (pool >= 0 && static_cast<size_t>(pool) < blocks_.size()) {
    const Range& range = blocks_[pool];
    sanitizer_.device().forget(range.low, range.high - range.low);
  }
  if (program_->reference) find_reference_tags();
}

uint64_t CheckedLaunch::seed_of(int argument) const {
  constexpr uint64_t kArguments = 1 << 20;  // after those of scratchpads
  return kArguments + same_as_[argument];
}

std::vector<int64_t> CheckedLaunch::kind() const {
  std::vector<int64_t> kind;
  for (size_t i = 0; i < blocks_.size(); i++) {
    kind.push_back(blocks_[i].high - blocks_[i].low);
    kind.push_back(same_as_[i]);
  }
  return kind;
}

void CheckedLaunch::find_reference_tags() {
  auto tags = std::make_shared<ReferenceTags>();
  tags->launch = kind();
  if (program_->reference_tags && program_->reference_tags->launch == tags->launch) return;
  std::vector<int64_t> loop_index;
  run_reference(0, program_->reference->steps.size(), loop_index);
  for (size_t i = 0; i < written_.size(); i++) {
    tags->arguments.push_back(read_reference(written_[i], blocks_[i].low));
    written_[i] = {};
  }
  for (Range& range : written_lx_) {
    tags->scratchpads.push_back(read_reference(range, 0));
    range = {};
  }
  program_->reference_tags = std::move(tags);
}

ReferenceTags::Piece CheckedLaunch::read_reference(const Range& range, int64_t start) const {
  ReferenceTags::Piece piece;
  if (range.shadow == nullptr) return piece;
  piece.low = range.low - start;
  for (int64_t at = range.low; at < range.high; at += kStickBytes) {
    const size_t stick = at / kStickBytes;
    piece.written.push_back(range.shadow->has_tag(Flow::REFERENCE, stick, number_));
    piece.tags.push_back(range.shadow->tag(Flow::REFERENCE, stick, number_, 0));
  }
  return piece;
}

void CheckedLaunch::run_reference(size_t first, size_t last, std::vector<int64_t>& loop_index) {
  const std::vector<ShadowStep>& steps = program_->reference->steps;
  for (size_t i = first; i < last; i++) {
    const auto* loop = std::get_if<ShadowLoop>(&steps[i].what);
    if (loop == nullptr) {
      ShadowRun(*this, Flow::REFERENCE, i, steps[i], loop_index).run();
      continue;
    }
    loop_index.push_back(0);
    for (; loop_index.back() < loop->count; ++loop_index.back()) {
      run_reference(i + 1, loop->end, loop_index);
    }
    loop_index.pop_back();
    i = loop->end - 1;
  }
}

void CheckedLaunch::before(size_t step, std::span<const int64_t> loop_index) {
  if (known_) return;
  ShadowRun(*this, Flow::PROGRAM, step, program_->program->steps[step], loop_index).run();
  if (must_stop_) raise_findings(findings_);
}

void CheckedLaunch::finish() {
  (known_ ? launches_known : launches_followed)++;
  if (known_) return known_->leave(sanitizer_, blocks_, number_);
  if (findings_.empty() && program_->reference) compare_flows();
  if (!findings_.empty()) raise_findings(findings_);
  auto known = recorder_.finish(sanitizer_, first_run_, written_, written_lx_);
  if (known) program_->known.add(std::move(known));
}

// Where an intermediate begins its life in the pool or in a scratchpad, what was there before is
// gone: who still wants it has lost it. One that is never stored takes no memory away.
void CheckedLaunch::begin_buffer(size_t step, const ProgramNames::Buffer& buffer) {
  if (program_->program->steps[step].head.loops > 0) return;  // it may last from turn to turn
  // The first step that writes it: not always that of its first operation, of several that write
  // parts of it a later one may be joined to an earlier step.
  if (!buffer.begins || !begun_.insert(number_of(buffer)).second) return;
  // Where two of one step share memory, the first is read before the second is written.
  for (const ProgramNames::Buffer* other : buffers_of(step)) {
    if (other != &buffer && other->overlaps(buffer)) return;
  }
  if (buffer.space == Space::LX) {
    const auto number = static_cast<uint16_t>(number_of(buffer));
    for (int core = 0; core < sanitizer_.scratchpads(); core++) {
      sanitizer_.scratchpad(core).fill(buffer.offset, buffer.bytes, begun_stick(number_, number));
    }
    recorder_.begins({buffer.offset, buffer.bytes, number});
    return;
  }
  const Range& block = blocks_[buffer.argument];
  const int64_t bytes = std::min(buffer.bytes, block.high - block.low - buffer.offset);
  if (bytes > 0) sanitizer_.device().forget(block.low + buffer.offset, bytes);
}

// What the program leaves must have been made, stick by stick, from the same sticks by the
// same operations as the bundle says.
void CheckedLaunch::compare_flows() {
  const ReferenceTags& wanted = *program_->reference_tags;
  for (size_t i = 0; i < written_.size(); i++) {
    if (static_cast<int>(i) == program_->names.pool) continue;
    compare_range(written_[i], wanted.arguments[i], static_cast<int>(i), kNoCore);
  }
  for (size_t core = 0; core < written_lx_.size(); core++) {
    compare_range(written_lx_[core], wanted.scratchpads[core], -1, static_cast<int>(core));
  }
}

void CheckedLaunch::compare_range(const Range& range, const ReferenceTags::Piece& piece,
                                  int argument, int core) {
  const int64_t start = argument < 0 ? 0 : blocks_[argument].low;
  const auto sticks = static_cast<int64_t>(piece.tags.size());
  int64_t low = start + piece.low, high = low + sticks * kStickBytes;
  if (range.shadow != nullptr) {
    low = sticks == 0 ? range.low : std::min(low, range.low);
    high = sticks == 0 ? range.high : std::max(high, range.high);
  }
  Shadow& shadow = argument < 0 ? sanitizer_.scratchpad(core) : sanitizer_.device();
  const uint64_t seed = argument < 0 ? core : seed_of(argument);
  for (int64_t at = low; at < high; at += kStickBytes) {
    const size_t stick = at / kStickBytes;
    const int64_t in_piece = (at - start - piece.low) / kStickBytes;
    const uint64_t initial = mix(seed, (at - start) / kStickBytes);
    const bool found = shadow.has_tag(Flow::PROGRAM, stick, number_);
    const bool wanted = at >= start + piece.low && in_piece < sticks && piece.written[in_piece];
    const uint64_t wanted_tag = wanted ? piece.tags[in_piece] : initial;
    if (shadow.tag(Flow::PROGRAM, stick, number_, initial) == wanted_tag) continue;
    const StickState& state = shadow.state(stick);
    Finding finding;
    finding.what = !found    ? "does not write a stick that its operations write"
                   : !wanted ? "writes a stick that none of its operations writes"
                             : "leaves a stick that was made of other sticks, or by other "
                               "operations, than the bundle says";
    finding.kernel = program_->kernel;
    finding.operation = "the program";
    finding.core = found ? state.core : -1;
    const bool in_lx = argument < 0;
    const int64_t within = in_lx ? at : at - blocks_[argument].low;
    finding.tensor = tensor_name(in_lx ? Space::LX : Space::ARGUMENT, argument, nullptr);
    finding.address =
        in_lx ? "LX + " + std::to_string(at) + " of core " + std::to_string(core)
              : hex_address(sanitizer_.address_of(at)) + " (+" + std::to_string(within) + ")";
    finding.last_writer = sanitizer_.describe_run(state.run, state.core);
    report(std::move(finding), argument);
  }
}

void CheckedLaunch::report(Finding finding, int64_t key) {
  if (!reported_.emplace(finding.what, finding.operation, key).second) return;
  if (findings_.size() < kMostFindings) findings_.push_back(std::move(finding));
}

std::string CheckedLaunch::step_name(size_t step) const {
  return program_->program->steps[step].head.name;
}

std::string CheckedLaunch::step_source(size_t step) const {
  std::string text;
  if (step >= program_->names.steps.size()) return text;
  std::set<std::string> seen;
  for (int number : program_->names.steps[step]) {
    const std::string& source = program_->names.operations[number].source;
    if (source.empty() || !seen.insert(source).second) continue;
    text += (text.empty() ? "" : "\n             ") + source;
  }
  return text;
}

std::vector<const ProgramNames::Buffer*> CheckedLaunch::buffers_of(size_t step) const {
  std::vector<const ProgramNames::Buffer*> found;
  if (step >= program_->names.steps.size() || program_->names.steps[step].empty()) return found;
  const auto& operations = program_->names.steps[step];
  const auto [low, high] = std::minmax_element(operations.begin(), operations.end());
  for (const ProgramNames::Buffer& buffer : program_->names.buffers) {
    if (buffer.first <= *high && buffer.last >= *low) found.push_back(&buffer);
  }
  return found;
}

const ProgramNames::Buffer* CheckedLaunch::buffer_at(size_t step, Space space, int argument,
                                                     int64_t offset) const {
  const ProgramNames::Buffer* found = nullptr;
  for (const ProgramNames::Buffer* buffer : buffers_of(step)) {
    if (buffer->space != space || (space == Space::ARGUMENT && buffer->argument != argument)) {
      continue;
    }
    if (offset < buffer->offset || offset >= buffer->offset + buffer->bytes) continue;
    if (found != nullptr) return nullptr;
    found = buffer;
  }
  return found;
}

bool CheckedLaunch::knows_buffers(Space space, int argument) const {
  return std::any_of(program_->names.buffers.begin(), program_->names.buffers.end(),
                     [&](const ProgramNames::Buffer& buffer) {
                       return buffer.space == space &&
                              (space == Space::LX || buffer.argument == argument);
                     });
}

int CheckedLaunch::number_of(const ProgramNames::Buffer& buffer) const {
  return static_cast<int>(&buffer - program_->names.buffers.data()) + 1;
}

std::string CheckedLaunch::tensor_name(Space space, int argument,
                                       const ProgramNames::Buffer* buffer) const {
  if (buffer != nullptr) return buffer->name + (space == Space::LX ? " in LX" : " in the pool");
  if (space == Space::LX) return "a buffer in LX";
  if (space == Space::DEVICE) return "an address of the program";
  const auto& names = program_->names.arguments;
  const std::string number = "argument " + std::to_string(argument);
  if (static_cast<size_t>(argument) < names.size()) return names[argument] + " (" + number + ")";
  return number;
}

SanitizerCounts sanitizer_counts() {
  return {launches_followed.load(), launches_known.load(), findings_raised.load()};
}

bool is_sanitizing() { return copy_observer() != nullptr; }

}  // namespace spyre::card
