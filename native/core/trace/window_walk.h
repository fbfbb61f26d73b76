// Walks the accesses of window records in parts, damaged windows left out whole.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <span>
#include <vector>

#include "memlens_format.h"
#include "replay/record_walk.h"
#include "stream_decoder.h"

namespace memlens::trace {

// How many window streams this process has decoded: a report decodes each window once, and a test counts.
inline std::atomic<uint64_t> windows_decoded{0};

// One part of a window's accesses. Times are spread evenly over the window: records have none of their own.
struct Part {
  const ml_window* window;
  uint32_t row;    // of the window in its payload
  uint64_t first;  // accesses of the window before this part
  size_t count;
  uint64_t *code, *address;
  uint32_t* bytes;
  uint8_t* operation;

  uint64_t time_ns(size_t i) const {
    if (window->recorded < 2 || window->end_ns <= window->begin_ns) return window->begin_ns;
    const uint64_t span = window->end_ns - window->begin_ns;
    if (span >> 62 != 0) return window->begin_ns;  // damage
    const double step = static_cast<double>(span) / static_cast<double>(window->recorded - 1);
    // Rounding may go beyond the end when the span has more than 53 bits.
    return window->begin_ns + std::min(span, static_cast<uint64_t>(static_cast<double>(first + i) * step + 0.5));
  }
};

// Buffers for the walk; one for each thread that walks.
class WindowWalker {
 public:
  explicit WindowWalker(size_t part_accesses = 4096)
      : code_(part_accesses), address_(part_accesses), bytes_(part_accesses), operation_(part_accesses) {}

  // Calls sink(Part) for all accesses of a sound window; false, and no call, when it is damaged.
  template <typename Sink>
  bool walk_window(const ml_window& window, uint32_t row, std::span<const unsigned char> stream, Sink&& sink) {
    const uint64_t recorded = window.recorded;
    windows_decoded.fetch_add(recorded != 0, std::memory_order_relaxed);
    const AccessColumns columns{code_.data(), address_.data(), bytes_.data(), operation_.data()};
    if (recorded > most_accesses(stream.size(), window.encoding)) return false;
    const Part part{&window, row, 0, 0, code_.data(), address_.data(), bytes_.data(), operation_.data()};
    if (recorded <= code_.size()) {
      StreamDecoder decoder(stream, window.encoding);
      if (decoder.next(columns, recorded) != recorded || !decoder.at_end()) return false;
      if (recorded == 0) return true;
      Part whole = part;
      whole.count = recorded;
      sink(whole);
      return true;
    }
    if (!is_sound(stream, recorded, window.encoding)) return false;
    StreamDecoder decoder(stream, window.encoding);
    for (uint64_t first = 0; first < recorded;) {
      Part next = part;
      next.first = first;
      next.count = decoder.next(columns, std::min<uint64_t>(recorded - first, code_.size()));
      if (next.count == 0) return false;  // cannot be: it was looked at
      sink(next);
      first += next.count;
    }
    return true;
  }

  // All windows of a payload; `damaged(window, row)` for those left out.
  template <typename Sink, typename Damaged>
  void walk(std::span<const unsigned char> payload, Sink&& sink, Damaged&& damaged) {
    uint32_t row = 0;
    replay::each_variable_record<ml_window>(payload,
                                            [&](const ml_window& window, std::span<const unsigned char> stream) {
                                              if (!walk_window(window, row, stream, sink)) damaged(window, row);
                                              ++row;
                                            });
  }

 private:
  std::vector<uint64_t> code_, address_;
  std::vector<uint32_t> bytes_;
  std::vector<uint8_t> operation_;
};

// The distinct codes of each sound pc_delta window, possibly some of them several times: sink(window, pc).
template <typename Sink>
void each_window_code(std::span<const unsigned char> payload, WindowWalker& walker, Sink&& sink) {
  uint64_t recent[1024];
  uint32_t row = 0, of_row = UINT32_MAX;
  const auto look = [&](const Part& part) {
    if (part.row != of_row) std::fill(std::begin(recent), std::end(recent), ~part.code[0]);
    of_row = part.row;
    for (size_t i = 0; i < part.count; ++i) {
      uint64_t& entry = recent[part.code[i] % 1024];
      if (entry == part.code[i]) continue;
      entry = part.code[i];
      sink(*part.window, part.code[i]);
    }
  };
  replay::each_variable_record<ml_window>(payload, [&](const ml_window& window, std::span<const unsigned char> stream) {
    // Streams of sites have no addresses of code: not even decoded, as this runs beside the program.
    if (window.encoding == ML_ENUM_stream_encoding_PC_DELTA) walker.walk_window(window, row, stream, look);
    ++row;
  });
}

}  // namespace memlens::trace
