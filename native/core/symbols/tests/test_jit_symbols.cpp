// SPDX-License-Identifier: Apache-2.0
// perf maps and jitdumps built by hand, in both byte orders, whole and damaged.
#include <sys/resource.h>

#include <cstring>
#include <random>

#include "check.h"
#include "symbols/jit_symbols.h"

using namespace memlens::symbols;
namespace {

std::string name_at(const JitSymbols& symbols, uint64_t address, uint64_t time_ns = 0) {
  const JitEntry* entry = symbols.resolve(address, time_ns);
  return entry ? entry->name : "";
}

// Writes records as a JIT would.
class DumpWriter {
 public:
  explicit DumpWriter(bool big_endian = false) : big_endian_(big_endian) {
    u32(0x4A695444), u32(1), u32(40), u32(62), u32(0), u32(4711), u64(0), u64(0);
  }
  void load(uint64_t time_ns, uint64_t address, uint64_t n_bytes, uint64_t index, const std::string& name) {
    begin(0, time_ns);
    u32(1), u32(1), u64(address), u64(address), u64(n_bytes), u64(index), text(name);
    bytes.insert(bytes.end(), n_bytes, 0x90);
    end();
  }
  void move(uint64_t time_ns, uint64_t from, uint64_t to, uint64_t n_bytes, uint64_t index) {
    begin(1, time_ns);
    u32(1), u32(1), u64(to), u64(from), u64(to), u64(n_bytes), u64(index);
    end();
  }
  struct Line {
    uint64_t address;
    uint32_t line;
    std::string file;
  };
  void debug_info(uint64_t time_ns, uint64_t address, const std::vector<Line>& lines) {
    begin(2, time_ns);
    u64(address), u64(lines.size());
    for (const Line& l : lines) u64(l.address), u32(l.line), u32(0), text(l.file);
    end();
  }
  void unknown(uint32_t id) { begin(id, 0), u64(1), end(); }
  void close() { begin(3, 0), end(); }

  std::vector<uint8_t> bytes;

 private:
  void u32(uint32_t v) { put(big_endian_ ? __builtin_bswap32(v) : v); }
  void u64(uint64_t v) { put(big_endian_ ? __builtin_bswap64(v) : v); }
  void text(const std::string& t) { bytes.insert(bytes.end(), t.c_str(), t.c_str() + t.size() + 1); }
  template <typename T>
  void put(T v) {
    const auto* p = reinterpret_cast<const uint8_t*>(&v);
    bytes.insert(bytes.end(), p, p + sizeof v);
  }
  void begin(uint32_t id, uint64_t time_ns) { begin_ = bytes.size(), u32(id), u32(0), u64(time_ns); }
  void end() {
    auto n_bytes = static_cast<uint32_t>(bytes.size() - begin_);
    if (big_endian_) n_bytes = __builtin_bswap32(n_bytes);
    std::memcpy(bytes.data() + begin_ + 4, &n_bytes, 4);
  }
  bool big_endian_;
  size_t begin_ = 0;
};

DumpWriter example(bool big_endian) {
  DumpWriter dump(big_endian);
  dump.debug_info(10, 0x1000, {{0x1000, 5, "/src/a.js"}, {0x1008, 6, "\xff"}, {0x1004, 9, "/src/b.js"}});
  dump.load(10, 0x1000, 0x10, 1, "first");
  dump.unknown(4);
  dump.load(20, 0x2000, 0x20, 2, "second");
  dump.load(30, 0x1000, 0x08, 3, "reused");
  dump.move(40, 0x2000, 0x5000, 0x20, 2);
  return dump;
}

}  // namespace

TEST(perf_map_reads_hex_with_and_without_prefix_and_names_with_spaces) {
  const auto s = JitSymbols::parse_perf_map("1000 10 plain\n0x2000 0X20 LazyCompile:~f a.js:1 (x)\r\nABCDEF 1 upper");
  CHECK_EQUAL(s.n_malformed(), 0u);
  CHECK_EQUAL(name_at(s, 0x1000), "plain");
  CHECK_EQUAL(name_at(s, 0x100f), "plain");
  CHECK_EQUAL(name_at(s, 0x1010), "");
  CHECK_EQUAL(name_at(s, 0xfff), "");
  CHECK_EQUAL(name_at(s, 0x201f), "LazyCompile:~f a.js:1 (x)");
  CHECK_EQUAL(name_at(s, 0xabcdef, UINT64_MAX - 1), "upper");
}

