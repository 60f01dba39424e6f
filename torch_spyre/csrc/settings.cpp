// Environment variables of the runtime: the one place where C++ reads them.

#include <c10/util/Exception.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdlib>
#include <optional>
#include <set>
#include <sstream>
#include <vector>

#include "card/matmul/winograd_pairs.h"
#include "runtime.h"

namespace spyre {
namespace {

constexpr int kCardSlots = 8;    // cards that one host can hold
constexpr int kEagerLimit = 64;  // see docs/decisions/0041

std::optional<std::string> env(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr || *value == '\0') return std::nullopt;
  return std::string(value);
}

std::optional<int64_t> parse_int(const std::string& text) {
  int64_t value = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::optional<int64_t> env_int(const char* name, int64_t low, int64_t high, const char* complaint) {
  auto text = env(name);
  if (!text) return std::nullopt;
  auto value = parse_int(*text);
  TORCH_CHECK_VALUE(value && *value >= low && *value <= high, complaint, ": ", name, "='", *text,
                    "'; allowed is a whole number from ", low, " to ", high);
  return value;
}

bool env_flag(const char* name, bool otherwise) {
  auto text = env(name);
  if (!text) return otherwise;
  std::string lower = *text;
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](unsigned char c) { return std::tolower(c); });
  if (lower == "0" || lower == "false" || lower == "off" || lower == "no") return false;
  if (lower == "1" || lower == "true" || lower == "on" || lower == "yes") return true;
  TORCH_CHECK_VALUE(false, "invalid ", name, " value: '", *text,
                    "'; allowed are 0/false/off and 1/true/on");
}

// "16G", "512M", "4096" (bytes); binary units.
size_t parse_size(const char* name, const std::string& text) {
  size_t digits = 0;
  while (digits < text.size() && std::isdigit(static_cast<unsigned char>(text[digits]))) digits++;
  auto value = parse_int(text.substr(0, digits));
  std::string unit = text.substr(digits);
  int shift = unit.empty()  ? 0
              : unit == "K" ? 10
              : unit == "M" ? 20
              : unit == "G" ? 30
              : unit == "T" ? 40
                            : -1;
  bool fits = value && shift >= 0 && *value > 0 && *value <= (int64_t{1} << 40 >> shift);
  TORCH_CHECK_VALUE(fits, "invalid ", name, " value: '", text,
                    "'; allowed is a size up to 1T such as 128G, 512M or a number of bytes");
  return static_cast<size_t>(*value) << shift;
}

// The entries of a list with commas, without spaces.
std::vector<std::string> split_list(const std::string& text) {
  std::vector<std::string> items;
  std::stringstream stream(text);
  std::string item;
  while (std::getline(stream, item, ',')) {
    item.erase(
        std::remove_if(item.begin(), item.end(), [](unsigned char c) { return std::isspace(c); }),
        item.end());
    items.push_back(item);
  }
  return items;
}

int count_listed_devices(const char* name, const std::string& text) {
  std::set<int64_t> indices;
  for (const auto& item : split_list(text)) {
    auto index = parse_int(item);
    TORCH_CHECK_VALUE(index && *index >= 0, "invalid ", name, " value: '", text,
                      "'; allowed is a comma separated list of card numbers such as 0,2");
    if (*index < kCardSlots) indices.insert(*index);
  }
  return static_cast<int>(indices.size());
}

// Which PCI addresses a container was given: as many cards.
int count_pci_devices(const char* name, const std::string& text) {
  std::set<std::string> addresses;
  for (const auto& item : split_list(text)) {
    bool is_address = !item.empty() && std::all_of(item.begin(), item.end(), [](unsigned char c) {
      return std::isxdigit(c) || c == ':' || c == '.';
    });
    TORCH_CHECK_VALUE(is_address, "invalid ", name, " value: '", text,
                      "'; allowed is a comma separated list of PCI addresses such as 0000:1a:00.0");
    addresses.insert(item);
  }
  return std::min(static_cast<int>(addresses.size()), kCardSlots);
}

// How many cards a list names; its older name and the one that OpenShift sets come after it.
std::optional<int> read_listed_devices() {
  for (const char* name : {"SPYRE_DEVICES", "SPYRE_VISIBLE_DEVICES"}) {
    if (auto text = env(name)) return count_listed_devices(name, *text);
  }
  const char* of_container = "PCIDEVICE_IBM_COM_AIU_PF";
  if (auto text = env(of_container)) return count_pci_devices(of_container, *text);
  return std::nullopt;
}

int read_device_count() {
  if (auto flex = env("FLEX_DEVICE")) {
    TORCH_CHECK_VALUE(*flex == "PF" || *flex == "VF" || *flex == "MOCK",
                      "invalid FLEX_DEVICE value: '", *flex,
                      "'; allowed are PF, VF and MOCK (all of them give emulated cards)");
  }
  auto world = env_int("AIU_WORLD_SIZE", 1, 1 << 20, "invalid AIU_WORLD_SIZE value");
  int wanted = world ? static_cast<int>(std::min<int64_t>(*world, kCardSlots)) : 1;
  auto listed = read_listed_devices();
  if (!listed) return wanted;
  return world ? std::min(*listed, wanted) : *listed;
}

}  // namespace

Settings read_settings() {
  Settings s;
  s.device_count = read_device_count();
  s.default_device =
      static_cast<int>(env_int("LOCAL_RANK", 0, 1 << 20, "invalid LOCAL_RANK value").value_or(0));
  s.cores = static_cast<int>(env_int("SENCORES", 1, hardware().cores, "invalid SENCORES value")
                                 .value_or(hardware().cores));
  auto memory = env("SPYRE_MEMORY");
  s.memory_bytes = memory ? parse_size("SPYRE_MEMORY", *memory) : hardware().memory_bytes;
  s.threads = static_cast<int>(
      env_int("SPYRE_NUM_THREADS", 1, 1024, "invalid SPYRE_NUM_THREADS value").value_or(0));
  if (auto mode = env("SPYRE_NUMERICS")) {
    TORCH_CHECK_VALUE(*mode == "dlfloat16" || *mode == "ieee", "invalid SPYRE_NUMERICS value: '",
                      *mode, "'; allowed are dlfloat16 and ieee");
    s.numerics = *mode == "ieee" ? card::Numerics::IEEE : card::Numerics::DLFLOAT16;
  }
  s.launch_blocking = env_flag("SPYRE_LAUNCH_BLOCKING", false);
  s.sanitize = env_flag("SPYRE_SANITIZE", false);
  s.translate = env_flag("SPYRE_TRANSLATE", true);
  s.pairs = env_flag("SPYRE_PAIRS", card::pairs_pay());
  s.downcast_warning = env_flag("TORCH_SPYRE_DOWNCAST_WARN", true);
  s.fallback_warning = env_flag("SPYRE_FALLBACK_WARN", true);
  if (auto place = env("SPYRE_EAGER")) {
    TORCH_CHECK_VALUE(*place == "card" || *place == "host", "invalid SPYRE_EAGER value: '", *place,
                      "'; allowed are card and host");
    s.eager_on_card = *place == "card";
  }
  s.eager_limit =
      static_cast<int>(env_int("SPYRE_EAGER_LIMIT", 0, 1 << 20, "invalid SPYRE_EAGER_LIMIT value")
                           .value_or(kEagerLimit));
  return s;
}

const Settings& settings() {
  static const Settings* s = new Settings(read_settings());
  return *s;
}

}  // namespace spyre
