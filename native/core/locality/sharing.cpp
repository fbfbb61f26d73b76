#include "sharing.h"

#include <algorithm>
#include <stdexcept>
#include <tuple>

namespace memlens::locality {

namespace {
constexpr uint32_t kNone = 0xFFFFFFFF;
}

Sharing::Sharing(uint64_t line_bytes, uint64_t memory_limit_bytes)
    : shift_(shift_of(line_bytes)),
      bit_shift_(shift_ > 6 ? shift_ - 6 : 0),
      limit_(memory_limit_bytes),
      index_(1 << 12) {}

uint64_t Sharing::memory_bytes() const {
  return index_.capacity() * sizeof(index_[0]) + lines_.capacity() * sizeof(Line) + uses_.capacity() * sizeof(Use) +
         hand_overs_.capacity() * sizeof(HandOverLink);
}

uint32_t Sharing::line_of(uint64_t number) {
  if ((lines_.size() + 1) * 2 > index_.size()) {
    // All of it is about to double.
    if (index_.size() > 1 << 16 && memory_bytes() > limit_ / 3) throw MemoryLimit(3 * memory_bytes(), limit_);
    std::vector<uint32_t> larger(index_.size() * 2);
    for (uint32_t i = 0; i < lines_.size(); ++i) {
      size_t at = scatter(lines_[i].number) & (larger.size() - 1);
      while (larger[at] != 0) at = (at + 1) & (larger.size() - 1);
      larger[at] = i + 1;
    }
    index_ = std::move(larger);
  }
  size_t at = scatter(number) & (index_.size() - 1);
  for (; index_[at] != 0; at = (at + 1) & (index_.size() - 1))
    if (lines_[index_[at] - 1].number == number) return index_[at] - 1;
  Line line;
  line.number = number;
  lines_.push_back(line);
  index_[at] = static_cast<uint32_t>(lines_.size());
  return index_[at] - 1;
}

Sharing::Use& Sharing::use_of(Line& line, uint32_t thread) {
  for (uint32_t at = line.first_use; at != kNone; at = uses_[at].next)
    if (uses_[at].thread == thread) return uses_[at];
  Use use;
  use.thread = thread;
  for (uint32_t at = line.first_use; at != kNone; at = uses_[at].next) use.unseen_mask |= uses_[at].write_mask;
  use.next = line.first_use;
  line.first_use = static_cast<uint32_t>(uses_.size());
  uses_.push_back(use);
  return uses_.back();
}

uint32_t Sharing::hand_over(Line& line, uint32_t from, uint32_t to) {
  const uint32_t low = std::min(from, to), high = std::max(from, to);
  for (uint32_t at = line.first_hand_over; at != kNone; at = hand_overs_[at].next)
    if (hand_overs_[at].low == low && hand_overs_[at].high == high) {
      ++hand_overs_[at].times;
      return at;
    }
  hand_overs_.push_back({low, high, line.first_hand_over, 1, 0});
  return line.first_hand_over = static_cast<uint32_t>(hand_overs_.size() - 1);
}

void Sharing::take(uint64_t number, uint64_t mask, bool is_store, uint32_t thread) {
  Line& line = lines_[line_of(number)];
  const bool is_new = line.first_use == kNone;
  Use& use = use_of(line, thread);
  if (is_store) {
    if (!is_new && line.last_thread != thread) {
      use.hand_over = hand_over(line, line.last_thread, thread);
      if (line.last_writer == thread && (mask & line.read_mask) != 0) use.unseen_mask |= mask;
    }
  } else if (line.last_writer != kNone && line.last_writer != thread && use.version != line.version) {
    use.hand_over = hand_over(line, line.last_writer, thread);
  }
  if ((mask & use.unseen_mask) != 0) {
    use.unseen_mask = 0;
    if (use.hand_over != kNone) ++hand_overs_[use.hand_over].useful;
    use.hand_over = kNone;
  }
  if (is_store) {
    for (uint32_t at = line.first_use; at != kNone; at = uses_[at].next)
      if (uses_[at].thread != thread) uses_[at].unseen_mask |= mask;
    line.last_writer = thread;
    line.read_mask = 0;
    ++line.version;
    ++use.writes;
    use.write_mask |= mask;
  } else {
    if (line.last_writer != thread) line.read_mask |= mask;
    ++use.reads;
    use.read_mask |= mask;
  }
  use.version = line.version;
  line.last_thread = thread;
}

void Sharing::add(std::span<const uint64_t> addresses, std::span<const uint32_t> bytes,
                  std::span<const uint8_t> is_store, std::span<const uint32_t> threads) {
  const size_t count = addresses.size();
  if (is_store.size() != count || threads.size() != count || (!bytes.empty() && bytes.size() != count))
    throw std::invalid_argument("the columns have one length");
  const uint64_t line_bytes = uint64_t{1} << shift_;
  // An access needs three dependent cache lines: each is asked for some accesses ahead. A collision asks for a wrong one.
  const auto slot_ahead = [&](size_t i) { return &index_[scatter(addresses[i] >> shift_) & (index_.size() - 1)]; };
  constexpr size_t kSlot = 24, kLine = 16, kUse = 8;
  for (size_t i = 0; i < count; ++i) {
    if (i + kSlot < count) __builtin_prefetch(slot_ahead(i + kSlot));
    if (i + kLine < count)
      if (const uint32_t line = *slot_ahead(i + kLine); line != 0) __builtin_prefetch(&lines_[line - 1], 1);
    if (i + kUse < count)
      if (const uint32_t line = *slot_ahead(i + kUse); line != 0 && lines_[line - 1].first_use != kNone)
        __builtin_prefetch(&uses_[lines_[line - 1].first_use], 1);
    uint64_t at = addresses[i], left = bytes.empty() ? 1 : std::max<uint32_t>(bytes[i], 1);
    while (left > 0) {
      const uint64_t offset = at & (line_bytes - 1), here = std::min(left, line_bytes - offset);
      const uint64_t first = offset >> bit_shift_, last = (offset + here - 1) >> bit_shift_;
      const uint64_t mask = (last - first == 63 ? ~uint64_t{0} : ((uint64_t{1} << (last - first + 1)) - 1)) << first;
      take(at >> shift_, mask, is_store[i] != 0, threads[i]);
      at += here;
      left -= here;
    }
  }
}

std::vector<SharedPair> Sharing::pairs() const {
  std::vector<SharedPair> found;
  for (const Line& line : lines_) {
    for (uint32_t a = line.first_use; a != kNone; a = uses_[a].next)
      for (uint32_t b = uses_[a].next; b != kNone; b = uses_[b].next) {
        const bool is_swapped = uses_[b].thread < uses_[a].thread;
        const Use &use = uses_[is_swapped ? b : a], &other = uses_[is_swapped ? a : b];
        if (use.writes == 0 && other.writes == 0) continue;
        SharedPair pair{line.number << shift_,
                        use.thread,
                        other.thread,
                        use.reads,
                        use.writes,
                        other.reads,
                        other.writes,
                        use.read_mask,
                        use.write_mask,
                        other.read_mask,
                        other.write_mask,
                        0,
                        0,
                        0};
        pair.common_mask = (use.write_mask & (other.read_mask | other.write_mask)) | (other.write_mask & use.read_mask);
        for (uint32_t at = line.first_hand_over; at != kNone; at = hand_overs_[at].next)
          if (hand_overs_[at].low == pair.thread && hand_overs_[at].high == pair.other) {
            pair.hand_overs = hand_overs_[at].times;
            pair.useful = hand_overs_[at].useful;
          }
        found.push_back(pair);
      }
  }
  std::sort(found.begin(), found.end(), [](const SharedPair& a, const SharedPair& b) {
    return std::tie(b.hand_overs, a.line, a.thread, a.other) < std::tie(a.hand_overs, b.line, b.thread, b.other);
  });
  return found;
}

}  // namespace memlens::locality