TEST(perf_map_later_lines_override_earlier_ones_where_they_overlap) {
  const auto s = JitSymbols::parse_perf_map("1000 100 old\n1040 40 inner\n1000 10 start\n10f0 100 tail\n");
  CHECK_EQUAL(name_at(s, 0x1000), "start");
  CHECK_EQUAL(name_at(s, 0x1010), "old");
  CHECK_EQUAL(name_at(s, 0x1040), "inner");
  CHECK_EQUAL(name_at(s, 0x1080), "old");
  CHECK_EQUAL(name_at(s, 0x10f0), "tail");
  CHECK_EQUAL(name_at(s, 0x11ef), "tail");
}

TEST(perf_map_malformed_lines_are_counted_and_skipped) {
  const auto s = JitSymbols::parse_perf_map(
      "\n\nzzz 10 a\n1000\n1000 10\n1000 10 \n1000 0 empty\nffffffffffffffff 10 "
      "top\n11112222333344445 1 long\n2000 10 good\n");
  CHECK_EQUAL(s.n_malformed(), 7u);
  CHECK_EQUAL(s.entries().size(), 1u);
  CHECK_EQUAL(name_at(s, 0x2000), "good");
}

TEST(perf_map_agrees_with_painting_every_address) {
  std::mt19937 random(3);
  std::string text;
  std::vector<int> painted(600, -1);
  for (int i = 0; i < 400; ++i) {
    const unsigned begin = random() % 500, n_bytes = 1 + random() % 100;
    char line[64];
    std::snprintf(line, sizeof line, "%x %x f%d\n", 0x1000 + begin, n_bytes, i);
    text += line;
    for (unsigned a = begin; a < begin + n_bytes; ++a) painted[a] = i;
    const auto s = JitSymbols::parse_perf_map(text);
    for (unsigned a = 0; a < painted.size(); a += 7)
      CHECK_EQUAL(name_at(s, 0x1000 + a), painted[a] < 0 ? "" : "f" + std::to_string(painted[a]));
  }
}

TEST(jitdump_follows_loads_reuse_and_moves_in_time) {
  for (const bool big_endian : {false, true}) {
    const auto s = JitSymbols::parse_jitdump(example(big_endian).bytes);
    CHECK_EQUAL(s.status(), "");
    CHECK_EQUAL(s.big_endian(), big_endian);
    CHECK_EQUAL(s.pid(), 4711u);
    CHECK_EQUAL(s.elf_machine(), 62u);
    CHECK(!s.truncated() && !s.closed());
    CHECK_EQUAL(s.n_malformed(), 0u);
    CHECK_EQUAL(name_at(s, 0x1000, 9), "");
    CHECK_EQUAL(name_at(s, 0x1000, 10), "first");
    CHECK_EQUAL(name_at(s, 0x1000, 30), "reused");
    CHECK_EQUAL(name_at(s, 0x1008, 30), "first");
    CHECK_EQUAL(name_at(s, 0x2010, 39), "second");
    CHECK_EQUAL(name_at(s, 0x2010, 40), "");
    CHECK_EQUAL(name_at(s, 0x5010, 39), "");
    CHECK_EQUAL(name_at(s, 0x5010, 40), "second");
  }
}

TEST(jitdump_lines_are_sorted_and_repeat_their_file) {
  const auto s = JitSymbols::parse_jitdump(example(false).bytes);
  const JitEntry* entry = s.resolve(0x1000, 15);
  CHECK(entry && entry->lines && entry->lines->size() == 3);
  if (!entry || !entry->lines) return;
  CHECK_EQUAL(entry->line_at(0x1003)->line, 5u);
  CHECK_EQUAL(entry->line_at(0x1004)->line, 9u);
  CHECK_EQUAL(entry->line_at(0x1004)->file(), "/src/b.js");
  CHECK_EQUAL(entry->line_at(0x100f)->line, 6u);
  CHECK_EQUAL(entry->line_at(0x100f)->file(), "/src/a.js");
  CHECK(entry->line_at(0x1010) == nullptr);
  CHECK(s.resolve(0x1000, 35)->line_at(0x1000) == nullptr);
}

