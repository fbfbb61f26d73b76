// The trees of native/core/locality on arbitrary traces: nodes of every level hold each access once, footprints are those of
// sets, and MemGaze's table counts every node of its tree. The sanitizers watch.
#include <cstdio>
#include <cstdlib>
#include <map>
#include <random>
#include <set>
#include <vector>

#include "locality/interval_tree.h"
#include "locality/memgaze_tree.h"

using namespace memlens::locality;

namespace {

std::mt19937_64 source(31);
int failed = 0;

void check(bool holds, const char* what) {
  if (holds) return;
  std::printf("failed: %s\n", what);
  ++failed;
}

struct Sample {
  std::vector<uint64_t> addresses;
  std::vector<uint8_t> classes;
  std::vector<uint32_t> functions, implied;
};

Sample arbitrary(size_t count, uint64_t places) {
  Sample sample;
  for (size_t i = 0; i < count; ++i) {
    sample.addresses.push_back(source() % places * 24);
    sample.classes.push_back(static_cast<uint8_t>(source() % 4));
    sample.functions.push_back(static_cast<uint32_t>(source() % 5));
    sample.implied.push_back(static_cast<uint32_t>(source() % 8 == 0));
  }
  return sample;
}

void test_interval_tree() {
  const unsigned leaf_shift = static_cast<unsigned>(source() % 7);
  IntervalTree tree(uint64_t{1} << source() % 13, leaf_shift, leaf_shift);
  std::vector<Sample> samples;
  const uint64_t places = 1 + source() % 3000;
  for (size_t n = 1 + source() % 40; n > 0; --n) samples.push_back(arbitrary(1 + source() % 600, places));
  std::set<uint64_t> everything;
  uint64_t moving = 0, constants = 0, recorded = 0;
  for (const Sample& sample : samples) {
    tree.begin_sample();
    const size_t cut = source() % (sample.addresses.size() + 1);
    const auto part = [&](size_t begin, size_t count) {
      tree.add(std::span(sample.addresses).subspan(begin, count), std::span(sample.classes).subspan(begin, count),
               std::span(sample.functions).subspan(begin, count), std::span(sample.implied).subspan(begin, count));
    };
    part(0, cut);
    part(cut, sample.addresses.size() - cut);
    tree.end_sample(static_cast<double>(sample.addresses.size()), 0);
    for (size_t i = 0; i < sample.addresses.size(); ++i) {
      constants += sample.implied[i] + uint64_t{sample.classes[i] == 1};
      if (sample.classes[i] == 1) continue;
      everything.insert(sample.addresses[i]);
      ++moving;
    }
    recorded += sample.addresses.size();
  }
  tree.finish();
  const IntervalNode& root = tree.nodes().back();
  check(root.samples == samples.size(), "the root holds all samples");
  check(root.figures.addresses == everything.size(), "the root has all addresses");
  check(root.figures.accesses == moving && root.figures.recorded == recorded && root.figures.constants == constants,
        "the root has all accesses");
  uint64_t in_samples = 0, in_functions = 0;
  for (const IntervalNode& node : tree.nodes()) {
    if (node.kind == NodeKind::kSample) in_samples += node.figures.recorded;
    if (node.kind == NodeKind::kFunction) in_functions += node.figures.accesses;
    check(node.figures.addresses <= node.figures.addresses_strided + node.figures.addresses_irregular,
          "an address has a class");
    check(node.kind == NodeKind::kFunction || node.kind == NodeKind::kInterval ||
              node.figures.reuses + node.figures.blocks == node.figures.recorded,
          "an access is the first to its block or a reuse");
  }
  check(in_samples == recorded && in_functions == moving, "nothing is lost on the way");
}

void test_memgaze_table() {
  std::vector<uint64_t> addresses, samples;
  std::vector<uint8_t> classes;
  std::vector<uint32_t> implied;
  uint64_t expected_nodes = 0, trees = 0;
  for (uint64_t number = 1, count = 1 + source() % 30; number <= count; ++number) {
    uint64_t accesses = 1 + source() % 200;
    for (uint64_t i = 0; i < accesses; ++i) {
      addresses.push_back(source() % 500);
      classes.push_back(static_cast<uint8_t>(1 + source() % 4));
      implied.push_back(0);
      samples.push_back(number);
    }
    uint64_t nodes = (accesses + 7) / 8;
    expected_nodes += nodes;
    for (; nodes > 1; expected_nodes += nodes) nodes = (nodes + 1) / 2;
    ++trees;
  }
  for (uint64_t nodes = trees; nodes > 1; expected_nodes += nodes) nodes = (nodes + 1) / 2;
  const MemgazeTable table = memgaze_table(addresses, classes, implied, samples, 1000);
  uint64_t nodes = 0;
  for (const MemgazeLevel& level : table.levels) nodes += level.nodes;
  check(nodes == expected_nodes && table.samples == trees, "every node is in a level");
  check(table.accesses == addresses.size() && table.loads == addresses.size(), "every access is in the table");
  std::fill(classes.begin(), classes.end(), uint8_t{0});
  check(memgaze_table(addresses, classes, implied, samples, 1000).levels.empty(), "constants alone make no tree");
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 50;
  for (int round = 0; round < rounds; ++round) {
    test_interval_tree();
    test_memgaze_table();
  }
  std::printf("%d failed\n", failed);
  return failed == 0 ? 0 : 1;
}
