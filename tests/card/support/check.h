// A test harness in one header for the card's C++ tests.
//
// TEST(sentence_about_behaviour) { ... } registers a test; main() is defined here, so a test
// program is one file that includes this header once. A failed check prints where it stands and the
// values, is counted, and lets the test go on; checks may be made from any thread.
//
//   TEST(addition_is_commutative) { CHECK_EQ(1 + 2, 2 + 1); }
//
// Arguments of the program are parts of names: only tests that contain one of them are run.
#pragma once

#include <atomic>
#include <chrono>
#include <concepts>
#include <cstdio>
#include <cstring>
#include <exception>
#include <mutex>
#include <sstream>
#include <string>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <vector>

namespace check {

struct Test {
  const char* name;
  void (*body)();
};

inline std::vector<Test>& tests() {
  static std::vector<Test> list;
  return list;
}

struct Registration {
  Registration(const char* name, void (*body)()) { tests().push_back({name, body}); }
};

// Failures of the test that is running. A broken loop would print without end: only the first are.
inline std::atomic<int> failures{0};
constexpr int kFailuresPrinted = 10;

inline void fail(const char* file, int line, const std::string& what) {
  static std::mutex mutex;
  std::lock_guard lock(mutex);
  if (failures.fetch_add(1) < kFailuresPrinted) {
    std::printf("  \u2717 %s:%d: %s\n", file, line, what.c_str());
    std::fflush(stdout);
  }
}

template <typename T>
concept Printable = requires(std::ostream& out, const T& value) { out << value; };

template <typename T>
concept Sequence = requires(const T& value) {
  value.begin();
  value.end();
};

template <typename T>
std::string show(const T& value) {
  std::ostringstream out;
  out.precision(17);
  if constexpr (std::is_same_v<T, bool>) {
    out << (value ? "true" : "false");
  } else if constexpr (std::is_null_pointer_v<T>) {
    out << "nullptr";
  } else if constexpr (std::is_enum_v<T>) {
    out << +static_cast<std::underlying_type_t<T>>(value);
  } else if constexpr (std::is_integral_v<T>) {
    out << +value;  // 8-bit integers as numbers
  } else if constexpr (Printable<T>) {
    out << value;
  } else if constexpr (Sequence<T>) {
    const char* separator = "[";
    for (const auto& item : value) {
      out << separator << show(item);
      separator = ", ";
    }
    out << (value.begin() == value.end() ? "[]" : "]");
  } else {
    out << "<" << sizeof(T) << " bytes>";
  }
  return out.str();
}

template <typename T>
concept PlainInteger = std::integral<T> && !std::same_as<T, bool> && !std::same_as<T, char> &&
                       !std::same_as<T, wchar_t> && !std::same_as<T, char8_t> &&
                       !std::same_as<T, char16_t> && !std::same_as<T, char32_t>;

// Integers by value, whatever their signedness; everything else by its own ==.
template <typename A, typename B>
bool equal(const A& a, const B& b) {
  if constexpr (PlainInteger<A> && PlainInteger<B>) {
    return std::cmp_equal(a, b);
  } else {
    return a == b;
  }
}

template <typename A, typename B>
void check_equal(const A& a, const B& b, const char* text, const char* file, int line) {
  if (!equal(a, b)) fail(file, line, std::string(text) + ": " + show(a) + " != " + show(b));
}

// The substring may be empty: any text is then accepted.
template <typename Error, typename Expression>
void check_throws(Expression&& expression, const char* text, const char* type,
                  const std::string& part, const char* file, int line) {
  const std::string where = std::string(text) + ": expected " + type;
  try {
    expression();
  } catch (const Error& error) {
    if constexpr (std::derived_from<Error, std::exception>) {
      const std::string what = error.what();
      if (what.find(part) == std::string::npos) {
        fail(file, line, where + " with \"" + part + "\", its text is \"" + what + "\"");
      }
    }
    return;
  } catch (const std::exception& error) {
    fail(file, line, where + ", got " + typeid(error).name() + ": " + error.what());
    return;
  } catch (...) {
    fail(file, line, where + ", got something that is no std::exception");
    return;
  }
  fail(file, line, where + ", nothing was thrown");
}

inline bool run_test(const Test& test) {
  failures = 0;
  const auto start = std::chrono::steady_clock::now();
  try {
    test.body();
  } catch (const std::exception& error) {
    fail(test.name, 0, std::string("exception left the test: ") + error.what());
  } catch (...) {
    fail(test.name, 0, "exception left the test");
  }
  const std::chrono::duration<double, std::milli> elapsed =
      std::chrono::steady_clock::now() - start;
  const int failed = failures;
  if (failed > kFailuresPrinted) std::printf("  ... %d more\n", failed - kFailuresPrinted);
  std::printf("%s %s (%.1f ms)\n", failed ? "\u2717" : "\u2713", test.name, elapsed.count());
  std::fflush(stdout);
  return failed == 0;
}

inline bool selected(const char* name, int argc, char** argv) {
  for (int i = 1; i < argc; i++) {
    if (std::strstr(name, argv[i])) return true;
  }
  return argc == 1;
}

inline int run_all(int argc, char** argv) {
  int run = 0, failed = 0;
  for (const Test& test : tests()) {
    if (!selected(test.name, argc, argv)) continue;
    run++;
    failed += !run_test(test);
  }
  std::printf("%d tests, %d failed\n", run, failed);
  return failed || run == 0;  // running nothing is no success
}

}  // namespace check

#define TEST(name)                                                      \
  static void test_##name();                                            \
  static const check::Registration register_##name(#name, test_##name); \
  static void test_##name()

#define CHECK(...)                                               \
  do {                                                           \
    if (!static_cast<bool>(__VA_ARGS__)) {                       \
      check::fail(__FILE__, __LINE__, #__VA_ARGS__ " is false"); \
    }                                                            \
  } while (0)

#define CHECK_EQ(a, b) check::check_equal((a), (b), #a " == " #b, __FILE__, __LINE__)

#define CHECK_THROWS(expression, type, part)                                                   \
  check::check_throws<type>([&] { (void)(expression); }, #expression, #type, (part), __FILE__, \
                            __LINE__)

int main(int argc, char** argv) { return check::run_all(argc, argv); }
