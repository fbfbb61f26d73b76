// Exact counts of each instruction of a full trace: the same `code_count` records that the emulator makes, so that
// figures by function and line need no estimate. Memory grows with the code that ran, not with the trace.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "memlens_format.h"
#include "window_builder.h"

namespace memlens::importing {

class CodeCounts {
 public:
  void add(uint64_t time_ns, uint64_t pc, uint32_t bytes, bool is_store) {
    // A power of two: few for a thread that ran little code, as a trace may have millions of such.
    const Recent* recent = &recent_[pc & (recent_.size() - 1)];
    if (recent->pc != pc || recent->at == kNone) [[unlikely]]
      recent = &remember(time_ns, pc);
    ml_code_count& count = counts_[recent->at];
    if (is_store) {
      count.store_width = merged(count.store_width, count.stores, bytes);
      ++count.stores;
      count.store_bytes += bytes;
    } else {
      count.load_width = merged(count.load_width, count.loads, bytes);
      ++count.loads;
      count.load_bytes += bytes;
    }
  }

  // Records of this thread, as chunks.
  void append_to(std::vector<ImportedChunk>& chunks, uint32_t process, uint32_t thread) const;

 private:
  static constexpr size_t kFirst = 16, kRecent = 4096;
  static constexpr uint32_t kNone = UINT32_MAX;
  struct Recent {
    uint64_t pc = 0;
    uint32_t at = kNone;
  };
  // The width of all, 0 once they differ.
  static uint16_t merged(uint16_t width, uint64_t before, uint32_t bytes) {
    if (before == 0) return bytes <= UINT16_MAX ? static_cast<uint16_t>(bytes) : 0;
    return width == bytes ? width : 0;
  }
  uint32_t find(uint64_t time_ns, uint64_t pc);
  const Recent& remember(uint64_t time_ns, uint64_t pc);

  std::vector<Recent> recent_ = std::vector<Recent>(kFirst);
  std::unordered_map<uint64_t, uint32_t> index_;
  std::vector<ml_code_count> counts_;
};

}  // namespace memlens::importing
