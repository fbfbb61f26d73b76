// Reads DynamoRIO's offline memory traces (drmemtrace): a stream of entries of 12 bytes,
//
//   u16 type, u16 size, u64 address
//
// little endian, as its trace_entry.h gives them: a header with the version, the thread and process that the next
// entries belong to, instructions, the loads and stores of each, markers with time and CPU, and a footer. A file holds
// one thread, or the threads that ran on one core.
//
// Times are the markers' microseconds as nanoseconds since 1970; between two of them an instruction is one nanosecond.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "code_counts.h"
#include "window_builder.h"

namespace memlens::importing {

class DrmemtraceImport {
 public:
  static constexpr size_t kEntryBytes = 12;
  static constexpr size_t kOpenThreads = 1024;
  static constexpr uint64_t kOldestVersion = 1, kNewestVersion = 7;
  static constexpr uint64_t kFiltered = 0x1 | 0x80 | 0x100 | 0x2000;  // of file types

  // What cannot be read, and where it stands in the file.
  struct Fault {
    uint64_t byte = 0;
    std::string text;
  };
  struct Thread {
    uint32_t process;
    uint64_t pid, tid, first_ns, last_ns, accesses;
  };

  explicit DrmemtraceImport(ChunkSink& sink, uint32_t first_process = 1) : sink_(&sink), next_process_(first_process) {}

  // Before each file; files are read one after the other.
  void begin_file();
  // False when the file is not what it should be: see fault().
  bool feed(std::span<const unsigned char> block);
  // Ends the windows of its threads. False when the file had not one whole entry.
  bool end_file();

  // Exact counts of all instructions, at the end; nothing when the tracer left accesses out.
  std::vector<ImportedChunk> code_counts() const;

  const std::optional<Fault>& fault() const { return fault_; }
  bool has_footer() const { return has_footer_; }    // of the file read last
  size_t left_bytes() const { return left_bytes_; }  // of an entry that was cut, in the file read last
  uint64_t version() const { return version_; }
  uint64_t file_type() const { return file_type_; }
  uint64_t instructions() const { return instructions_; }
  uint64_t loads() const { return loads_; }
  uint64_t stores() const { return stores_; }
  uint64_t prefetches() const { return prefetches_; }
  uint64_t flushes() const { return flushes_; }
  uint64_t gaps() const { return gaps_; }
  // The tracer left accesses out that it found in its own model of a cache.
  bool is_filtered() const { return (file_type_ & kFiltered) != 0; }
  std::vector<Thread> threads() const;

 private:
  struct State {
    State(ChunkSink& sink, uint32_t process, uint32_t thread) : windows(sink, process, thread) {}
    ThreadWindows windows;
    CodeCounts counts;
    uint32_t process = 0;
    uint64_t now_ns = 0, first_ns = 0, accesses = 0, window_id = 0;
    bool has_window = false;
  };
  struct Entry {
    uint16_t type, size;
    uint64_t address;
  };
  bool take(const Entry& entry);
  bool take_access(const Entry& entry);
  bool take_marker(const Entry& entry);
  void take_bundle(const Entry& entry);
  bool use_thread();
  void leave_thread();
  bool refuse(std::string text);

  ChunkSink* sink_;
  uint32_t next_process_;
  std::map<uint64_t, uint32_t> processes_;  // by pid
  std::map<uint64_t, uint64_t> pid_of_thread_;
  std::map<std::pair<uint64_t, uint64_t>, State> threads_;  // by pid and thread id
  State* thread_ = nullptr;
  uint64_t pid_ = 0, tid_ = 0, pc_ = 0, next_pc_ = 0;
  std::vector<unsigned char> rest_;
  uint64_t entries_ = 0;
  uint64_t version_ = 0, file_type_ = 0;
  uint64_t instructions_ = 0, loads_ = 0, stores_ = 0, prefetches_ = 0, flushes_ = 0, gaps_ = 0;
  size_t left_bytes_ = 0;
  bool has_footer_ = false;
  std::optional<Fault> fault_;
};

}  // namespace memlens::importing
