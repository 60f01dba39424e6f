#include "launch/json.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <utility>

namespace spyre {
namespace {

// Manifests are shallow; the limit keeps a hostile file from overflowing the stack.
constexpr int kMaxDepth = 64;
constexpr size_t kShownCharacters = 60;

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_continuation(unsigned char c) { return (c & 0xC0) == 0x80; }

// The bytes of the UTF-8 sequence at the start of `text`; 0 when it is malformed.
size_t utf8_length(std::string_view text) {
  auto byte = [&](size_t i) {
    return i < text.size() ? static_cast<unsigned char>(text[i]) : static_cast<unsigned char>(0);
  };
  const unsigned char first = byte(0), second = byte(1);
  if (first < 0x80) return 1;
  size_t length = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
  if (first < 0xC2 || first > 0xF4) return 0;
  for (size_t i = 1; i < length; i++) {
    if (!is_continuation(byte(i))) return 0;
  }
  const bool overlong = (first == 0xE0 && second < 0xA0) || (first == 0xF0 && second < 0x90);
  const bool surrogate = first == 0xED && second >= 0xA0;
  const bool too_large = first == 0xF4 && second >= 0x90;
  return overlong || surrogate || too_large ? 0 : length;
}

void append_utf8(std::string& out, uint32_t code) {
  auto put = [&](uint32_t byte) { out.push_back(static_cast<char>(byte)); };
  if (code < 0x80) {
    put(code);
  } else if (code < 0x800) {
    put(0xC0 | code >> 6);
    put(0x80 | (code & 0x3F));
  } else if (code < 0x10000) {
    put(0xE0 | code >> 12);
    put(0x80 | (code >> 6 & 0x3F));
    put(0x80 | (code & 0x3F));
  } else {
    put(0xF0 | code >> 18);
    put(0x80 | (code >> 12 & 0x3F));
    put(0x80 | (code >> 6 & 0x3F));
    put(0x80 | (code & 0x3F));
  }
}

class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  Json document() {
    Json json = value(0);
    skip_space();
    if (at_ < text_.size()) fail("expected the end of the file");
    return json;
  }

 private:
  // ---- Values

  Json value(int depth) {
    if (depth > kMaxDepth) fail("nested more than " + std::to_string(kMaxDepth) + " deep");
    skip_space();
    switch (peek()) {
      case '{':
        return {object(depth)};
      case '[':
        return {array(depth)};
      case '"':
        return {string()};
      case 't':
        return literal("true", {true});
      case 'f':
        return literal("false", {false});
      case 'n':
        return literal("null", {nullptr});
      default:
        return {number()};
    }
  }

  Json::Object object(int depth) {
    Json::Object members;
    expect('{', "'{'");
    if (accept('}')) return members;
    do {
      skip_space();
      if (peek() != '"') fail("expected a key in double quotes");
      const size_t start = at_;
      std::string key = string();
      if (std::any_of(members.begin(), members.end(), [&](auto& m) { return m.key == key; })) {
        at_ = start;
        fail("key '" + key + "' appears twice in one object");
      }
      expect(':', "':' after the key");
      Json member = value(depth + 1);
      members.push_back({std::move(key), std::move(member)});
    } while (accept(','));
    expect('}', "',' or '}'");
    return members;
  }

  Json::Array array(int depth) {
    Json::Array elements;
    expect('[', "'['");
    if (accept(']')) return elements;
    do {
      elements.push_back(value(depth + 1));
    } while (accept(','));
    expect(']', "',' or ']'");
    return elements;
  }

  Json literal(std::string_view word, Json json) {
    if (text_.substr(at_, word.size()) != word) fail("expected a value");
    at_ += word.size();
    return json;
  }

  Json::Number number() {
    const size_t start = at_;
    take('-');
    if (!is_digit(peek())) {
      at_ = start;
      fail("expected a value");
    }
    if (!take('0')) digits();
    if (take('.')) digits();
    if (take('e') || take('E')) {
      if (!take('+')) take('-');
      digits();
    }
    return {std::string(text_.substr(start, at_ - start))};
  }

  void digits() {
    if (!is_digit(peek())) fail("expected a digit");
    while (is_digit(peek())) at_++;
  }

  // ---- Strings

