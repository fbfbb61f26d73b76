// SPDX-License-Identifier: Apache-2.0
// A test is a function between TEST(name) braces; CHECK counts, prints what failed, and goes on.
#pragma once

#include <cstdio>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

namespace check {

struct Test {
  const char* name;
  void (*run)();
};
inline std::vector<Test> tests;
inline int n_passed = 0, n_failed = 0;
inline const char* current = "";

struct Register {
  Register(const char* name, void (*run)()) { tests.push_back({name, run}); }
};
inline void record(bool ok, const char* file, int line, const std::string& what) {
  ++(ok ? n_passed : n_failed);
  if (!ok) std::printf("%s:%d: [%s] failed: %s\n", file, line, current, what.c_str());
}
template <typename A, typename B>
void record_equal(const A& a, const B& b, const char* file, int line, const char* what) {
  std::ostringstream text;
  if (!(a == b)) text << what << "\n    left:  " << a << "\n    right: " << b;
  record(a == b, file, line, text.str());
}
// Runs all tests, or those whose names contain argv[1].
inline int run_all(int argc, char** argv) {
  for (const Test& test : tests) {
    if (argc > 1 && std::string(test.name).find(argv[1]) == std::string::npos) continue;
    current = test.name;
    test.run();
  }
  std::printf("%d passed, %d failed\n", n_passed, n_failed);
  return n_failed == 0 && n_passed > 0 ? 0 : 1;
}

}  // namespace check

#define TEST(name)                                           \
  static void name();                                        \
  static const check::Register register_##name{#name, name}; \
  static void name()
#define CHECK(condition) check::record(bool(condition), __FILE__, __LINE__, #condition)
#define CHECK_EQUAL(a, b) check::record_equal(a, b, __FILE__, __LINE__, #a " == " #b)
