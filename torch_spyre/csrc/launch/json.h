// A small strict JSON reader for the manifests that the runtime loads.
//
// In: the text of a file. Out: a tree of Json values, or a JsonError that names line, column and
// what was found. Strict: RFC 8259 in UTF-8 and nothing else, and a key may appear only once in an
// object. Numbers keep their text, so nothing is rounded.
//
//   Json json = parse_json(R"({"size": "128"})");
//   json.find("size")->string();  // pointer to "128"
#pragma once

#include <cstddef>
#include <stdexcept>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace spyre {

struct JsonError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct Json {
  struct Number {
    std::string text;
  };
  struct Member;
  using Array = std::vector<Json>;
  using Object = std::vector<Member>;

  std::variant<std::nullptr_t, bool, Number, std::string, Array, Object> value;

  // Null when the value is of another kind.
  const std::string* string() const { return std::get_if<std::string>(&value); }
  const Array* array() const { return std::get_if<Array>(&value); }
  const Object* object() const { return std::get_if<Object>(&value); }
  const Json* find(std::string_view key) const;  // null too when there is no such key

  std::string describe() const;  // for messages: "the number 128", "an array of 3 elements"
};

struct Json::Member {
  std::string key;
  Json value;
};

Json parse_json(std::string_view text);

}  // namespace spyre
