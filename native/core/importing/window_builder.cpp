#include "window_builder.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

namespace memlens::importing {

void ChunkSink::add(uint32_t process, const ml_window& window, std::span<const unsigned char> stream) {
  ImportedChunk& chunk = open_[process];
  if (chunk.records == 0) {
    chunk.process = process;
    chunk.begin_ns = window.begin_ns;
    chunk.end_ns = window.end_ns;
  }
  const auto* fixed = reinterpret_cast<const unsigned char*>(&window);
  chunk.payload.insert(chunk.payload.end(), fixed, fixed + sizeof window);
  chunk.payload.insert(chunk.payload.end(), stream.begin(), stream.end());
  chunk.payload.resize((chunk.payload.size() + 7) & ~size_t{7});
  chunk.begin_ns = std::min(chunk.begin_ns, window.begin_ns);
  chunk.end_ns = std::max(chunk.end_ns, window.end_ns);
  ++chunk.records;
  ++windows_;
  accesses_ += window.recorded;
  stream_bytes_ += stream.size();
  first_ns_ = std::min(first_ns_, window.begin_ns);
  last_ns_ = std::max(last_ns_, window.end_ns);
  if (chunk.payload.size() >= chunk_bytes_) done_.push_back(std::exchange(chunk, {}));
}

void ChunkSink::flush() {
  for (auto& [process, chunk] : open_)
    if (chunk.records != 0) done_.push_back(std::move(chunk));
  open_.clear();
}

std::vector<ImportedChunk> ChunkSink::take() { return std::exchange(done_, {}); }

ThreadWindows::ThreadWindows(ChunkSink& sink, uint32_t process, uint32_t thread, uint32_t window_accesses)
    : sink_(&sink), process_(process), thread_(thread), window_accesses_(window_accesses) {}

void ThreadWindows::begin_window(uint64_t time_ns) {
  if (!state_) state_ = std::make_unique<ml_stream>();  // zeros
  ml_stream_begin(state_.get());
  at_ = buffer_.get();
  begin_ns_ = time_ns;
}

void ThreadWindows::grow() {
  const auto used = static_cast<size_t>(at_ - buffer_.get()), room = static_cast<size_t>(room_end_ - buffer_.get());
  const size_t larger = std::max(room * 4, size_t{16} * ML_STREAM_MAX_ACCESS);
  auto buffer = std::make_unique_for_overwrite<unsigned char[]>(larger);
  if (used != 0) memcpy(buffer.get(), buffer_.get(), used);
  buffer_ = std::move(buffer);
  at_ = buffer_.get() + used;
  room_end_ = buffer_.get() + larger;
}

void ThreadWindows::write(uint64_t executed, uint64_t period) {
  const uint64_t after = first_executed_ + recorded_ + implied_;
  if (recorded_ != 0) {
    ml_window window{};
    window.begin_ns = begin_ns_;
    window.end_ns = std::max(end_ns_, begin_ns_);
    window.first_executed = first_executed_;
    window.executed = executed;
    window.recorded = recorded_;
    window.implied_constant = static_cast<uint32_t>(std::min<uint64_t>(implied_, std::numeric_limits<uint32_t>::max()));
    window.thread = thread_;
    window.tail_bytes = static_cast<uint32_t>(at_ - buffer_.get());
    window.cpu = cpu_;
    window.encoding = ML_ENUM_stream_encoding_PC_DELTA;
    window.period = period == 0 ? recorded_ : period;
    sink_->add(process_, window, {buffer_.get(), window.tail_bytes});
  }
  first_executed_ = after;
  recorded_ = 0;
  implied_ = 0;
}

void ThreadWindows::end_sample(uint64_t period, uint64_t distance) {
  // Parts of a long sample have been written with what they recorded; the last one has the rest of the period.
  const uint64_t before = first_executed_ - sample_first_;
  const uint64_t rest = period > before ? period - before : 0;
  write(std::max<uint64_t>(rest, recorded_ + implied_), period);
  first_executed_ = std::max(first_executed_, sample_first_ + distance);
  sample_first_ = first_executed_;
}

void ThreadWindows::gap() {
  if (recorded_ == 0 && first_executed_ == sample_first_) return;  // nothing since the last gap
  end_window();
  sample_first_ = ++first_executed_;
}

void ThreadWindows::release() {
  end_window();
  state_.reset();
  buffer_.reset();
  at_ = room_end_ = nullptr;
}

}  // namespace memlens::importing
