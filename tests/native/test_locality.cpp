// The engines of native/core/locality against brute force and closed forms, on arbitrary traces. Every batch size and many
// renumberings are met; the sanitizers watch.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <list>
#include <map>
#include <random>
#include <set>
#include <vector>

#include "locality/caches.h"
#include "locality/classes.h"
#include "locality/sharing.h"
#include "locality/shards.h"
#include "locality/stream.h"

using namespace memlens::locality;

namespace {

std::mt19937_64 source(29);
int failed = 0;

void check(bool holds, const char* what) {
  if (holds) return;
  std::printf("failed: %s\n", what);
  ++failed;
}

// A list in the order of last use: the definition of a stack distance.
class SlowReuse {
 public:
  std::pair<uint32_t, uint64_t> access(uint64_t block) {
    ++now_;
    uint32_t distance = 0;
    for (auto at = stack_.begin(); at != stack_.end(); ++at, ++distance) {
      if (at->first != block) continue;
      const bool is_in_window = at->second > window_begin_;
      const uint64_t interval = now_ - at->second;
      stack_.erase(at);
      stack_.emplace_front(block, now_);
      return is_in_window ? std::pair{distance, interval} : std::pair{kEarlier, uint64_t{0}};
    }
    stack_.emplace_front(block, now_);
    return {kFirst, 0};
  }
  void begin_window() { window_begin_ = now_; }

