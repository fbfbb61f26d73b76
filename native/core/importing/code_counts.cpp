#include "code_counts.h"

#include <algorithm>

namespace memlens::importing {

uint32_t CodeCounts::find(uint64_t time_ns, uint64_t pc) {
  const auto [found, is_new] = index_.try_emplace(pc, static_cast<uint32_t>(counts_.size()));
  if (is_new) {
    ml_code_count count{};
    count.time_ns = time_ns;
    count.pc = pc;
    counts_.push_back(count);
  }
  return found->second;
}

const CodeCounts::Recent& CodeCounts::remember(uint64_t time_ns, uint64_t pc) {
  const uint32_t at = find(time_ns, pc);
  if (counts_.size() > recent_.size() && recent_.size() < kRecent) recent_.assign(kRecent, {});
  return recent_[pc & (recent_.size() - 1)] = {pc, at};
}

void CodeCounts::append_to(std::vector<ImportedChunk>& chunks, uint32_t process, uint32_t thread) const {
  constexpr size_t kRecords = kChunkBytes / sizeof(ml_code_count);
  for (size_t first = 0; first < counts_.size(); first += kRecords) {
    const size_t count = std::min(kRecords, counts_.size() - first);
    ImportedChunk chunk;
    chunk.process = process;
    chunk.records = static_cast<uint32_t>(count);
    chunk.begin_ns = UINT64_MAX;
    chunk.payload.reserve(count * sizeof(ml_code_count));
    for (size_t i = first; i < first + count; ++i) {
      ml_code_count record = counts_[i];
      record.thread = thread;
      chunk.begin_ns = std::min(chunk.begin_ns, record.time_ns);
      chunk.end_ns = std::max(chunk.end_ns, record.time_ns);
      const auto* raw = reinterpret_cast<const unsigned char*>(&record);
      chunk.payload.insert(chunk.payload.end(), raw, raw + sizeof record);
    }
    chunks.push_back(std::move(chunk));
  }
}

}  // namespace memlens::importing
