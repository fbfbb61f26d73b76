// What C++ adds to unwind_oracle.c: landing pads, catch blocks, virtual calls, lambdas, the C++ library's own frames.
#include "unwind_oracle.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

struct ChecksAtEnd {
  const char *name;
  ~ChecksAtEnd() { check(name); }
};

OWN_FRAME void throws(int depth) {
  ChecksAtEnd here{"destructor in a landing pad"};
  std::string text(40 + static_cast<size_t>(depth), 'x');
  if (depth == 0) throw std::runtime_error(text);
  throws(depth - 1);
  check("never reached");
}

OWN_FRAME int catches() {
  try {
    throws(5);
  } catch (const std::runtime_error &error) {
    check("catch block");
    return static_cast<int>(std::string(error.what()).size());
  }
  return 0;
}

OWN_FRAME int rethrows() {
  try {
    try {
      throws(2);
    } catch (...) {
      check("inner catch block");
      throw;
    }
  } catch (const std::exception &) {
    return check("outer catch block");
  }
  return 0;
}

struct Base {
  virtual ~Base() = default;
  virtual int work() = 0;
};
struct Derived : Base {
  int work() override { return check("virtual call"); }
};

}  // namespace

extern "C" int cpp_cases(void) {
  catches();
  rethrows();
  const std::unique_ptr<Base> object(new Derived);
  object->work();
  std::function<int(int)> nested = [&](int depth) {
    return depth == 0 ? check("std::function") : nested(depth - 1) + zero;
  };
  nested(8);
  std::vector<int> values(50);
  for (int i = 0; i < 50; i++) values[static_cast<size_t>(i)] = (i * 17) % 50;
  int calls = 0;
  std::sort(values.begin(), values.end(), [&](int a, int b) {
    if (calls++ < 5) check("std::sort");
    return a < b;
  });
  return 0;
}
