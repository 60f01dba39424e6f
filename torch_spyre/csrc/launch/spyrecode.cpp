#include "launch/spyrecode.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <iterator>
#include <utility>

#include "card/program/program.h"
#include "launch/json.h"

namespace spyre {
namespace {

namespace fs = std::filesystem;
using Bytes = std::vector<std::byte>;

// ---- Files ------------------------------------------------------------------------------------

bool is_file(const fs::path& path) {
  std::error_code ignored;
  return fs::is_regular_file(path, ignored);
}

template <typename Container>
Container read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  const auto size = static_cast<std::streamoff>(file.tellg());
  Container content(size > 0 ? static_cast<size_t>(size) : 0, typename Container::value_type{});
  file.seekg(0);
  file.read(reinterpret_cast<char*>(content.data()), static_cast<std::streamsize>(content.size()));
  TORCH_CHECK(file.good(), "cannot read ", path.string());
  return content;
}

// ---- The manifest -----------------------------------------------------------------------------

// One entry of a plan in the manifest. Its errors say which.
class Entry {
 public:
  Entry(std::string where, const Json& json) : where_(std::move(where)) {
    TORCH_CHECK(json.object(), where_, ": expected an object, found ", json.describe());
    command_ = text_of(member(json, "command", "entry"), "command");
    const Json& properties = member(json, "properties", command_ + " command");
    TORCH_CHECK(properties.object(), where_, ": 'properties' of ", command_,
                " must be an object, found ", properties.describe());
    properties_ = &properties;
  }

  const std::string& command() const { return command_; }

  template <typename... Text>
  void check(bool condition, const Text&... text) const {
    TORCH_CHECK(condition, where_, ": ", command_, ": ", text...);
  }

  const Json& property(const char* name) const {
    return member(*properties_, name, command_ + " command");
  }

  const std::string& text(const char* name) const { return text_of(property(name), name); }

  uint64_t number(const char* name) const { return number_of(property(name), name); }

  size_t size(const char* name) const {
    const uint64_t bytes = number(name);
    check(bytes > 0, "'", name, "' is '0'; allowed: 1 byte or more");
    return bytes;
  }

  // Where a pointer into the program segment leads to in the allocation.
  size_t offset(const char* name, size_t bytes, size_t allocation) const {
    const uint64_t pointer = number(name);
    const std::string shown = "'" + std::string(name) + "' = '" + std::to_string(pointer) + "' (" +
                              card::hex_address(pointer) + ")";
    check(pointer >= card::kProgramSegment && pointer < card::kProgramSegmentEnd, shown,
          " is out of the program segment; allowed: [", card::hex_address(card::kProgramSegment),
          ", ", card::hex_address(card::kProgramSegmentEnd), ")");
    const uint64_t offset = pointer - card::kProgramSegment;
    check(offset <= allocation && bytes <= allocation - offset, shown, " with ", bytes,
          bytes == 1 ? " byte" : " bytes", " goes beyond the allocation; allowed: up to ",
          card::hex_address(card::kProgramSegment + allocation), " (", allocation,
          " bytes allocated)");
    return offset;
  }

  uint64_t number_of(const Json& json, const std::string& name) const {
    const std::string* text = json.string();
    const bool digits =
        text && !text->empty() &&
        std::all_of(text->begin(), text->end(), [](char c) { return c >= '0' && c <= '9'; });
    check(digits, "'", name, "' must be a decimal string like \"128\", found ", json.describe());
    uint64_t value = 0;
    auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), value);
    check(error == std::errc{}, "'", name, "' does not fit 64 bits, found ", json.describe());
    return value;
  }

 private:
  const Json& member(const Json& json, const char* name, const std::string& owner) const {
    const Json* found = json.find(name);
    TORCH_CHECK(found, where_, ": ", owner, " missing '", name, "' property; found: ", keys(json));
    return *found;
  }

  const std::string& text_of(const Json& json, const char* name) const {
    TORCH_CHECK(json.string(), where_, ": '", name, "' must be a string, found ", json.describe());
    return *json.string();
  }

  static std::string keys(const Json& json) {
    std::string list;
    for (const auto& found : *json.object()) list += (list.empty() ? "" : ", ") + found.key;
    return list.empty() ? "nothing" : list;
  }

  std::string where_;
  std::string command_;
  const Json* properties_ = nullptr;
};

std::vector<Entry> read_entries(const Json& manifest, const char* name, const std::string& file) {
  const Json* found = manifest.find(name);
  TORCH_CHECK(found && found->array(), file, ": missing '", name, "' array; found ",
              found ? found->describe() : "nothing of that name");
  std::vector<Entry> entries;
  for (const Json& json : *found->array()) {
    entries.emplace_back(file + ": " + name + "[" + std::to_string(entries.size()) + "]", json);
  }
  return entries;
}

