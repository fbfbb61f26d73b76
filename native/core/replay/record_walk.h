// Walks the records of a chunk's payload. A record that does not fit whole ends the walk.
#pragma once

#include <cstddef>
#include <cstring>
#include <span>

namespace memlens::replay {

template <typename Record, typename Sink>
void each_record(std::span<const unsigned char> payload, Sink&& sink) {
  for (size_t at = 0; at + sizeof(Record) <= payload.size(); at += sizeof(Record)) {
    Record record;
    memcpy(&record, payload.data() + at, sizeof record);
    sink(record);
  }
}

// Records with a variable tail.
template <typename Record, typename Sink>
void each_variable_record(std::span<const unsigned char> payload, Sink&& sink) {
  for (size_t at = 0; at + sizeof(Record) <= payload.size();) {
    Record record;
    memcpy(&record, payload.data() + at, sizeof record);
    at += sizeof record;
    const size_t padded = (size_t{record.tail_bytes} + 7) & ~size_t{7};
    if (padded > payload.size() - at) return;
    sink(record, payload.subspan(at, record.tail_bytes));
    at += padded;
  }
}

}  // namespace memlens::replay
