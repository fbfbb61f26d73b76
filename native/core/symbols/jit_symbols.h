// SPDX-License-Identifier: Apache-2.0
// Names of code that was made at run time, from the two files just-in-time compilers write for
// perf: `perf-PID.map` (text, no times) and `jit-PID.dump` (binary, with times, moves and lines).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "byte_cursor.h"

namespace memlens::symbols {

// Lines and the names of their files are shared: a dump of a megabyte may name one file, or move one piece of code, tens of
// thousands of times.
struct JitLine {
  uint64_t offset_bytes;  // from the entry's begin: survives a move
  uint32_t line;
  std::shared_ptr<const std::string> file_name;
  const std::string& file() const { return *file_name; }
};
inline constexpr size_t kLongestJitName = 4096;  // of code; more is cut

struct JitEntry {
  uint64_t begin, end;                // addresses, end exclusive
  uint64_t begin_time_ns = 0;         // 0 in a perf map: always there
  uint64_t end_time_ns = UINT64_MAX;  // when it was moved away
  uint64_t code_index = 0;            // the compiler's own number for this code
  std::string name;
  std::shared_ptr<const std::vector<JitLine>> lines;  // by offset; null: none

  // The line at an address of this entry; null when unknown.
  const JitLine* line_at(uint64_t address) const;
};

class JitSymbols {
 public:
  JitSymbols() = default;
  static JitSymbols parse_perf_map(std::string_view text);
  static JitSymbols parse_jitdump(Bytes bytes);
  // As above from a file; status() says when it cannot be read.
  static JitSymbols read_perf_map(const std::string& path);
  static JitSymbols read_jitdump(const std::string& path);

  const std::string& status() const { return status_; }  // "" when fine, else cause and remedy
  uint64_t n_malformed() const { return n_malformed_; }  // lines or records skipped
  bool truncated() const { return truncated_; }          // the last record was incomplete
  bool closed() const { return closed_; }                // the compiler finished its dump
  bool big_endian() const { return big_endian_; }
  uint32_t elf_machine() const { return elf_machine_; }  // EM_*, 0 in a perf map
  uint32_t pid() const { return pid_; }
  const std::vector<JitEntry>& entries() const { return entries_; }  // by begin address

  // The code at `address` at `time_ns`: of those present then, the one that was written last.
  const JitEntry* resolve(uint64_t address, uint64_t time_ns) const;

 private:
  friend class JitdumpReader;
  void finish();

  std::string status_;
  std::vector<JitEntry> entries_;
  std::vector<uint32_t> order_;    // position in the file, per entry: later overrides earlier
  std::vector<uint64_t> max_end_;  // largest end among entries_[0..i]: bounds the backward search
  uint64_t n_malformed_ = 0;
  bool truncated_ = false, closed_ = false, big_endian_ = false;
  uint32_t elf_machine_ = 0, pid_ = 0;
};

}  // namespace memlens::symbols
