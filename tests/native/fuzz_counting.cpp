// Arbitrary and damaged static tables of counted modules: nothing outside the sections is read, whatever is damaged costs its own
// function, and every number that comes out points into what came out.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "counting/static_tables.h"
#include "memlens_count.h"

using namespace memlens::counting;

namespace {

std::mt19937_64 source(23);

void put(std::vector<unsigned char>& to, uint64_t value) {
  do {
    const auto byte = static_cast<unsigned char>(value & 127);
    value >>= 7;
    to.push_back(static_cast<unsigned char>(byte | (value ? 128 : 0)));
  } while (value);
}

std::vector<unsigned char> table_of(uint32_t counters) {
  std::vector<unsigned char> t;
  const uint64_t flags = source() % 2 + (source() % 2 ? ML_TABLE_LOOPS : 0);
  const uint64_t strings = 1 + source() % 4, groups = 1 + source() % 4, scopes = source() % 4, blocks = 1 + source() % 3;
  put(t, ML_COUNT_TABLE_VERSION);
  put(t, flags);
  put(t, strings);
  for (uint64_t i = 0; i < strings; ++i) {
    const uint64_t length = i ? source() % 9 : 0;
    put(t, length);
    for (uint64_t c = 0; c < length; ++c) t.push_back(static_cast<unsigned char>(source()));
  }
  put(t, source() % strings), put(t, source() % strings), put(t, source() % 1000);
  put(t, counters);
  for (uint32_t i = 0; i < counters; ++i) put(t, source() % 5);
  put(t, groups);
  for (uint64_t i = 0; i < groups; ++i) {
    const uint64_t terms = counters ? source() % 3 : 0;
    put(t, terms);
    for (uint64_t k = 0; k < terms; ++k) put(t, source() % counters), t.push_back(static_cast<unsigned char>(source() % 128));
  }
  put(t, scopes);
  for (uint64_t i = 0; i < scopes; ++i) {
    put(t, source() % strings), put(t, source() % strings), put(t, source() % 1000);
    put(t, i ? source() % (i + 1) : 0), put(t, source() % 1000), put(t, source() % 100);
  }
  put(t, blocks);
  for (uint64_t i = 0; i < blocks; ++i) {
    put(t, source() % groups), put(t, source() % 4), put(t, source() % 1000);
    if (flags & ML_TABLE_MIX)
      for (size_t m = 0; m < kMixes; ++m) put(t, source() % 50);
  }
  const uint64_t sites = source() % 6;
  put(t, sites);
  for (uint64_t i = 0; i < sites; ++i) {
    put(t, source() % 8), put(t, source() % 512), put(t, source() % blocks), put(t, source() % groups), put(t, source() >> (source() % 64));
    put(t, source() % (counters + 1)), put(t, source() % (scopes + 1)), put(t, source() % strings), put(t, source() % 1000);
    put(t, source() % 100), put(t, source() % strings);
  }
  if (flags & ML_TABLE_LOOPS) {
    const uint64_t loops = source() % 4;
    put(t, loops);
    for (uint64_t i = 0; i < loops; ++i) {
      put(t, source() % (i + 1)), put(t, source() % (scopes + 1)), put(t, source() % strings), put(t, source() % 1000), put(t, source() % 100);
    }
    for (uint64_t i = 0; i < sites; ++i) put(t, source() % (loops + 1));
  }
  return t;
}

// Exactly as long as it is said to be, so that the sanitizer sees a byte too many.
struct Exact {
  explicit Exact(const std::vector<unsigned char>& bytes) : bytes(std::make_unique<unsigned char[]>(bytes.size())), size(bytes.size()) {
    if (size) memcpy(this->bytes.get(), bytes.data(), size);
  }
  Bytes view() const { return {bytes.get(), size}; }
  std::unique_ptr<unsigned char[]> bytes;
  size_t size;
};

int check(const StaticTables& found) {
  int failed = 0;
  const size_t functions = found.functions.name.size(), groups = found.first_term.size() - 1, strings = found.strings.size();
  failed += found.first_term.back() != found.term_counter.size() || found.term_scale.size() != found.term_counter.size();
  for (size_t i = 0; i < groups; ++i) failed += found.first_term[i] > found.first_term[i + 1];
  for (const uint32_t counter : found.term_counter) failed += counter >= found.counter_kind.size();
  for (size_t i = 0; i < found.scopes.name.size(); ++i) {
    failed += found.scopes.name[i] >= strings || found.scopes.function[i] >= functions;
    size_t steps = 0;
    for (uint32_t at = static_cast<uint32_t>(i); at != kNone && steps <= found.scopes.name.size(); at = found.scopes.parent[at]) ++steps;
    failed += steps > found.scopes.name.size();
  }
  for (size_t i = 0; i < found.blocks.group.size(); ++i)
    failed += found.blocks.function[i] >= functions || (found.blocks.group[i] != kNone && found.blocks.group[i] >= groups);
  for (size_t i = 0; i < found.sites.kind.size(); ++i) {
    failed += found.sites.function[i] >= functions || found.sites.block[i] >= found.blocks.group.size();
    failed += found.sites.group[i] != kNone && found.sites.group[i] >= groups;
    failed += found.sites.scope[i] != kNone && found.sites.scope[i] >= found.scopes.name.size();
    failed += found.sites.bytes_counter[i] != kNone && found.sites.bytes_counter[i] >= found.counter_kind.size();
    failed += found.sites.file[i] >= strings || found.sites.callee[i] >= strings;
  }
  failed += found.loop_of_site.size() != found.sites.kind.size();
  for (const uint32_t loop : found.loop_of_site) failed += loop != kNone && loop >= found.loops.function.size();
  for (size_t i = 0; i < found.loops.function.size(); ++i) {
    failed += found.loops.function[i] >= functions || found.loops.file[i] >= strings;
    failed += found.loops.parent[i] != kNone && found.loops.parent[i] >= i;
    failed += found.loops.scope[i] != kNone && found.loops.scope[i] >= found.scopes.name.size();
  }
  return failed;
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? atoi(argv[1]) : 2000;
  int failed = 0;
  for (int round = 0; round < rounds; ++round) {
    std::vector<unsigned char> heads, tables;
    const uint64_t heads_at = 0x4000, tables_at = 0x1000, functions = source() % 5;
    for (uint64_t i = 0; i < functions; ++i) {
      ml_count_function head{};
      head.counters = static_cast<uint32_t>(source() % 6);
      const auto table = table_of(head.counters);
      head.table = static_cast<int64_t>(tables_at + tables.size() - (heads_at + sizeof head * i + 8));
      head.table_bytes = static_cast<uint32_t>(table.size());
      tables.insert(tables.end(), table.begin(), table.end());
      const auto* raw = reinterpret_cast<const unsigned char*>(&head);
      heads.insert(heads.end(), raw, raw + sizeof head);
    }
    const bool damaged = round % 2 == 1;
    if (damaged) {
      for (uint64_t i = 0; i < 1 + source() % 4; ++i) {
        auto& target = source() % 3 ? tables : heads;
        if (!target.empty()) target[source() % target.size()] = static_cast<unsigned char>(source());
      }
      if (source() % 3 == 0) tables.resize(source() % (tables.size() + 1));
      if (source() % 5 == 0) heads.resize(source() % (heads.size() + 1));
    }
    const Exact first(heads), second(tables);
    const StaticTables found = decode_static_tables(first.view(), heads_at, second.view(), tables_at);
    failed += check(found);
    failed += !damaged && (found.damaged_functions != 0 || !found.problems.empty());
  }
  printf("%d rounds, %d failures\n", rounds, failed);
  return failed == 0 ? 0 : 1;
}
