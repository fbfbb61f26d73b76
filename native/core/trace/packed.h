// Decoded accesses in a compact form: kept until every analysis of a report has read them.
//
// A batch is one buffer of 64-bit words: counts, the runs of accesses that belong to one window record each, the distinct codes, then
// columns. A code is an index of 16 or 32 bits, a width one byte where all of the batch fit; times and rows follow from the runs. About 12 bytes an access, where
// plain columns take 33.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "memlens_format.h"

namespace memlens::trace {

struct Run {
  uint32_t row;    // of the window in its payload
  uint32_t count;  // accesses
  uint64_t first;  // accesses of the window before these
};

struct PlainColumns {
  std::span<const uint64_t> code, address;
  std::span<const uint32_t> bytes;
  std::span<const uint8_t> operation;
};

std::vector<uint64_t> pack(std::span<const Run> runs, const PlainColumns& columns);

// A view of a packed batch. Throws std::invalid_argument for what cannot be one.
class Packed {
 public:
  explicit Packed(std::span<const uint64_t> words);
  size_t count() const { return count_; }
  std::span<const Run> runs() const { return runs_; }
  const uint64_t* addresses() const { return address_; }
  // Accesses from `first` on, into columns of `count`; null columns are left out.
  void expand(size_t first, size_t count, uint64_t* code, uint32_t* bytes, uint8_t* operation) const;
  uint64_t code(size_t i) const {
    const size_t at =
        wide_codes_ ? reinterpret_cast<const uint32_t*>(index_)[i] : reinterpret_cast<const uint16_t*>(index_)[i];
    return codes_[at < n_codes_ ? at : 0];
  }

 private:
  size_t count_, n_codes_;
  bool wide_codes_, wide_bytes_;
  std::span<const Run> runs_;
  const uint64_t *codes_, *address_;
  const void *index_, *bytes_;
  const uint8_t* operation_;
};

// Calls sink(row, code) for the codes of each run, most of them once.
template <typename Sink>
void each_packed_code(const Packed& packed, Sink&& sink) {
  uint64_t recent[1024];
  size_t at = 0;
  uint32_t before = UINT32_MAX;
  for (const Run& run : packed.runs()) {
    if (run.count == 0) continue;
    if (run.row != before)
      for (uint64_t& entry : recent) entry = ~packed.code(at);
    before = run.row;
    for (const size_t end = at + run.count; at < end; ++at) {
      const uint64_t code = packed.code(at);
      uint64_t& entry = recent[code % 1024];
      if (entry == code) continue;
      entry = code;
      sink(run.row, code);
    }
  }
}

}  // namespace memlens::trace
