// Static tables of counted modules: arbitrary bytes, tables as the pass writes them, and those damaged.
//
// Oracles: nothing outside the sections is read; whatever is damaged costs its own function, so that undamaged tables have no problems;
// every number that comes out points into what came out.
#include "counting/static_tables.h"
#include "input.h"
#include "memlens_count.h"

using namespace memlens::counting;
using fuzz::Input;
using ByteVector = fuzz::Bytes;

namespace {

void put(ByteVector& to, uint64_t value) {
  do {
    const auto byte = static_cast<unsigned char>(value & 127);
    value >>= 7;
    to.push_back(static_cast<unsigned char>(byte | (value ? 128 : 0)));
  } while (value);
}

ByteVector table_of(Input& input, uint32_t counters) {
  ByteVector t;
  const uint64_t flags = input.below(2) + (input.one_in(2) ? ML_TABLE_LOOPS : 0);
  const uint64_t strings = 1 + input.below(4), groups = 1 + input.below(4), scopes = input.below(4),
                 blocks = 1 + input.below(3);
  put(t, ML_COUNT_TABLE_VERSION);
  put(t, flags);
  put(t, strings);
  for (uint64_t i = 0; i < strings; ++i) {
    const uint64_t length = i ? input.below(9) : 0;
    put(t, length);
    for (uint64_t c = 0; c < length; ++c) t.push_back(input.byte());
  }
  put(t, input.below(strings)), put(t, input.below(strings)), put(t, input.below(1000));
  put(t, counters);
  for (uint32_t i = 0; i < counters; ++i) put(t, input.below(5));
  put(t, groups);
  for (uint64_t i = 0; i < groups; ++i) {
    const uint64_t terms = counters ? input.below(3) : 0;
    put(t, terms);
    for (uint64_t k = 0; k < terms; ++k)
      put(t, input.below(counters)), t.push_back(static_cast<unsigned char>(input.below(128)));
  }
  put(t, scopes);
  for (uint64_t i = 0; i < scopes; ++i) {
    put(t, input.below(strings)), put(t, input.below(strings)), put(t, input.below(1000));
    put(t, i ? input.below(i + 1) : 0), put(t, input.below(1000)), put(t, input.below(100));
  }
  put(t, blocks);
  for (uint64_t i = 0; i < blocks; ++i) {
    put(t, input.below(groups)), put(t, input.below(4)), put(t, input.below(1000));
    if (flags & ML_TABLE_MIX)
      for (size_t m = 0; m < kMixes; ++m) put(t, input.below(50));
  }
  const uint64_t sites = input.below(6);
  put(t, sites);
  for (uint64_t i = 0; i < sites; ++i) {
    put(t, input.below(8)), put(t, input.below(512)), put(t, input.below(blocks)), put(t, input.below(groups)),
        put(t, input.number());
    put(t, input.below(counters + 1)), put(t, input.below(scopes + 1)), put(t, input.below(strings)),
        put(t, input.below(1000));
    put(t, input.below(100)), put(t, input.below(strings));
  }
  if (flags & ML_TABLE_LOOPS) {
    const uint64_t loops = input.below(4);
    put(t, loops);
    for (uint64_t i = 0; i < loops; ++i) {
      put(t, input.below(i + 1)), put(t, input.below(scopes + 1)), put(t, input.below(strings)),
          put(t, input.below(1000)), put(t, input.below(100));
    }
    for (uint64_t i = 0; i < sites; ++i) put(t, input.below(loops + 1));
  }
  return t;
}

// How many numbers point nowhere.
int check(const StaticTables& found) {
  int failed = 0;
  const size_t functions = found.functions.name.size(), groups = found.first_term.size() - 1,
               strings = found.strings.size();
  failed +=
      found.first_term.back() != found.term_counter.size() || found.term_scale.size() != found.term_counter.size();
  for (size_t i = 0; i < groups; ++i) failed += found.first_term[i] > found.first_term[i + 1];
  for (const uint32_t counter : found.term_counter) failed += counter >= found.counter_kind.size();
  for (size_t i = 0; i < found.scopes.name.size(); ++i) {
    failed += found.scopes.name[i] >= strings || found.scopes.function[i] >= functions;
    size_t steps = 0;
    for (uint32_t at = static_cast<uint32_t>(i); at != kNone && steps <= found.scopes.name.size();
         at = found.scopes.parent[at])
      ++steps;
    failed += steps > found.scopes.name.size();
  }
  for (size_t i = 0; i < found.blocks.group.size(); ++i)
    failed +=
        found.blocks.function[i] >= functions || (found.blocks.group[i] != kNone && found.blocks.group[i] >= groups);
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

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Input input(data, size);
  const uint8_t how = input.byte();
  constexpr uint64_t kHeadsAt = 0x4000, kTablesAt = 0x1000;
  if (how % 4 == 0) {  // two sections of any content
    const fuzz::Exact heads(input.take(input.below(8) * sizeof(ml_count_function) + how / 128)), tables(input.rest());
    fuzz::require(check(decode_static_tables(heads.view(), kHeadsAt, tables.view(), kTablesAt)) == 0,
                  "numbers point into the tables");
    return 0;
  }
  ByteVector heads, tables;
  const uint64_t functions = input.below(5);
  for (uint64_t i = 0; i < functions; ++i) {
    ml_count_function head{};
    head.counters = static_cast<uint32_t>(input.below(6));
    const auto table = how % 4 == 1 ? ByteVector(table_of(input, head.counters)) : [&] {
      const fuzz::View raw = input.take(input.byte());
      return ByteVector(raw.begin(), raw.end());
    }();
    head.table = static_cast<int64_t>(kTablesAt + tables.size() - (kHeadsAt + sizeof head * i + 8));
    head.table_bytes = static_cast<uint32_t>(table.size());
    tables.insert(tables.end(), table.begin(), table.end());
    fuzz::append(heads, head);
  }
  bool damaged = how % 4 != 1;
  for (uint8_t damages = input.byte() % 5; damages > 0; --damages) {
    damaged = true;
    const uint8_t what = input.byte();
    auto& target = what % 3 ? tables : heads;
    if (target.empty()) continue;
    if (what >= 240) target.resize(input.below(target.size() + 1));
    else target[input.below(target.size())] = input.byte();
  }
  const fuzz::Exact first(heads), second(tables);
  const StaticTables found = decode_static_tables(first.view(), kHeadsAt, second.view(), kTablesAt);
  fuzz::require(check(found) == 0, "numbers point into the tables");
  fuzz::require(damaged || (found.damaged_functions == 0 && found.problems.empty()),
                "tables that were written right have no problems");
  return 0;
}