// A dump of 50 kB: each of 1000 lines repeats a name of 16 kB, and the code with these lines is moved 200 times.
TEST(jitdump_lines_and_moves_share_what_they_repeat) {
  DumpWriter dump;
  std::vector<DumpWriter::Line> lines = {{0x1000, 1, std::string(16000, 'f')}};
  for (uint32_t i = 1; i < 1000; ++i) lines.push_back({0x1000 + i % 16, i, "\xff"});
  dump.debug_info(10, 0x1000, lines);
  dump.load(10, 0x1000, 0x10, 1, std::string(9000, 'n'));
  for (uint64_t i = 0; i < 200; ++i) dump.move(20 + i, 0x1000 * (i + 1), 0x1000 * (i + 2), 0x10, 1);
  const auto peak_kib = [] {
    rusage use{};
    getrusage(RUSAGE_SELF, &use);
    return use.ru_maxrss;
  };
  const long before = peak_kib();
  const auto s = JitSymbols::parse_jitdump(dump.bytes);
  CHECK(peak_kib() - before < 100 << 10);  // 3 GiB when each has its own
  CHECK_EQUAL(s.entries().size(), 201u);
  const JitEntry* last = s.resolve(0x1000 * 201, 1000);
  CHECK(last != nullptr && last->line_at(0x1000 * 201 + 15) != nullptr);
  if (last == nullptr || last->line_at(0x1000 * 201) == nullptr) return;
  CHECK_EQUAL(last->line_at(0x1000 * 201 + 15)->file(), std::string(16000, 'f'));
  CHECK_EQUAL(last->name, std::string(kLongestJitName, 'n'));
}

TEST(jitdump_truncated_anywhere_keeps_the_whole_records) {
  const std::vector<uint8_t> whole = example(false).bytes;
  size_t n_entries = 0;
  for (size_t n_bytes = 40; n_bytes <= whole.size(); ++n_bytes) {
    const auto s = JitSymbols::parse_jitdump({whole.data(), n_bytes});
    CHECK_EQUAL(s.status(), "");
    CHECK(s.entries().size() >= n_entries);
    n_entries = s.entries().size();
  }
  CHECK_EQUAL(n_entries, 4u);
  CHECK(JitSymbols::parse_jitdump({whole.data(), whole.size() - 1}).truncated());
}

TEST(jitdump_stops_at_its_close_record) {
  DumpWriter dump = example(false);
  dump.close();
  dump.load(50, 0x9000, 8, 9, "after the end");
  const auto s = JitSymbols::parse_jitdump(dump.bytes);
  CHECK(s.closed());
  CHECK_EQUAL(name_at(s, 0x9000, 99), "");
}

TEST(other_files_say_what_they_are) {
  const std::string text = "hello, world: not a dump at all, really not";
  const auto s = JitSymbols::parse_jitdump({reinterpret_cast<const uint8_t*>(text.data()), text.size()});
  CHECK(s.status().find("JiTD") != std::string::npos);
  CHECK(JitSymbols::read_jitdump("/no/such/file").status().find("cannot open") != std::string::npos);
  CHECK(JitSymbols::read_perf_map("/no/such/file").status().find("cannot open") != std::string::npos);
  DumpWriter dump;
  dump.bytes[4] = 9;
  CHECK(JitSymbols::parse_jitdump(dump.bytes).status().find("version 9") != std::string::npos);
}

TEST(random_damage_never_crashes) {
  std::mt19937 random(11);
  const std::vector<uint8_t> whole = example(false).bytes;
  const std::string map = "1000 100 old\n1040 40 inner\n1000 10 start\n10f0 100 tail\n";
  for (int round = 0; round < 3000; ++round) {
    std::vector<uint8_t> dump = whole;
    for (unsigned n = 1 + random() % 6; n > 0; --n) dump[random() % dump.size()] ^= uint8_t(1u << random() % 8);
    if (round % 3 == 0) dump.resize(random() % dump.size());
    const auto s = JitSymbols::parse_jitdump(dump);
    name_at(s, 0x1000, 30), name_at(s, random(), random());
    std::string text = map;
    for (unsigned n = 1 + random() % 6; n > 0; --n) text[random() % text.size()] ^= char(1u << random() % 8);
    name_at(JitSymbols::parse_perf_map(text), 0x1000);
  }
  CHECK(true);
}

int main(int argc, char** argv) { return check::run_all(argc, argv); }
