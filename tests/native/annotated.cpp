// memlens.h in C++: guards, templates, exceptions, static objects, threads. Prints the same with and without a runtime.
#include <cstdio>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include "annotated_shared.hpp"

static_assert(!std::is_copy_constructible<memlens::region>::value && !std::is_copy_assignable<memlens::region>::value,
              "");
static_assert(!std::is_copy_constructible<memlens::tagged>::value && !std::is_copy_assignable<memlens::tagged>::value,
              "");

namespace {
struct Static {
  Static() { memlens::region guard("static object"); }
} static_object;

void nested(int worker, int depth) {
  const std::string name = "worker-" + std::to_string(worker) + "-" + std::to_string(depth);
  memlens::region guard(name.c_str());
  if (depth < 3) nested(worker, depth + 1);
}
}  // namespace

int main(int argc, char **) {
  double matrix[16] = {0};
  {
    memlens::tagged tag("matrix", matrix, sizeof matrix);
    matrix[0] = in_template(argc) + in_template(2.0) + second_cpp(3);
  }
  try {
    memlens::region outer("outer");
    in_inline(-argc);
  } catch (const std::runtime_error &error) {
    std::printf("caught %s\n", error.what());
  }
  if (argc > 0) {
    std::vector<std::thread> threads;
    for (int worker = 0; worker < 4; worker++) threads.emplace_back(nested, worker, 0);
    for (auto &thread : threads) thread.join();
  }
  std::printf("result %g\n", matrix[0]);
}
