// The same for C++: exceptions, coroutines, virtual calls, thread-local and static objects with constructors, lambdas.
#include <algorithm>
#include <coroutine>
#include <cstdio>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>
#define NOINLINE __attribute__((noinline))

static long data[256];
struct Before { // counted code before main
  Before() {
    for (int i = 0; i < 256; i++) data[i] = i * 31 % 97;
  }
  ~Before() { std::printf("end %ld\n", data[3]); }
};
static Before before;
__attribute__((constructor(101))) static void very_early() { data[255] = 1; }
__attribute__((destructor)) static void very_late() { data[254] += data[253]; }

// ---- exceptions ----
struct Closer {
  long &s;
  ~Closer() { s += data[11]; }
};
NOINLINE static long deep(long n) {
  long s = data[n & 255];
#pragma memlens begin(deep)
  Closer closer{s};
  if (n % 7 == 6) throw std::runtime_error("deep");
  if (n % 5 == 4) throw n;
  s += data[1];
#pragma memlens end
  return s + data[2];
}
NOINLINE static long middle(long n) {
  long s = 0;
#pragma memlens begin(middle)
  try {
    s += deep(n) + data[n & 15];
  } catch (long value) {
    s += data[value & 255];
    if (value % 2) throw;
  }
  s += data[3];
#pragma memlens end
  return s;
}
NOINLINE static long exceptions(long n) {
  long s = 0;
  for (long i = 0; i < n; i++) {
    try {
#pragma memlens begin(top)
      s += middle(i);
      s += data[4];
#pragma memlens end
    } catch (const std::exception &) {
      s += data[5];
    } catch (...) {
      s += data[6];
      auto kept = std::current_exception();
      try { std::rethrow_exception(kept); } catch (long value) { s += value; }
    }
    s += data[7];
  }
  return s;
}
NOINLINE static long in_cleanup(long n) noexcept {
  long s = 0;
  struct Nested {
    long &s;
    ~Nested() {
      try { s += middle(4); } catch (long) { s += data[8]; }
    }
  };
  for (long i = 0; i < n; i++) {
    try {
      Nested nested{s};
      deep(i);
    } catch (...) { s++; }
  }
  return s;
}

// ---- coroutines ----
struct Generator {
  struct promise_type {
    long value = 0;
    Generator get_return_object() { return Generator{std::coroutine_handle<promise_type>::from_promise(*this)}; }
    std::suspend_always initial_suspend() noexcept { return {}; }
    std::suspend_always final_suspend() noexcept { return {}; }
    std::suspend_always yield_value(long v) { value = v; return {}; }
    void return_void() {}
    void unhandled_exception() { throw; }
  };
  std::coroutine_handle<promise_type> handle;
  ~Generator() { if (handle) handle.destroy(); }
};
static Generator numbers(long n) {
  for (long i = 0; i < n; i++) {
    long v = data[i & 255];
    co_yield v;
    data[i & 255] ^= v & 1;
    if (i == 40) throw 40;
  }
}
struct Task {
  struct promise_type;
  using Handle = std::coroutine_handle<promise_type>;
  struct promise_type {
    std::coroutine_handle<> then = std::noop_coroutine();
    long value = 0;
    Task get_return_object() { return Task{Handle::from_promise(*this)}; }
    std::suspend_always initial_suspend() noexcept { return {}; }
    struct Final {
      bool await_ready() noexcept { return false; }
      std::coroutine_handle<> await_suspend(Handle h) noexcept { return h.promise().then; } // a musttail call
      void await_resume() noexcept {}
    };
    Final final_suspend() noexcept { return {}; }
    void return_value(long v) { value = v; }
    void unhandled_exception() { std::terminate(); }
  };
  Handle handle;
  Task(Handle h) : handle(h) {}
  Task(Task &&other) : handle(other.handle) { other.handle = nullptr; }
  ~Task() { if (handle) handle.destroy(); }
  bool await_ready() { return false; }
  Handle await_suspend(std::coroutine_handle<> then) { handle.promise().then = then; return handle; }
  long await_resume() { return handle.promise().value; }
};
static Task sum_of(long n) {
  if (n == 0) co_return data[0];
  long before = data[n & 255];
  long rest = co_await sum_of(n - 1);
  co_return before + rest + data[n & 7];
}
NOINLINE static long coroutines(long n) {
  long s = 0;
#pragma memlens begin(coroutines)
  {
    Generator g = numbers(n);
    try {
      for (g.handle.resume(); !g.handle.done(); g.handle.resume()) s += g.handle.promise().value + data[1];
    } catch (int i) { s += i; }
    Task t = sum_of(50);
    t.handle.resume();
    s += t.handle.promise().value;
  }
#pragma memlens end
  return s;
}

// ---- calls ----
struct Shape {
  virtual ~Shape() = default;
  virtual long area(long) const = 0;
};
struct Square : Shape { long a = 3; long area(long i) const override { return a * a + data[i & 255]; } };
struct Circle : virtual Square { long r = 2; long area(long i) const override { return r + data[(i * 2) & 255] + Square::area(i); } };
NOINLINE static long virtuals(long n) {
  std::vector<std::unique_ptr<Shape>> shapes;
  for (int i = 0; i < 10; i++) shapes.push_back(i % 3 ? std::unique_ptr<Shape>(new Square) : std::make_unique<Circle>());
  long s = 0;
  for (long i = 0; i < n; i++) s += shapes[static_cast<size_t>(i) % 10]->area(i);
  long (Shape::*member)(long) const = &Shape::area;
  std::function<long(long)> f = [&, n](long x) { return x + data[n & 255] + (shapes[0].get()->*member)(x); };
  return s + f(3);
}
template <class T, int N> NOINLINE static T unrolled(const T *p) {
  T s{};
  for (int i = 0; i < N; i++) s += p[i];
  return s;
}
NOINLINE static long library(long n) {
  std::map<std::string, std::vector<long>> m;
  for (long i = 0; i < n; i++) m["key" + std::to_string(i % 13)].push_back(data[i & 255]);
  long s = 0;
  for (auto &[key, values] : m) {
    std::sort(values.begin(), values.end(), [](long a, long b) { return a % 10 < b % 10; });
    for (long v : values) s = s * 3 % 1000003 + v + static_cast<long>(key.size());
  }
  return s;
}
thread_local std::vector<long> mine{1, 2, 3};
NOINLINE static long statics() {
  static const std::vector<long> once = [] { std::vector<long> v(10); for (auto &x : v) x = data[5]; return v; }();
  mine.push_back(data[6]);
  return once[3] + mine.back() + static_cast<long>(mine.size());
}

int main() {
  std::printf("exceptions %ld\n", exceptions(100));
  std::printf("in_cleanup %ld\n", in_cleanup(30));
  std::printf("coroutines %ld %ld\n", coroutines(30), coroutines(60));
  std::printf("virtuals %ld\n", virtuals(200));
  std::printf("unrolled %ld %g\n", unrolled<long, 100>(data), unrolled<double, 3>(std::vector<double>(3, 1.5).data()));
  std::printf("library %ld\n", library(300));
  std::printf("statics %ld %ld\n", statics(), statics());
}
