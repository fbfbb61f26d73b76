// SPDX-License-Identifier: Apache-2.0
// The jitdump format (Linux: tools/perf/Documentation/jitdump-specification.txt):
//   header   magic 'JiTD' | version | header bytes | ELF machine | pad | pid | time_ns u64 | flags
//   u64 record   id u32 | record bytes u32 | time_ns u64 | body by id
// The writer's byte order is that in which the magic reads right.
#include <algorithm>
#include <unordered_map>

#include "jit_symbols.h"

namespace memlens::symbols {
namespace {

constexpr uint32_t kMagic = 0x4A695444, kMagicSwapped = 0x4454694A;
constexpr uint64_t kPrefixBytes = 16;
enum RecordId : uint32_t { code_load = 0, code_move = 1, code_debug_info = 2, code_close = 3 };

}  // namespace

class JitdumpReader {
 public:
  JitdumpReader(Bytes bytes, JitSymbols& out) : bytes_(bytes), cursor_(bytes), out_(out) {}

  void run() {
    const uint32_t magic = cursor_.u32();
    swapped_ = magic == kMagicSwapped;
    if (cursor_.failed() || (magic != kMagic && !swapped_)) {
      out_.status_ = "not a jitdump: it does not begin with 'JiTD'";
      return;
    }
    out_.big_endian_ = swapped_;  // this code runs on little-endian machines
    const uint32_t version = u32();
    const uint32_t header_bytes = u32();
    out_.elf_machine_ = u32();
    u32();
    out_.pid_ = u32();
    u64(), u64();  // start time, flags
    if (cursor_.failed() || version != 1 || header_bytes < 40) {
      out_.status_ = "jitdump version " + std::to_string(version) + " with a header of " +
                     std::to_string(header_bytes) + " bytes; this build reads version 1 (40 bytes)";
      return;
    }
    cursor_.seek(header_bytes);
    while (!cursor_.failed() && !cursor_.at_end() && !out_.closed_) read_record();
    out_.truncated_ |= cursor_.failed();
  }

 private:
  uint32_t u32() {
    const uint32_t value = cursor_.u32();
    return swapped_ ? __builtin_bswap32(value) : value;
  }
  uint64_t u64() {
    const uint64_t value = cursor_.u64();
    return swapped_ ? __builtin_bswap64(value) : value;
  }

  void read_record() {
    const uint64_t begin = cursor_.offset();
    const uint32_t id = u32();
    const uint32_t record_bytes = u32();
    const uint64_t time_ns = u64();
    if (cursor_.failed()) return;
    if (record_bytes < kPrefixBytes) {  // no way to find the next record
      ++out_.n_malformed_;
      cursor_.fail();
      return;
    }
    if (record_bytes > bytes_.size() - begin) {  // the compiler died while writing
      cursor_.fail();
      return;
    }
    // Bodies are read inside their record, so a bad length cannot reach into the next one.
    const ByteCursor after(bytes_, begin + record_bytes);
    cursor_ = ByteCursor(bytes_.first(begin + record_bytes), begin + kPrefixBytes);
    switch (id) {
      case code_load: load(time_ns); break;
      case code_move: move(time_ns); break;
      case code_debug_info: debug_info(); break;
      case code_close: out_.closed_ = true; break;
      default: break;  // unwinding info and what comes later: their length is enough
    }
    if (cursor_.failed()) ++out_.n_malformed_;
    cursor_ = after;
  }

  void load(uint64_t time_ns) {
    u32(), u32(), u64();  // pid, tid, vma
    const uint64_t begin = u64();
    const uint64_t n_bytes = u64();
    const uint64_t code_index = u64();
    const std::string_view name = cursor_.c_string();
    auto lines = std::move(pending_lines_);
    pending_lines_.clear();
    if (cursor_.failed() || begin + n_bytes <= begin) return cursor_.fail();
    JitEntry entry{.begin = begin,
                   .end = begin + n_bytes,
                   .begin_time_ns = time_ns,
                   .code_index = code_index,
                   .name = std::string(name.substr(0, kLongestJitName)),
                   .lines = {}};
    if (pending_address_ == begin) {
      std::vector<JitLine> own;
      for (auto& [address, line] : lines)
        if (address >= begin) line.offset_bytes = address - begin, own.push_back(std::move(line));
      std::stable_sort(own.begin(), own.end(),
                       [](const JitLine& a, const JitLine& b) { return a.offset_bytes < b.offset_bytes; });
      if (!own.empty()) entry.lines = std::make_shared<const std::vector<JitLine>>(std::move(own));
    }
    newest_by_index_[code_index] = out_.entries_.size();
    out_.entries_.push_back(std::move(entry));
  }

  void move(uint64_t time_ns) {
    u32(), u32(), u64();
    const uint64_t old_begin = u64();
    const uint64_t new_begin = u64();
    const uint64_t n_bytes = u64();
    const uint64_t code_index = u64();
    auto found = newest_by_index_.find(code_index);
    if (cursor_.failed() || new_begin + n_bytes <= new_begin || found == newest_by_index_.end() ||
        out_.entries_[found->second].begin != old_begin)
      return cursor_.fail();
    JitEntry moved = out_.entries_[found->second];
    out_.entries_[found->second].end_time_ns = time_ns;
    moved.begin = new_begin;
    moved.end = new_begin + n_bytes;
    moved.begin_time_ns = time_ns;
    found->second = out_.entries_.size();
    out_.entries_.push_back(std::move(moved));
  }

  // Comes before the load record of the code that it describes.
  void debug_info() {
    pending_address_ = u64();
    const uint64_t n_entries = u64();
    pending_lines_.clear();
    auto previous_file = std::make_shared<const std::string>();
    for (uint64_t i = 0; i < n_entries && !cursor_.failed(); ++i) {
      const uint64_t address = u64();
      const uint32_t line = u32();
      u32();  // discriminator
      const std::string_view file = cursor_.c_string();
      if (cursor_.failed()) break;
      if (file != "\xff") previous_file = std::make_shared<const std::string>(file);  // 0xff: the same file as before
      pending_lines_.emplace_back(address, JitLine{0, line, previous_file});
    }
  }

  Bytes bytes_;
  ByteCursor cursor_;
  JitSymbols& out_;
  bool swapped_ = false;
  uint64_t pending_address_ = 0;
  std::vector<std::pair<uint64_t, JitLine>> pending_lines_;
  std::unordered_map<uint64_t, size_t> newest_by_index_;
};

JitSymbols JitSymbols::parse_jitdump(Bytes bytes) {
  JitSymbols symbols;
  JitdumpReader(bytes, symbols).run();
  symbols.finish();
  return symbols;
}

}  // namespace memlens::symbols
