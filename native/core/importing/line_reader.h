// Lines of a text trace that comes in blocks of any size, with their numbers.
//
// Only the part of a line that a block leaves over is kept. A line longer than kLongestLine is not a line of a
// trace: the file is rejected before it fills the memory.
#pragma once

#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace memlens::importing {

inline constexpr size_t kLongestLine = 1 << 16;

// A line that could not be read.
struct Malformed {
  uint64_t line = 0;
  std::string text;      // its beginning, as it stands there
  std::string expected;  // what should have stood there
};

// What became of lines that could not be read.
struct LineFaults {
  bool skip = false;  // count them and go on
  uint64_t skipped = 0;
  std::optional<Malformed> first;

  // True when reading goes on.
  bool add(uint64_t line, std::string_view text, std::string expected) {
    ++skipped;
    if (!first) first = Malformed{line, std::string(text.substr(0, 120)), std::move(expected)};
    return skip;
  }
};

class LineReader {
 public:
  // Calls take(line, number) for each whole line, without its end; stops when it returns false. False when it stopped.
  template <typename Take>
  bool feed(std::span<const unsigned char> block, LineFaults& faults, Take&& take) {
    const char* at = reinterpret_cast<const char*>(block.data());
    const char* const end = at + block.size();
    if (!rest_.empty() || skipping_) {
      const char* stop = static_cast<const char*>(memchr(at, '\n', static_cast<size_t>(end - at)));
      if (!skipping_) rest_.append(at, stop ? stop : end);
      if (!keep_short(faults)) return false;
      if (!stop) return true;
      at = stop + 1;
      const bool was_skipping = skipping_;
      skipping_ = false;
      if (!was_skipping && !take(without_return(rest_), ++number_)) return false;
      rest_.clear();
    }
    while (at < end) {
      const char* stop = static_cast<const char*>(memchr(at, '\n', static_cast<size_t>(end - at)));
      if (!stop) {
        rest_.assign(at, end);
        return keep_short(faults);
      }
      if (!take(without_return({at, static_cast<size_t>(stop - at)}), ++number_)) return false;
      at = stop + 1;
    }
    return true;
  }

  // The last line, when it has no end.
  template <typename Take>
  bool finish(Take&& take) {
    if (rest_.empty()) return true;
    ended_early_ = true;
    const std::string last = std::exchange(rest_, {});
    return take(without_return(last), ++number_);
  }

  uint64_t lines() const { return number_; }
  bool ended_early() const { return ended_early_; }

 private:
  static std::string_view without_return(std::string_view line) {
    while (!line.empty() && (line.back() == '\r' || line.back() == ' ')) line.remove_suffix(1);
    return line;
  }

  bool keep_short(LineFaults& faults) {
    if (rest_.size() <= kLongestLine) return true;
    const bool go_on =
        faults.add(++number_, rest_, "a line of a text trace: at most " + std::to_string(kLongestLine) + " bytes");
    rest_.clear();
    skipping_ = true;
    return go_on;
  }

  std::string rest_;
  uint64_t number_ = 0;
  bool skipping_ = false;  // in a line that is too long
  bool ended_early_ = false;
};

}  // namespace memlens::importing
