// Reads traces of valgrind's lackey (--trace-mem=yes):
//
//   I  04001100,3     an instruction of 3 bytes at 0x4001100
//    L 1ffeffe7e0,8   a load of 8 bytes by it; S a store, M a load and a store of the same bytes
//   ==4711== text     valgrind's own words: skipped (also --4711-- and **4711**)
//
// Lackey records neither time nor thread: an instruction is one nanosecond (an access, where instructions are not traced),
// and all threads are one.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "code_counts.h"
#include "line_reader.h"
#include "window_builder.h"

namespace memlens::importing {

class LackeyImport {
 public:
  static constexpr uint64_t kMostBytes = 1 << 20;  // of an access: more is no access of any machine

  LackeyImport(ChunkSink& sink, uint32_t process, bool skip_malformed);

  // The next block of the file. False when a line could not be read and such lines are not skipped.
  bool feed(std::span<const unsigned char> block);
  bool finish();

  // Exact counts of all instructions, at the end.
  std::vector<ImportedChunk> code_counts() const;

  const LineReader& lines() const { return lines_; }
  const LineFaults& faults() const { return faults_; }
  uint64_t instructions() const { return instructions_; }
  uint64_t loads() const { return loads_; }
  uint64_t stores() const { return stores_; }
  // Process ids that valgrind's own lines begin with, the first of each; what it says it runs.
  const std::vector<uint64_t>& pids() const { return pids_; }
  const std::string& command() const { return command_; }

 private:
  bool take(std::string_view line, uint64_t number);
  bool take_own_words(std::string_view line);
  void access(uint64_t address, uint64_t bytes, unsigned operation);

  static constexpr uint32_t kThread = 1;
  uint32_t process_;
  ThreadWindows windows_;
  CodeCounts counts_;
  LineReader lines_;
  LineFaults faults_;
  uint64_t pc_ = 0, now_ns_ = 0;
  uint64_t instructions_ = 0, loads_ = 0, stores_ = 0;
  std::vector<uint64_t> pids_;
  std::string command_;
};

}  // namespace memlens::importing
