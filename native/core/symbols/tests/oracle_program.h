// SPDX-License-Identifier: Apache-2.0
// A medium C++ program for comparing every address with addr2line: containers, lambdas, virtual and
// template code, exceptions, local classes, cold parts, several files.
#pragma once

inline constexpr const char* kOracleHeader = R"(
#pragma once
#include <memory>
#include <string>
#include <vector>
namespace shapes {
struct Shape {
  virtual ~Shape() = default;
  virtual double area() const = 0;
  std::string name;
};
template <int Sides> struct Polygon : Shape {
  double length = Sides;
  double area() const override { return length * length * Sides / 4.0; }
  Polygon(double l) : length(l) { name = "polygon" + std::to_string(Sides); }
};
inline double scaled(double x) { return x * 1.5; }
inline double twice_scaled(double x) { return scaled(x) + scaled(x + 1); }
std::vector<std::unique_ptr<Shape>> make_shapes(int n);
}
)";

inline constexpr const char* kOracleFactory = R"(
#include "shapes.h"
#include <stdexcept>
namespace shapes {
namespace {
struct Circle final : Shape {
  double radius;
  explicit Circle(double r) : radius(r) { name = "circle"; }
  double area() const override { return 3.14 * twice_scaled(radius); }
};
}
std::vector<std::unique_ptr<Shape>> make_shapes(int n) {
  std::vector<std::unique_ptr<Shape>> all;
  for (int i = 0; i < n; ++i) {
    switch (i % 4) {
      case 0: all.push_back(std::make_unique<Circle>(i)); break;
      case 1: all.push_back(std::make_unique<Polygon<3>>(i)); break;
      case 2: all.push_back(std::make_unique<Polygon<5>>(i)); break;
      default: if (n > 1000) throw std::runtime_error("too many: " + std::to_string(n));
    }
  }
  return all;
}
}
)";

inline constexpr const char* kOracleMain = R"(
#include "shapes.h"
#include <algorithm>
#include <cstdio>
#include <functional>
#include <map>
#include <numeric>
#include <unordered_map>
static int fibonacci(int n) { return n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2); }
static double total(const std::vector<std::unique_ptr<shapes::Shape>>& all) {
  struct Adder { double sum = 0; void add(const shapes::Shape& s) { sum += shapes::twice_scaled(s.area()); } };
  Adder adder;
  for (const auto& s : all) adder.add(*s);
  return adder.sum;
}
int main(int argc, char** argv) {
  auto all = shapes::make_shapes(argc * 20);
  std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a->area() < b->area(); });
  std::map<std::string, int> counts;
  for (const auto& s : all) ++counts[s->name];
  std::unordered_map<int, std::string> names;
  for (const auto& [name, n] : counts) names.emplace(n, name);
  std::function<int(int)> f = [&](int x) { return x + fibonacci(argc + 5); };
  try { shapes::make_shapes(2000); } catch (const std::exception& e) { std::puts(e.what()); }
  std::vector<int> numbers(100);
  std::iota(numbers.begin(), numbers.end(), f(1));
  std::stable_sort(numbers.begin(), numbers.end(), std::greater<int>());
  std::printf("%f %zu %d %s\n", total(all), names.size(), numbers[3], argv[0]);
}
)";
