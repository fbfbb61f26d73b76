// Records of any kind from a fuzzer's bytes: plausible ones, whose addresses and times meet, with a few bytes of noise.
#pragma once

#include "input.h"
#include "memlens_format.h"

namespace fuzz {

struct Scale {
  uint64_t places = 300, unit = 16;  // addresses are `unit` × a number below `places`
  uint64_t most_times = 5000;
  bool plausible = true;
};

template <typename Record>
Record record_of(Input& input, const Scale& scale) {
  Record record{};
  auto* raw = reinterpret_cast<unsigned char*>(&record);
  if (!scale.plausible) {
    const View bytes = input.take(sizeof record);
    if (!bytes.empty()) memcpy(raw, bytes.data(), bytes.size());
    return record;
  }
  if constexpr (requires { record.time_ns; }) record.time_ns = input.below(scale.most_times);
  if constexpr (requires { record.begin_ns; }) {
    record.begin_ns = input.below(scale.most_times);
    record.end_ns = record.begin_ns + input.byte();
  }
  if constexpr (requires { record.address; }) record.address = input.below(scale.places) * scale.unit;
  if constexpr (requires { record.old_address; }) record.old_address = input.below(scale.places) * scale.unit;
  if constexpr (requires { record.thread_pointer; }) record.thread_pointer = input.below(scale.places) * scale.unit;
  if constexpr (requires { record.pc; }) record.pc = input.below(scale.places * scale.unit);
  if constexpr (requires { record.ip; }) record.ip = input.below(scale.places * scale.unit);
  if constexpr (requires { record.bytes; }) record.bytes = input.below(8 * scale.unit);
  if constexpr (requires { record.operation; })
    record.operation = static_cast<decltype(record.operation)>(input.byte() % 14);
  if constexpr (requires { record.parent_process; }) record.parent_process = input.byte() % 6;
  if constexpr (requires { record.path; }) record.path = input.byte() % 5;
  if constexpr (requires { record.stack; }) record.stack = input.byte() % 5;
  if constexpr (requires { record.after_shift; }) {
    static const uint8_t shifts[] = {0, 12, 21, 255, 30, 200, 3, 16};
    const uint8_t both = input.byte();
    record.after_shift = shifts[both % 8];
    record.before_shift = shifts[both / 8 % 8];
  }
  for (uint8_t noise = input.byte() % 8; noise > 0 && !input.empty(); --noise)
    raw[input.byte() % sizeof record] = input.byte();
  return record;
}

template <typename Record>
Bytes records_of(Input& input, const Scale& scale, size_t most) {
  Bytes payload;
  for (size_t left = std::min<size_t>(input.below(most + 1), 2 * input.size() / 3 + 1); left > 0; --left)
    append(payload, record_of<Record>(input, scale));
  payload.resize(payload.size() + input.byte() % 8 % (payload.size() + 1));  // a record that was cut
  return payload;
}

// Records with a tail: strings, stacks.
template <typename Record>
Bytes tailed_of(Input& input, size_t most, bool sound) {
  Bytes payload;
  for (size_t left = input.below(most + 1); left > 0 && !input.empty(); --left) {
    Record record{};
    record.id = 1 + input.byte() % 8;
    const uint8_t tail = input.byte() % 64;
    record.tail_bytes = sound || tail != 63 ? tail : static_cast<uint32_t>(input.number());
    append(payload, record);
    const View text = input.take(tail);
    payload.insert(payload.end(), text.begin(), text.end());
    payload.resize((payload.size() + 7) & ~size_t{7});
  }
  return payload;
}

}  // namespace fuzz
