#include "stream_decoder.h"

#include <algorithm>
#include <cstring>
#include <vector>

namespace memlens::trace {
namespace {

constexpr uint64_t kMostThird = (uint64_t{1} << 34) - 1;  // 32 bits of width, 2 of operation
constexpr uint64_t kMostBytes = UINT32_MAX;

uint64_t unzigzag(uint64_t value) { return (value >> 1) ^ (0 - (value & 1)); }

// A varint byte by byte; false: it ends early, is longer than 10 bytes or has more than 64 bits.
bool slow_varint(const unsigned char*& at, const unsigned char* end, uint64_t& value) {
  value = 0;
  for (unsigned shift = 0; shift < 70; shift += 7) {
    if (at == end) return false;
    const unsigned char byte = *at++;
    if (shift == 63 && byte > 1) return false;
    value |= uint64_t{byte & 127u} << shift;
    if (byte < 128) return true;
  }
  return false;
}

// A varint with 8 readable bytes: groups of 7 bits are moved together without a loop.
inline bool varint(const unsigned char*& at, const unsigned char* end, uint64_t& value) {
  uint64_t word;
  memcpy(&word, at, 8);
  const uint64_t stops = ~word & 0x8080808080808080u;
  if (stops == 0) [[unlikely]]
    return slow_varint(at, end, value);
  const unsigned bits = static_cast<unsigned>(__builtin_ctzll(stops)) + 1;  // 8 x length
  word &= ~uint64_t{0} >> (64 - bits) & 0x7f7f7f7f7f7f7f7fu;
  word = (word & 0x007f007f007f007fu) | (word & 0x7f007f007f007f00u) >> 1;
  word = (word & 0x00003fff00003fffu) | (word & 0x3fff00003fff0000u) >> 2;
  value = (word & 0x000000000fffffffu) | (word & 0x0fffffff00000000u) >> 4;
  at += bits / 8;
  return true;
}

}  // namespace

template <bool kPc>
size_t StreamDecoder::decode(const AccessColumns& columns, size_t count) {
  // The longest access has 10 + 10 + 10 bytes, and a word is read at the last of them.
  constexpr ptrdiff_t kRoom = 40;
  const unsigned char* at = at_;
  uint64_t previous = previous_;
  size_t done = 0;
  const auto take = [&](uint64_t first, uint64_t second, uint64_t third) {
    const uint64_t code = previous + unzigzag(first);
    uint64_t& last = last_[code % 1024];
    last += unzigzag(second);
    previous = code;
    columns.code[done] = kPc ? code : code >> 1;
    columns.address[done] = last;
    columns.bytes[done] = static_cast<uint32_t>(kPc ? third >> 2 : third);
    columns.operation[done] = kPc ? static_cast<uint8_t>(third & 3) : uint8_t{0};
    ++done;
  };
  // Of a site: whether the width follows.
  const auto is_sized = [&](uint64_t first) { return ((previous + unzigzag(first)) & 1) != 0; };
  while (done < count && end_ - at >= kRoom) {
    uint32_t word;
    memcpy(&word, at, 4);
    if constexpr (kPc) {
      if ((word & 0x00808080u) == 0) [[likely]] {
        if ((word & 0x00030000u) == 0) [[unlikely]]
          break;  // operation 0
        take(word & 127, word >> 8 & 127, word >> 16 & 127);
        at += 3;
        continue;
      }
    } else if ((word & 0x8080u) == 0 && !is_sized(word & 127)) {
      take(word & 127, word >> 8 & 127, 0);
      at += 2;
      continue;
    }
    uint64_t first, second, third = 0;
    const unsigned char* next = at;
    if (!varint(next, end_, first) || !varint(next, end_, second)) break;
    if constexpr (kPc) {
      if (!varint(next, end_, third) || (third & 3) == 0 || third > kMostThird) break;
    } else if (is_sized(first)) {
      if (!varint(next, end_, third) || third == 0 || third > kMostBytes) break;
    }
    take(first, second, third);
    at = next;
  }
  // The stream's last bytes, and what stopped the loop above.
  while (done < count) {
    uint64_t first, second, third = 0;
    const unsigned char* next = at;
    if (!slow_varint(next, end_, first) || !slow_varint(next, end_, second)) break;
    if constexpr (kPc) {
      if (!slow_varint(next, end_, third) || (third & 3) == 0 || third > kMostThird) break;
    } else if (is_sized(first)) {
      if (!slow_varint(next, end_, third) || third == 0 || third > kMostBytes) break;
    }
    take(first, second, third);
    at = next;
  }
  at_ = at;
  previous_ = previous;
  return done;
}

// Names end where words begin; false: there are more names than bytes, or parts of them that are not right.
bool StreamDecoder::find_words() {
  uint64_t told;
  if (!slow_varint(at_, end_, told) || told >> 1 > static_cast<uint64_t>(end_ - at_)) return false;
  words_end_ = end_;
  next_word_ = end_ = at_ + (told >> 1);
  if ((told & 1) == 0) return true;
  std::vector<unsigned char>& names = expected_->names;
  while (at_ != end_) {
    uint64_t literal, zeros;
    if (!slow_varint(at_, end_, literal) || literal > static_cast<uint64_t>(end_ - at_)) return false;
    names.insert(names.end(), at_, at_ + literal);
    at_ += literal;
    if (!slow_varint(at_, end_, zeros) || zeros > ML_SEGMENTS_MOST_NAME_BYTES ||
        names.size() + zeros > ML_SEGMENTS_MOST_NAME_BYTES)
      return false;
    names.resize(names.size() + zeros);
  }
  at_ = names.data();
  end_ = at_ + names.size();
  return true;
}

// An entry gets a shape and blocks; false: there is no such shape.
bool StreamDecoder::tell(size_t entry, unsigned shape) {
  Expected& state = *expected_;
  const unsigned words = shape & 31, form = shape >> 5, groups = (words + 3) / 4;
  if (words == 0 || form > 2 || (form == 1 && words % 2 != 0)) return false;
  if (groups > ML_SEGMENTS_BLOCKS - state.next_block) {
    memset(state.shape, 0, sizeof state.shape);
    state.next_block = 0;
  }
  state.shape[entry] = static_cast<uint8_t>(shape);
  state.block[entry] = static_cast<uint16_t>(state.next_block);
  memset(&state.blocks[state.next_block], 0, groups * sizeof state.blocks[0]);
  state.next_block += groups;
  return true;
}

// The words of the next segment; false: it is damaged.
bool StreamDecoder::read_segment() {
  Expected& state = *expected_;
  uint64_t named;
  const unsigned char* at = at_;
  if (!slow_varint(at, end_, named)) return false;
  const uint64_t site = previous_ + unzigzag(named >> 1);
  const size_t entry = site % ML_SEGMENTS_ENTRIES;
  if ((named & 1) != 0 && (at == end_ || !tell(entry, *at++))) return false;
  const unsigned words = state.shape[entry] & 31, form = state.shape[entry] >> 5;
  if (words == 0 || end_ - at < static_cast<ptrdiff_t>((words + 3) / 4)) return false;
  ml_segments_block* block = &state.blocks[state.block[entry]];
  const unsigned char* next = next_word_;
  for (unsigned first = 0; first < words; first += 4, ++block) {
    const unsigned code = *at++, misses = code & 15, count = std::min(words - first, 4u),
                   bytes = (code & ML_SEGMENTS_WIDE) != 0 ? 8 : 4;
    if (code > 31 || code == ML_SEGMENTS_WIDE || misses >> count != 0) return false;
    if (words_end_ - next < static_cast<ptrdiff_t>(bytes * static_cast<unsigned>(__builtin_popcount(misses))))
      return false;
    for (unsigned i = 0; i < count; ++i) {
      if ((misses >> i & 1) != 0) {
        int64_t wide;
        int32_t narrow;
        if (bytes == 8) memcpy(&wide, next, 8);
        else {
          memcpy(&narrow, next, 4);
          wide = narrow;
        }
        next += bytes;
        block->step[i] = static_cast<uint64_t>(wide);
      }
      block->last[i] += block->step[i];
      state.words[first + i] = block->last[i];
    }
  }
  if (form == 1)
    for (unsigned i = 1; i < words; i += 2)
      if (state.words[i] == 0 || state.words[i] > kMostBytes) return false;
  state.form = form;
  previous_ = site;
  at_ = at;
  next_word_ = next;
  accesses_ = form == 1 ? words / 2 : words;
  given_ = 0;
  return true;
}

size_t StreamDecoder::decode_segments(const AccessColumns& columns, size_t count) {
  if (!expected_) {
    if (count == 0) return 0;
    expected_ = std::make_unique_for_overwrite<Expected>();
    if (!find_words()) {
      at_ = end_;  // there is no next segment either
      return 0;
    }
  }
  size_t done = 0;
  while (done < count) {
    if (given_ == accesses_ && !read_segment()) break;
    const Expected& state = *expected_;
    const unsigned until = static_cast<unsigned>(std::min<size_t>(accesses_, given_ + (count - done)));
    for (; given_ < until; ++given_, ++done) {
      columns.code[done] = previous_ + (state.form == 2 ? 0 : given_);
      columns.address[done] = state.words[state.form == 1 ? 2 * given_ : given_];
      columns.bytes[done] = state.form == 1 ? static_cast<uint32_t>(state.words[2 * given_ + 1]) : 0;
      columns.operation[done] = 0;
    }
  }
  return done;
}

size_t StreamDecoder::next(const AccessColumns& columns, size_t count) {
  switch (encoding_) {
    case ML_ENUM_stream_encoding_PC_DELTA: return decode<true>(columns, count);
    case ML_ENUM_stream_encoding_SITE_DELTA: return decode<false>(columns, count);
    case ML_ENUM_stream_encoding_SITE_SEGMENTS: return decode_segments(columns, count);
    default: return 0;
  }
}

bool is_sound(std::span<const unsigned char> stream, uint64_t recorded, uint8_t encoding) {
  if (recorded > most_accesses(stream.size(), encoding)) return false;
  constexpr size_t kPart = 4096;
  std::vector<uint64_t> code(kPart), address(kPart);
  std::vector<uint32_t> bytes(kPart);
  std::vector<uint8_t> operation(kPart);
  StreamDecoder decoder(stream, encoding);
  while (recorded > 0) {
    const size_t part = std::min<uint64_t>(recorded, kPart);
    if (decoder.next({code.data(), address.data(), bytes.data(), operation.data()}, part) != part) return false;
    recorded -= part;
  }
  return decoder.at_end();
}

}  // namespace memlens::trace
