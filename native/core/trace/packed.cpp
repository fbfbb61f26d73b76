#include "packed.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

namespace memlens::trace {

namespace {
constexpr size_t kHead = 4;  // accesses, runs, codes, flags
constexpr uint64_t kWideCodes = 1, kWideBytes = 2;

constexpr size_t words_for(size_t bytes) { return (bytes + 7) / 8; }

// Distinct values in the order in which they come, and the index of each.
class Interner {
 public:
  uint32_t index_of(uint64_t value) {
    Recent& recent = recent_[value % kRecent];
    if (recent.is_set && recent.value == value) return recent.index;
    const uint32_t found = look_up(value);
    recent = {value, found, true};
    return found;
  }
  const std::vector<uint64_t>& values() const { return values_; }

 private:
  static constexpr size_t kRecent = 512;
  struct Recent {
    uint64_t value = 0;
    uint32_t index = 0;
    bool is_set = false;
  };
  static size_t place_of(uint64_t value) { return static_cast<size_t>(value * 0x9E3779B97F4A7C15u >> 20); }

  uint32_t look_up(uint64_t value) {
    if ((values_.size() + 1) * 2 > table_.size()) grow();
    size_t at = place_of(value) & (table_.size() - 1);
    for (; table_[at] != 0; at = (at + 1) & (table_.size() - 1))
      if (values_[table_[at] - 1] == value) return table_[at] - 1;
    values_.push_back(value);
    table_[at] = static_cast<uint32_t>(values_.size());
    return table_[at] - 1;
  }
  void grow() {
    std::vector<uint32_t> larger(table_.size() * 2);
    for (uint32_t i = 0; i < values_.size(); ++i) {
      size_t at = place_of(values_[i]) & (larger.size() - 1);
      while (larger[at] != 0) at = (at + 1) & (larger.size() - 1);
      larger[at] = i + 1;
    }
    table_ = std::move(larger);
  }

  std::vector<uint64_t> values_;
  std::vector<uint32_t> table_ = std::vector<uint32_t>(1 << 10);
  Recent recent_[kRecent];
};
}  // namespace

std::vector<uint64_t> pack(std::span<const Run> runs, const PlainColumns& columns) {
  const size_t count = columns.address.size();
  Interner codes;
  std::vector<uint32_t> index(count);
  for (size_t i = 0; i < count; ++i) index[i] = codes.index_of(columns.code[i]);
  const bool wide_codes = codes.values().size() > 1 << 16;
  const bool wide_bytes =
      std::any_of(columns.bytes.begin(), columns.bytes.end(), [](uint32_t bytes) { return bytes > 255; });
  const size_t n_codes = codes.values().size();
  const size_t index_words = words_for(count * (wide_codes ? 4 : 2)),
               bytes_words = words_for(count * (wide_bytes ? 4 : 1));
  std::vector<uint64_t> words(kHead + 2 * runs.size() + n_codes + count + index_words + bytes_words + words_for(count));
  uint64_t* at = words.data();
  *at++ = count;
  *at++ = runs.size();
  *at++ = n_codes;
  *at++ = (wide_codes ? kWideCodes : 0) | (wide_bytes ? kWideBytes : 0);
  static_assert(sizeof(Run) == 16);
  if (!runs.empty()) std::memcpy(at, runs.data(), runs.size() * sizeof(Run));
  at += 2 * runs.size();
  if (n_codes != 0) std::memcpy(at, codes.values().data(), n_codes * 8);
  at += n_codes;
  if (count == 0) return words;
  std::memcpy(at, columns.address.data(), count * 8);
  at += count;
  if (wide_codes) std::memcpy(at, index.data(), count * 4);
  else
    for (size_t i = 0; i < count; ++i) reinterpret_cast<uint16_t*>(at)[i] = static_cast<uint16_t>(index[i]);
  at += index_words;
  if (wide_bytes) std::memcpy(at, columns.bytes.data(), count * 4);
  else
    for (size_t i = 0; i < count; ++i) reinterpret_cast<uint8_t*>(at)[i] = static_cast<uint8_t>(columns.bytes[i]);
  at += bytes_words;
  std::memcpy(at, columns.operation.data(), count);
  return words;
}

Packed::Packed(std::span<const uint64_t> words) {
  const auto refuse = [] { throw std::invalid_argument("this is no batch of packed accesses"); };
  if (words.size() < kHead) refuse();
  const uint64_t count = words[0], n_runs = words[1], n_codes = words[2], flags = words[3];
  if (count > words.size() || n_runs > words.size() || n_codes > words.size() || (count != 0 && n_codes == 0)) refuse();
  wide_codes_ = (flags & kWideCodes) != 0;
  wide_bytes_ = (flags & kWideBytes) != 0;
  const size_t index_words = words_for(count * (wide_codes_ ? 4 : 2)),
               bytes_words = words_for(count * (wide_bytes_ ? 4 : 1));
  if (words.size() != kHead + 2 * n_runs + n_codes + count + index_words + bytes_words + words_for(count)) refuse();
  count_ = count;
  n_codes_ = n_codes;
  const uint64_t* at = words.data() + kHead;
  runs_ = {reinterpret_cast<const Run*>(at), static_cast<size_t>(n_runs)};
  uint64_t sum = 0;
  for (const Run& run : runs_) sum += run.count;
  if (sum != count) refuse();
  codes_ = at += 2 * n_runs;
  address_ = at += n_codes;
  index_ = at += count;
  bytes_ = at += index_words;
  operation_ = reinterpret_cast<const uint8_t*>(at + bytes_words);
}

void Packed::expand(size_t first, size_t count, uint64_t* code, uint32_t* bytes, uint8_t* operation) const {
  if (code != nullptr)
    for (size_t i = 0; i < count; ++i) code[i] = this->code(first + i);
  if (bytes != nullptr) {
    if (wide_bytes_) std::memcpy(bytes, static_cast<const uint32_t*>(bytes_) + first, count * 4);
    else
      for (size_t i = 0; i < count; ++i) bytes[i] = static_cast<const uint8_t*>(bytes_)[first + i];
  }
  if (operation != nullptr) std::memcpy(operation, operation_ + first, count);
}

}  // namespace memlens::trace