  std::string string() {
    std::string out;
    at_++;  // the opening quote
    while (!take('"')) {
      if (at_ >= text_.size()) fail("expected '\"' at the end of a string");
      if (static_cast<unsigned char>(peek()) < 0x20) fail("expected no control character");
      if (take('\\')) {
        escape(out);
        continue;
      }
      size_t length = utf8_length(text_.substr(at_));
      if (length == 0) fail("expected UTF-8");
      out.append(text_.substr(at_, length));
      at_ += length;
    }
    return out;
  }

  void escape(std::string& out) {
    static constexpr std::string_view kNames = "\"\\/bfnrt", kValues = "\"\\/\b\f\n\r\t";
    if (take('u')) return append_utf8(out, unicode_escape());
    size_t which = at_ < text_.size() ? kNames.find(peek()) : std::string_view::npos;
    if (which == std::string_view::npos) fail("expected an escape of JSON after '\\'");
    out.push_back(kValues[which]);
    at_++;
  }

  uint32_t unicode_escape() {
    const uint32_t high = four_hex_digits();
    if (high < 0xD800 || high > 0xDFFF) return high;
    if (high > 0xDBFF || !take('\\') || !take('u')) fail("expected a pair of surrogates");
    const uint32_t low = four_hex_digits();
    if (low < 0xDC00 || low > 0xDFFF) fail("expected a pair of surrogates");
    return 0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00);
  }

  uint32_t four_hex_digits() {
    static constexpr std::string_view kDigits = "0123456789abcdef";
    uint32_t code = 0;
    for (int i = 0; i < 4; i++) {
      const char c = peek();
      size_t digit = kDigits.find(c >= 'A' && c <= 'F' ? static_cast<char>(c - 'A' + 'a') : c);
      if (at_ >= text_.size() || digit == std::string_view::npos) fail("expected four hex digits");
      code = code << 4 | static_cast<uint32_t>(digit);
      at_++;
    }
    return code;
  }

  // ---- Characters

  char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }

  bool take(char c) {
    if (at_ >= text_.size() || text_[at_] != c) return false;
    at_++;
    return true;
  }

  bool accept(char c) {
    skip_space();
    return take(c);
  }

  void expect(char c, const char* what) {
    if (!accept(c)) fail(std::string("expected ") + what);
  }

  void skip_space() {
    while (at_ < text_.size() && std::string_view(" \t\r\n").find(text_[at_]) != text_.npos) at_++;
  }

  std::string found() const {
    if (at_ >= text_.size()) return "the end of the file";
    const auto c = static_cast<unsigned char>(text_[at_]);
    if (c > 0x20 && c < 0x7F) return {'\'', text_[at_], '\''};
    char hex[16];
    std::snprintf(hex, sizeof hex, "byte 0x%02x", c);
    return hex;
  }

  [[noreturn]] void fail(const std::string& what) const {
    const std::string_view before = text_.substr(0, at_);
    const auto line = 1 + std::count(before.begin(), before.end(), '\n');
    const size_t newline = before.rfind('\n');
    const size_t column = newline == before.npos ? at_ + 1 : at_ - newline;
    throw JsonError("line " + std::to_string(line) + ", column " + std::to_string(column) + ": " +
                    what + ", found " + found());
  }

  std::string_view text_;
  size_t at_ = 0;
};

std::string shorten(const std::string& text) {
  if (text.size() <= kShownCharacters) return text;
  size_t end = kShownCharacters;
  while (end > 0 && is_continuation(static_cast<unsigned char>(text[end]))) end--;
  return text.substr(0, end) + "...";
}

struct Describe {
  std::string operator()(std::nullptr_t) const { return "null"; }
  std::string operator()(bool value) const { return value ? "true" : "false"; }
  std::string operator()(const Json::Number& n) const { return "the number " + shorten(n.text); }
  std::string operator()(const std::string& text) const {
    return "the string '" + shorten(text) + "'";
  }
  std::string operator()(const Json::Array& array) const {
    return "an array of " + std::to_string(array.size()) + " elements";
  }
  std::string operator()(const Json::Object& object) const {
    return "an object of " + std::to_string(object.size()) + " members";
  }
};

}  // namespace

const Json* Json::find(std::string_view key) const {
  const Object* members = object();
  if (members == nullptr) return nullptr;
  for (const Member& member : *members) {
    if (member.key == key) return &member.value;
  }
  return nullptr;
}

std::string Json::describe() const { return std::visit(Describe{}, value); }

Json parse_json(std::string_view text) { return Parser(text).document(); }

}  // namespace spyre
