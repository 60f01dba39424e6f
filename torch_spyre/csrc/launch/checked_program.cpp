#include "launch/checked_program.h"

#include <c10/util/Exception.h>

#include <charconv>
#include <fstream>
#include <iterator>
#include <optional>
#include <vector>

#include "launch/json.h"

namespace spyre {
namespace {

namespace fs = std::filesystem;
constexpr int64_t kNamesVersion = 1;

std::optional<std::string> read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return std::nullopt;
  return std::string(std::istreambuf_iterator<char>(file), {});
}

// Reads the values of one names.json; what is wrong is an error with its path.
class NamesReader {
 public:
  explicit NamesReader(std::string path) : path_(std::move(path)) {}

  void read(std::string_view text, card::CheckedProgram& program) const {
    Json json;
    try {
      json = parse_json(text);
    } catch (const JsonError& error) {
      TORCH_CHECK(false, path_, ": ", error.what());
    }
    const int64_t version = number(json, "version");
    TORCH_CHECK(version == kNamesVersion, path_, ": version ", version,
                ", allowed: ", kNamesVersion, "; compile the kernel again");
    card::ProgramNames& names = program.names;
    program.kernel = text_of(json, "kernel");
    names.pool = static_cast<int>(number(json, "pool"));
    for (const Json& name : list(json, "arguments")) {
      TORCH_CHECK(name.string(), path_, ": arguments: found ", name.describe());
      names.arguments.push_back(*name.string());
    }
    for (const Json& operation : list(json, "operations")) {
      names.operations.push_back({text_of(operation, "name"), text_of(operation, "source")});
    }
    const auto operations = static_cast<int64_t>(names.operations.size());
    for (const Json& step : list(json, "steps")) {
      TORCH_CHECK(step.array(), path_, ": steps: found ", step.describe());
      std::vector<int>& members = names.steps.emplace_back();
      for (const Json& member : *step.array()) {
        const int64_t value = to_number(member, "steps");
        TORCH_CHECK(value >= 0 && value < operations, path_, ": steps: operation ", value, " of ",
                    operations);
        members.push_back(static_cast<int>(value));
      }
    }
    for (const Json& buffer : list(json, "buffers")) {
      names.buffers.push_back(
          {text_of(buffer, "name"),
           text_of(buffer, "space") == "lx" ? card::Space::LX : card::Space::ARGUMENT, names.pool,
           number(buffer, "offset"), number(buffer, "bytes"),
           static_cast<int>(number(buffer, "first")), static_cast<int>(number(buffer, "last")),
           is_true(buffer, "begins")});
      const card::ProgramNames::Buffer& added = names.buffers.back();
      TORCH_CHECK(added.first >= 0 && added.first <= added.last && added.last < operations, path_,
                  ": buffers: ", added.name, " is used by operations ", added.first, " to ",
                  added.last, " of ", operations);
    }
  }

 private:
  const Json& member(const Json& json, const char* key) const {
    const Json* found = json.find(key);
    TORCH_CHECK(found, path_, ": found no '", key, "'");
    return *found;
  }
  const Json::Array& list(const Json& json, const char* key) const {
    const Json& found = member(json, key);
    TORCH_CHECK(found.array(), path_, ": '", key, "': found ", found.describe(),
                ", allowed: a list");
    return *found.array();
  }
  std::string text_of(const Json& json, const char* key) const {
    const Json& found = member(json, key);
    TORCH_CHECK(found.string(), path_, ": '", key, "': found ", found.describe(),
                ", allowed: a text");
    return *found.string();
  }
  bool is_true(const Json& json, const char* key) const {
    const Json& found = member(json, key);
    const bool* value = std::get_if<bool>(&found.value);
    TORCH_CHECK(value, path_, ": '", key, "': found ", found.describe(), ", allowed: true, false");
    return *value;
  }
  int64_t number(const Json& json, const char* key) const {
    return to_number(member(json, key), key);
  }
  int64_t to_number(const Json& json, const char* key) const {
    const auto* number = std::get_if<Json::Number>(&json.value);
    int64_t value = 0;
    const bool is_whole =
        number &&
        std::from_chars(number->text.data(), number->text.data() + number->text.size(), value)
                .ptr == number->text.data() + number->text.size();
    TORCH_CHECK(is_whole, path_, ": '", key, "': found ", json.describe(),
                ", allowed: a whole number");
    return value;
  }

  std::string path_;
};

}  // namespace

std::vector<std::byte> read_program_to_check(const fs::path& directory) {
  if (directory.empty()) return {};
  const auto text = read_file(directory / "checked.bin");
  if (!text) return {};
  const auto bytes = std::as_bytes(std::span(text->data(), text->size()));
  return {bytes.begin(), bytes.end()};
}

std::shared_ptr<const card::CheckedProgram> read_checked_program(
    const fs::path& directory, const std::string& label, std::span<const std::byte> program) {
  auto checked = std::make_shared<card::CheckedProgram>();
  checked->kernel = label;
  checked->program = card::parse_shadow(program);
  if (directory.empty()) return checked;
  const fs::path names = directory / "names.json";
  if (const auto text = read_file(names)) NamesReader(names.string()).read(*text, *checked);
  checked->plan = card::check_plan(checked->kernel, checked->names);
  const fs::path reference = directory / "reference.bin";
  if (const auto text = read_file(reference)) {
    const auto bytes = std::as_bytes(std::span(text->data(), text->size()));
    try {
      card::parse_program({card::kProgramSegment, bytes});  // says what is wrong with it
    } catch (const card::ProgramError& error) {
      TORCH_CHECK(false, reference.string(), ": ", error.what());
    }
    checked->reference = card::parse_shadow(bytes);
  }
  return checked;
}

}  // namespace spyre
