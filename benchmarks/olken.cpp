// The textbook way to exact reuse distances (Olken 1981), as a baseline: a hash table from block to the time of its last access,
// and a balanced tree of these times whose nodes know the size of their subtree. A treap with an explicit node pool.
//
//   olken TRACE COUNT: reads COUNT addresses of 8 bytes, prints the CPU seconds and the sum of all distances.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <unordered_map>
#include <vector>

namespace {

struct Node {
  uint64_t time;
  uint32_t left = 0, right = 0, size = 1, priority;
};
std::vector<Node> nodes(1);
std::vector<uint32_t> unused;
uint32_t root = 0, random_state = 1;

uint32_t size_of(uint32_t n) { return n == 0 ? 0 : nodes[n].size; }
void update(uint32_t n) { nodes[n].size = 1 + size_of(nodes[n].left) + size_of(nodes[n].right); }

uint32_t merge(uint32_t a, uint32_t b) {
  if (a == 0 || b == 0) return a + b;
  if (nodes[a].priority > nodes[b].priority) {
    nodes[a].right = merge(nodes[a].right, b);
    update(a);
    return a;
  }
  nodes[b].left = merge(a, nodes[b].left);
  update(b);
  return b;
}

// How many times are later than `time`; the node of `time` is taken out.
uint32_t take(uint32_t& at, uint64_t time) {
  const uint32_t n = at;
  if (nodes[n].time == time) {
    const uint32_t later = size_of(nodes[n].right);
    at = merge(nodes[n].left, nodes[n].right);
    unused.push_back(n);
    return later;
  }
  uint32_t later;
  if (time < nodes[n].time) later = 1 + size_of(nodes[n].right) + take(nodes[n].left, time);
  else later = take(nodes[n].right, time);
  update(n);
  return later;
}

void append(uint64_t time) {
  uint32_t n;
  if (unused.empty()) {
    n = static_cast<uint32_t>(nodes.size());
    nodes.push_back({});
  } else {
    n = unused.back();
    unused.pop_back();
  }
  random_state = random_state * 1664525u + 1013904223u;
  nodes[n] = {time, 0, 0, 1, random_state};
  root = merge(root, n);
}

double cpu_seconds() {
  timespec now;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 64;
  std::vector<uint64_t> trace(std::strtoull(argv[2], nullptr, 10));
  FILE* file = std::fopen(argv[1], "rb");
  if (file == nullptr || std::fread(trace.data(), 8, trace.size(), file) != trace.size()) return 66;
  std::fclose(file);
  const double begin = cpu_seconds();
  std::unordered_map<uint64_t, uint64_t> last;
  uint64_t sum = 0;
  for (uint64_t time = 0; time < trace.size(); ++time) {
    auto [at, is_new] = last.try_emplace(trace[time] >> 6, time);
    if (!is_new) {
      sum += take(root, at->second);
      at->second = time;
    }
    append(time);
  }
  std::printf("%.6f %llu\n", cpu_seconds() - begin, static_cast<unsigned long long>(sum));
}