void read_allocate(const Entry& entry, Recipe& recipe) {
  const size_t size = entry.size("size");
  constexpr size_t kLargest = card::kProgramSegmentEnd - card::kProgramSegment;
  entry.check(size <= kLargest, "'size' = '", size,
              "' is more than the program segment; allowed: ", "up to ", kLargest, " bytes");
  recipe.allocation_size = size;
}

void read_init_transfer(const Entry& entry, const fs::path& directory, Recipe& recipe) {
  const std::string& name = entry.text("init_bin_file");
  const size_t size = entry.size("size");
  const size_t offset = entry.offset("dev_ptr", size, recipe.allocation_size);
  entry.check(!name.empty() && fs::path(name).filename() == name, "'init_bin_file' = '", name,
              "' must be the name of a file next to spyrecode.json");
  const fs::path path = directory / name;
  entry.check(is_file(path), "'init_bin_file' = '", name, "': file not found in ",
              directory.string());
  auto bytes = std::make_shared<const Bytes>(read_file<Bytes>(path));
  entry.check(bytes->size() == size, "'init_bin_file' = '", name, "' has ", bytes->size(),
              " bytes, but 'size' is '", size, "'; both must agree");
  recipe.inits.push_back({offset, std::move(bytes)});
}

void read_preparation(const std::vector<Entry>& entries, const std::string& file,
                      const fs::path& directory, Recipe& recipe) {
  TORCH_CHECK(entries.size() >= 2, file, ": JobPreparationPlan has ", entries.size(),
              " entries; allowed: one Allocate, then one InitTransfer or more");
  for (size_t i = 0; i < entries.size(); i++) {
    const Entry& entry = entries[i];
    const char* expected = i == 0 ? "Allocate" : "InitTransfer";
    const bool known = entry.command() == "Allocate" || entry.command() == "InitTransfer";
    entry.check(known, "Unknown SpyreCode command type '", entry.command(),
                "'; allowed here: ", expected);
    entry.check(entry.command() == expected, "expected ", expected, " at this place, found ",
                entry.command());
    i == 0 ? read_allocate(entry, recipe) : read_init_transfer(entry, directory, recipe);
  }
}

std::string list_handles(const Recipe& recipe) {
  std::string list;
  for (const auto& buffer : recipe.buffers) list += (list.empty() ? "" : ", ") + buffer.handle;
  return list.empty() ? "none" : list;
}

size_t new_buffer(const Entry& entry, const char* property, size_t size, Recipe& recipe) {
  const std::string& handle = entry.text(property);
  entry.check(!handle.empty(), "'", property, "' is ''; allowed: the name of a new buffer");
  entry.check(!recipe.find_buffer(handle), property, " '", handle,
              "' must be new, but an earlier step has made it; known: ", list_handles(recipe));
  recipe.buffers.push_back({handle, size, {}});
  return recipe.buffers.size() - 1;
}

size_t known_buffer(const Entry& entry, const char* property, const Recipe& recipe) {
  const std::string& handle = entry.text(property);
  auto found = recipe.find_buffer(handle);
  entry.check(found.has_value(), property, " '", handle,
              "' not found in pinned buffer map; known: ", list_handles(recipe));
  return *found;
}

// True when the shape is ["0"]: no input.
bool read_empty_shape(const Entry& entry) {
  const Json& shape = entry.property("ishape");
  entry.check(shape.array(), "'ishape' must be an array, found ", shape.describe());
  bool empty = shape.array()->size() == 1;
  for (const Json& element : *shape.array()) {
    entry.check(element.string(), "'ishape' elements must be strings, found ", element.describe());
    empty = entry.number_of(element, "ishape") == 0 && empty;
  }
  return empty;
}

Step read_host_compute(const Entry& entry, Recipe& recipe) {
  Step step{.type = StepType::HOST_COMPUTE, .size = entry.size("size")};
  const Json& hcm = entry.property("hcm");
  entry.check(hcm.object(), "'hcm' must be an object, found ", hcm.describe());
  const bool empty_shape = read_empty_shape(entry);
  if (!entry.text("ihandle").empty()) {
    step.input = HostInput::BUFFER;
    step.input_buffer = known_buffer(entry, "ihandle", recipe);
    const size_t input_size = recipe.buffers[step.input_buffer].size;
    entry.check(input_size <= step.size, "the buffer of 'ihandle' has ", input_size,
                " bytes; allowed: up to 'size' = '", step.size, "'");
  } else {
    step.input = empty_shape ? HostInput::NOTHING : HostInput::ADDRESSES;
  }
  step.buffer = new_buffer(entry, "ohandle", step.size, recipe);
  return step;
}