 private:
  std::list<std::pair<uint64_t, uint64_t>> stack_;
  uint64_t now_ = 0, window_begin_ = 0;
};

std::vector<uint64_t> trace(size_t count, uint64_t blocks, uint64_t base = 0x7f0000001000) {
  std::vector<uint64_t> addresses(count);
  for (uint64_t& address : addresses)
    address = base + (source() % 3 == 0 ? source() % blocks : source() % (1 + blocks / 8)) * 64 + source() % 64;
  return addresses;
}

void test_reuse(size_t count, uint64_t blocks, unsigned shift) {
  const auto addresses = trace(count, blocks);
  Reuse reuse(uint64_t{1} << shift);
  SlowReuse slow;
  for (size_t done = 0; done < count;) {
    const size_t part = std::min<size_t>(1 + source() % 200, count - done);
    if (source() % 7 == 0) {
      reuse.begin_window();
      slow.begin_window();
    }
    std::vector<uint32_t> distances(part);
    std::vector<uint64_t> intervals(part);
    reuse.add({addresses.data() + done, part}, distances, intervals);
    for (size_t i = 0; i < part; ++i) {
      const auto [distance, interval] = slow.access(addresses[done + i] >> shift);
      if (distance != distances[i] || interval != intervals[i]) {
        check(false, "reuse equals the list");
        return;
      }
    }
    done += part;
  }
}

// Long enough that slots are numbered anew many times, with a closed form: a sweep over n blocks has distance n - 1.
void test_renumbering() {
  const uint64_t blocks = 1000;
  Reuse reuse(64);
  std::vector<uint64_t> addresses(blocks);
  std::vector<uint32_t> distances(blocks);
  std::vector<uint64_t> intervals(blocks);
  for (uint64_t i = 0; i < blocks; ++i) addresses[i] = i * 64;
  for (int round = 0; round < 700; ++round) {
    reuse.add(addresses, distances, intervals);
    for (uint64_t i = 0; i < blocks; ++i) {
      check(distances[i] == (round == 0 ? kFirst : blocks - 1), "a sweep's distance");
      check(intervals[i] == (round == 0 ? 0 : blocks), "a sweep's interval");
    }
  }
  // A stack: down and up again, distances 0, 1, 2, …
  Reuse stack(64);
  for (int round = 0; round < 300; ++round) {
    stack.add(addresses, distances, intervals);
    std::reverse(addresses.begin(), addresses.end());
    for (uint64_t i = 0; round > 0 && i < blocks; ++i) check(distances[i] == i, "a stack's distance");
  }
}

void test_forgetting() {
  Reuse reuse(64);
  std::vector<uint64_t> blocks;
  for (uint64_t i = 0; i < 300; ++i) blocks.push_back(i);
  std::vector<uint32_t> distances(blocks.size());
  reuse.add_blocks(blocks, distances);
  reuse.retain([](uint64_t block) { return block % 3 == 0; });
  check(reuse.blocks() == 100, "a third is kept");
  reuse.add_blocks(blocks, distances);
  for (uint64_t i = 0; i < 300; ++i)
    check(distances[i] == (i % 3 != 0 ? kFirst : 99 + (i - i / 3)), "distances among the kept and the new");
}

void test_memory_limit() {
  Reuse reuse(64, 3 << 20);
  std::vector<uint64_t> addresses(1 << 12);
  std::vector<uint32_t> distances(addresses.size());
  bool refused = false;
  for (uint64_t part = 0; part < 200 && !refused; ++part) {
    for (uint64_t i = 0; i < addresses.size(); ++i) addresses[i] = (part * addresses.size() + i) * 64;
    try {
      reuse.add(addresses, distances);
    } catch (const MemoryLimit&) {
      refused = true;
    }
    check(reuse.memory_bytes() <= 3 << 20, "memory stays within the limit");
  }
  check(refused, "the limit is met");
}

void test_footprint(bool windows) {
  struct Slow {
    std::map<uint64_t, int> seen[2];
    std::map<uint64_t, int> times;
    std::set<uint64_t> bytes;
    uint64_t constants = 0, accesses = 0;
    double window_sum = 0;
    std::set<uint64_t> now;
    uint64_t constants_now = 0;
  };
  std::vector<Slow> slow(3);
  Footprint fast(windows), merged(windows);
  for (int window = 0; window < 12; ++window) {
    const size_t count = 1 + source() % 700;
    const auto addresses = trace(count, 300, source() % 2 != 0 ? 0x7f0000000000 : 0xffff800000000000);
    std::vector<uint32_t> bytes(count), groups(count);
    std::vector<uint8_t> classes(count);
    for (size_t i = 0; i < count; ++i) {
      bytes[i] = source() % 9 == 0 ? static_cast<uint32_t>(1 + source() % 200) : 1u << source() % 7;
      groups[i] = static_cast<uint32_t>(source() % 3);
      classes[i] = static_cast<uint8_t>(1 + source() % 3);
      Slow& mine = slow[groups[i]];
      if (classes[i] == 1) {
        ++mine.constants;
        ++mine.constants_now;
        continue;
      }
      ++mine.accesses;
      mine.seen[classes[i] == 3][addresses[i]] = 1;
      ++mine.times[addresses[i]];
      mine.now.insert(addresses[i]);
      for (uint64_t b = 0; b < bytes[i]; ++b) mine.bytes.insert(addresses[i] + b);
    }
    Footprint& into = window % 2 == 0 ? fast : merged;
    into.add(addresses, bytes, classes, groups);
    into.end_window();
    for (Slow& mine : slow) {
      mine.window_sum += static_cast<double>(mine.now.size() + (mine.constants_now > 0));
      mine.now.clear();
      mine.constants_now = 0;
    }
  }
  fast.merge(merged);
  const auto rows = fast.rows();
  for (uint32_t group = 0; group < 3; ++group) {
    const FootprintRow& row = rows[group];
    const Slow& mine = slow[group];
    std::set<uint64_t> lines;
    for (const uint64_t byte : mine.bytes) lines.insert(byte >> 6);
    const auto again = std::count_if(mine.times.begin(), mine.times.end(), [](const auto& t) { return t.second > 1; });
    check(row.addresses == mine.times.size(), "unique addresses");
    check(row.addresses_strided == mine.seen[0].size() && row.addresses_irregular == mine.seen[1].size(), "by class");
    check(row.again == static_cast<uint64_t>(again), "addresses accessed again");
    check(row.bytes == mine.bytes.size() && row.lines == lines.size(), "bytes and lines");
    check(row.constants == mine.constants && row.accesses == mine.accesses, "accesses");
    check(row.footprint() == mine.times.size() + (mine.constants > 0), "constants are one");
    if (windows) check(row.growth.y == mine.window_sum, "footprints of windows");
  }
}

void test_curve_equals_cache() {
  const auto addresses = trace(20000, 400);
  Reuse reuse(64);
  MissCurve curve;
  std::vector<uint32_t> distances(addresses.size());
  reuse.add(addresses, distances);
  curve.add(distances);
  const std::vector<uint64_t> sizes{1, 2, 3, 8, 17, 64, 128, 399, 400, 1000};
  const auto misses = curve.misses(sizes);
  for (size_t i = 0; i < sizes.size(); ++i) {
    CacheOptions options;
    options.levels = {{sizes[i] * 64, 0, false, Policy::kLru}};
    CacheModel model(options);
    model.add(addresses, {}, {}, {}, {}, {});
    check(model.rows()[0].misses[0] == misses[i], "the curve equals a fully associative cache");
  }
}

// A set-associative cache as a list for each set.
void test_sets(uint32_t ways, uint64_t sets) {
  const auto addresses = trace(20000, 300);
  std::vector<std::list<uint64_t>> slow(sets);
  uint64_t expected = 0;
  for (const uint64_t address : addresses) {
    auto& set = slow[(address >> 6) % sets];
    const auto at = std::find(set.begin(), set.end(), address >> 6);
    if (at == set.end()) ++expected;
    else set.erase(at);
    set.push_front(address >> 6);
    if (set.size() > ways) set.pop_back();
  }
  CacheOptions options;
  options.levels = {{sets * ways * 64, ways, false, Policy::kLru}};
  CacheModel model(options);
  model.add(addresses, {}, {}, {}, {}, {});
  check(model.rows()[0].misses[0] == expected, "a set-associative cache equals its lists");
}

void test_levels() {
  CacheOptions options;
  options.levels = {{4 * 64, 2, false, Policy::kLru},
                    {16 * 64, 4, false, Policy::kLru},
                    {64 * 64, 8, true, Policy::kLru}};
  options.tlbs = {{4 * 4096, 0, false, Policy::kLru}};
  options.cores = 3;
  options.next_line = options.stride = true;
  for (const bool inclusive : {true, false})
    for (const Policy policy : {Policy::kLru, Policy::kFifo, Policy::kRandom}) {
      options.is_inclusive = inclusive;
      for (LevelGeometry& level : options.levels) level.policy = policy;
      CacheModel model(options);
      const auto addresses = trace(20000, 200);
      std::vector<uint32_t> cores(addresses.size()), bytes(addresses.size());
      std::vector<uint8_t> stores(addresses.size());
      std::vector<uint64_t> sites(addresses.size());
      for (size_t i = 0; i < addresses.size(); ++i) {
        cores[i] = static_cast<uint32_t>(source() % 3);
        bytes[i] = static_cast<uint32_t>(1 + source() % 80);
        stores[i] = source() % 4 == 0;
        sites[i] = source() % 5;
      }
      model.add(addresses, bytes, stores, cores, {}, sites);
      const CacheRow& row = model.rows()[0];
      check(row.accesses == addresses.size() && row.misses[0] >= row.misses[1] && row.misses[1] >= row.misses[2],
            "a level misses no more often than the one above");
      check(row.misses[2] > 0 && row.tlb_misses[0] > 0 && model.totals()[1].prefetches > 0, "something happens");
    }
}

void test_coherence() {
  // Two cores write one line in turn: every access but none is a miss of the private level.
  CacheOptions options;
  options.levels = {{64 * 64, 8, false, Policy::kLru}, {256 * 64, 8, true, Policy::kLru}};
  options.cores = 2;
  CacheModel model(options);
  std::vector<uint64_t> addresses(1000, 0x1000);
  std::vector<uint32_t> cores(1000);
  std::vector<uint8_t> stores(1000, 1);
  for (size_t i = 0; i < 1000; ++i) cores[i] = i % 2;
  model.add(addresses, {}, stores, cores, {}, {});
  check(model.rows()[0].misses[0] == 1000 && model.rows()[0].misses[1] == 1, "a line that is written in turn");
  check(model.totals()[0].invalidations == 999, "each write takes it away");
}

void test_sharing() {
  Sharing sharing;
  std::vector<uint64_t> addresses;
  std::vector<uint32_t> bytes, threads;
  std::vector<uint8_t> stores;
  const auto access = [&](uint32_t thread, uint64_t address, bool store) {
    addresses.push_back(address);
    bytes.push_back(8);
    threads.push_back(thread);
    stores.push_back(store);
  };
  for (int i = 0; i < 10; ++i) {
    access(1, 0x1000, true);  // false sharing
    access(2, 0x1008, true);
    access(1, 0x2000, true);  // true sharing: 2 reads what 1 writes
    access(2, 0x2000, false);
    access(1, 0x3000, false);  // both read: none
    access(2, 0x3008, false);
    access(2, 0x403c, true);  // crosses a line
  }
  sharing.add(addresses, bytes, stores, threads);
  const auto pairs = sharing.pairs();
  check(pairs.size() == 2 && sharing.lines() == 5, "two lines are shared");
  if (pairs.size() != 2) return;
  check(pairs[0].line == 0x1000 && pairs[0].useful == 0 && pairs[0].hand_overs == 19, "false sharing");
  check(pairs[0].write_mask == 0xff && pairs[0].other_write_mask == 0xff00, "offsets");
  check(pairs[1].line == 0x2000 && pairs[1].common_mask == 0xff && pairs[1].hand_overs == 19 && pairs[1].useful == 19,
        "true sharing");
}

void test_classes() {
  Classes classes;
  std::vector<uint64_t> pcs, addresses;
  std::vector<uint8_t> stores;
  for (uint64_t i = 0; i < 500; ++i) {
    for (const auto& [pc, address] : {std::pair<uint64_t, uint64_t>{1, 0x100},
                                      {2, 0x1000 + 24 * i},
                                      {3, 0x100000 + source() % 100000},
                                      {4, 0x9000 - 8 * (i / 2)},
                                      {5, 0x200000 + (i / 10) * 4096 + (i % 10) * 8}}) {
      pcs.push_back(pc);
      addresses.push_back(address);
      stores.push_back(0);
    }
  }
  classes.add(0, pcs, addresses, stores);
  const auto found = classes.verdicts();
  check(found.size() == 5, "five instructions");
  const AccessClass expected[] = {AccessClass::kConstant, AccessClass::kStrided, AccessClass::kIrregular,
                                  AccessClass::kStrided, AccessClass::kStrided};
  for (size_t i = 0; i < found.size(); ++i) check(found[i].kind == expected[i], "classes");
  check(found[1].stride_bytes == 24 && found[3].stride_bytes == -8, "strides");
  std::vector<uint8_t> kinds(pcs.size());
  classes.classify(0, pcs, stores, kinds);
  for (size_t i = 0; i < pcs.size(); ++i) check(kinds[i] == static_cast<uint8_t>(expected[pcs[i] - 1]), "each access");
}

void test_shards() {
  // With rate 1 it is exact, and where bins are one block wide so is the curve.
  const auto addresses = trace(20000, 100);
  Shards all(1.0);
  all.add(addresses);
  Reuse reuse(64);
  MissCurve curve;
  std::vector<uint32_t> distances(addresses.size());
  reuse.add(addresses, distances);
  curve.add(distances);
  const std::vector<uint64_t> sizes{1, 5, 20, 60, 100};
  const auto misses = curve.misses(sizes);
  const auto points = all.curve(sizes);
  for (size_t i = 0; i < sizes.size(); ++i)
    check(std::abs(points[i].miss_ratio * 20000 - static_cast<double>(misses[i])) < 1e-6 && points[i].error == 0,
          "everything sampled is exact");
  Shards bounded(1.0, 64);
  bounded.add(trace(50000, 5000));
  check(bounded.blocks() <= 64 && bounded.rate() < 0.1, "the sample stays within its size");
}

void test_heat() {
  HeatMap map(0, 1000, 10, 8, 4096);
  std::vector<uint64_t> addresses, times;
  for (uint64_t i = 0; i < 1000; ++i) {
    addresses.push_back(i % 2 == 0 ? i * 4096 : 0x7f0000000000 + i * 64);
    times.push_back(i);
  }
  map.add(addresses, times, {});
  uint64_t sum = 0;
  for (const auto& [row, cells] : map.rows())
    for (const HeatCell& cell : cells) sum += cell.accesses;
  check(map.rows().size() <= 8 && sum == 1000, "rows are bounded and nothing is lost");
  check(map.rows().rbegin()->first * map.row_bytes() >= 0x7e0000000000, "what is far apart stays apart");
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 50;
  for (int round = 0; round < rounds; ++round) {
    test_reuse(source() % 3000, 1 + source() % 300, static_cast<unsigned>(source() % 13));
    test_footprint(round % 2 == 0);
  }
  test_renumbering();
  test_forgetting();
  test_memory_limit();
  test_curve_equals_cache();
  test_sets(4, 16);
  test_sets(8, 8);
  test_sets(3, 5);
  test_levels();
  test_coherence();
  test_sharing();
  test_classes();
  test_shards();
  test_heat();
  std::printf("%d failed\n", failed);
  return failed == 0 ? 0 : 1;
}