Step read_transfer(const Entry& entry, Recipe& recipe) {
  const std::string& direction = entry.text("dirn");
  entry.check(direction == "true" || direction == "false", "'dirn' = '", direction,
              "'; allowed: 'false' (host to device), 'true' (device to host)");
  Step step{.type = direction == "true" ? StepType::D2H : StepType::H2D};
  step.size = entry.size("size");
  step.offset = entry.offset("dev_ptr", step.size, recipe.allocation_size);
  if (step.type == StepType::D2H) {
    step.buffer = new_buffer(entry, "host_handle", step.size, recipe);
    return step;
  }
  step.buffer = known_buffer(entry, "host_handle", recipe);
  const auto& buffer = recipe.buffers[step.buffer];
  entry.check(step.size <= buffer.size, "'size' = '", step.size, "', but buffer '", buffer.handle,
              "' has ", buffer.size, " bytes");
  return step;
}

Step read_step(const Entry& entry, Recipe& recipe) {
  if (entry.command() == "ComputeOnHost") return read_host_compute(entry, recipe);
  if (entry.command() == "DataTransfer") return read_transfer(entry, recipe);
  entry.check(entry.command() == "ComputeOnDevice", "Unknown SpyreCode command type '",
              entry.command(), "'; allowed here: ComputeOnDevice, ComputeOnHost, DataTransfer");
  Step step{.type = StepType::COMPUTE};
  step.offset = entry.offset("job_bin_ptr", 1, recipe.allocation_size);
  return step;
}

// A program that is corrected by the host must be corrected before it runs.
void check_order(const std::vector<Step>& steps, const std::string& file) {
  if (steps.empty() || steps[0].type != StepType::HOST_COMPUTE) return;
  constexpr std::pair<size_t, StepType> kExpected[] = {{1, StepType::H2D}, {2, StepType::COMPUTE}};
  for (auto [index, type] : kExpected) {
    TORCH_CHECK(index < steps.size() && steps[index].type == type, file, ": JobExecPlan[", index,
                "]: a plan that begins with HostCompute goes on with H2D, then Compute; expected ",
                name(type), ", found ", index < steps.size() ? name(steps[index].type) : "the end");
  }
}

}  // namespace

const char* name(StepType type) {
  constexpr const char* kNames[] = {"H2D", "D2H", "Compute", "HostCompute"};
  return kNames[static_cast<int>(type)];
}

Recipe read_spyrecode(const fs::path& directory) {
  std::error_code ignored;
  TORCH_CHECK(fs::is_directory(directory, ignored), "SpyreCode directory does not exist: '",
              directory.string(), "'");
  const fs::path path = directory / "spyrecode.json";
  TORCH_CHECK(is_file(path), "Required file spyrecode.json not found in '", directory.string(),
              "'");
  const std::string file = path.string();
  Json manifest;
  try {
    manifest = parse_json(read_file<std::string>(path));
  } catch (const JsonError& error) {
    TORCH_CHECK(false, file, ": not valid JSON: ", error.what());
  }
  const auto preparation = read_entries(manifest, "JobPreparationPlan", file);
  const auto execution = read_entries(manifest, "JobExecPlan", file);
  Recipe recipe;
  read_preparation(preparation, file, directory, recipe);
  for (const Entry& entry : execution) recipe.steps.push_back(read_step(entry, recipe));
  check_order(recipe.steps, file);
  return recipe;
}

Recipe read_hex_kernel(const fs::path& directory, const std::string& directory_name) {
  std::error_code ignored;
  TORCH_CHECK(fs::is_directory(directory, ignored), "kernel directory does not exist: '",
              directory.string(), "'");
  TORCH_CHECK(is_file(directory / "bundle.mlir"), "Required file bundle.mlir not found in '",
              directory.string(), "'");
  const fs::path path =
      directory / "loadprogram_to_device" / (directory_name + "-SenProgSend") / "init.txt";
  TORCH_CHECK(is_file(path), "Required file init.txt not found: '", path.string(), "'");
  auto bytes = card::parse_hex_program(read_file<std::string>(path), path.string());
  Recipe recipe;
  recipe.allocation_size = bytes.size();
  recipe.inits.push_back({0, std::make_shared<const Bytes>(std::move(bytes))});
  recipe.steps.push_back({.type = StepType::COMPUTE});
  return recipe;
}

}  // namespace spyre
