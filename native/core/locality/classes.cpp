#include "classes.h"

#include <algorithm>
#include <stdexcept>
#include <tuple>

namespace memlens::locality {

const Classes::Entry* Classes::find(uint32_t stream, uint64_t pc, bool is_store) const {
  const uint64_t mask = table_.size() - 1;
  for (uint64_t at = place_of(stream, pc, is_store) & mask; table_[at].is_used; at = (at + 1) & mask) {
    const Entry& entry = table_[at];
    if (entry.pc == pc && entry.stream == stream && entry.is_store == is_store) return &entry;
  }
  return nullptr;
}

Classes::Entry& Classes::find_or_add(uint32_t stream, uint64_t pc, bool is_store) {
  if ((live_ + 1) * 2 > table_.size()) grow();
  const uint64_t mask = table_.size() - 1;
  uint64_t at = place_of(stream, pc, is_store) & mask;
  for (; table_[at].is_used; at = (at + 1) & mask) {
    Entry& entry = table_[at];
    if (entry.pc == pc && entry.stream == stream && entry.is_store == is_store) return entry;
  }
  Entry& entry = table_[at];
  entry.pc = pc;
  entry.stream = stream;
  entry.is_store = is_store;
  entry.is_used = true;
  ++live_;
  places_.push_back(at);
  return entry;
}

void Classes::grow() {
  std::vector<Entry> larger(table_.size() * 2);
  const uint64_t mask = larger.size() - 1;
  places_.clear();
  for (const Entry& entry : table_) {
    if (!entry.is_used) continue;
    uint64_t at = place_of(entry.stream, entry.pc, entry.is_store) & mask;
    while (larger[at].is_used) at = (at + 1) & mask;
    larger[at] = entry;
    places_.push_back(at);
  }
  table_ = std::move(larger);
}

void Classes::forget() {
  for (const uint64_t at : places_) table_[at] = {};
  places_.clear();
  live_ = 0;
}

void Classes::by_window(uint64_t least_accesses, std::span<const uint64_t> pcs, std::span<const uint64_t> addresses,
                        std::span<const uint8_t> is_store, std::span<const uint32_t> windows,
                        std::span<uint8_t> classes) {
  const size_t count = pcs.size();
  if (addresses.size() != count || is_store.size() != count || windows.size() != count || classes.size() != count)
    throw std::invalid_argument("the columns have one length");
  Classes one(least_accesses);
  for (size_t begin = 0, end = 0; begin < count; begin = end) {
    while (end < count && windows[end] == windows[begin]) ++end;
    const size_t length = end - begin;
    one.add(0, pcs.subspan(begin, length), addresses.subspan(begin, length), is_store.subspan(begin, length));
    one.classify(0, pcs.subspan(begin, length), is_store.subspan(begin, length), classes.subspan(begin, length));
    one.forget();
  }
}

void Classes::add(uint32_t stream, std::span<const uint64_t> pcs, std::span<const uint64_t> addresses,
                  std::span<const uint8_t> is_store, std::span<const uint32_t> windows) {
  if (addresses.size() != pcs.size() || is_store.size() != pcs.size() ||
      (!windows.empty() && windows.size() != pcs.size()))
    throw std::invalid_argument("the columns have one length");
  for (size_t i = 0; i < pcs.size(); ++i) {
    Entry& entry = find_or_add(stream, pcs[i], is_store[i] != 0);
    const uint64_t address = addresses[i];
    const uint32_t window = windows.empty() ? 0 : windows[i];
    if (entry.accesses++ == 0) {
      entry.first = address;
    } else {
      if (address != entry.first) entry.is_constant = false;
      if (entry.window == window && address == entry.last) ++entry.stays;
      if (entry.window == window && address != entry.last) {
        const uint64_t step = address - entry.last;
        ++entry.steps;
        // The most frequent ones stay: a new step takes the place of the rarest when that has worn off.
        unsigned rarest = 0;
        bool is_known = false;
        for (unsigned k = 0; k < kSteps && !is_known; ++k) {
          if (entry.times[k] != 0 && entry.step[k] == step) {
            ++entry.times[k];
            is_known = true;
          } else if (entry.times[k] < entry.times[rarest]) {
            rarest = k;
          }
        }
        if (!is_known) {
          if (entry.times[rarest] <= 1) {
            entry.step[rarest] = step;
            entry.times[rarest] = 1;
          } else {
            --entry.times[rarest];
          }
        }
      }
    }
    entry.last = address;
    entry.window = window;
  }
}

Classes::Verdict Classes::judge(const Entry& entry) const {
  Verdict verdict{entry.pc, entry.accesses, 0, 0, entry.stream, AccessClass::kIrregular, entry.is_store};
  if (entry.is_constant) {
    verdict.kind = entry.accesses >= least_accesses_ ? AccessClass::kConstant : AccessClass::kUnknown;
    return verdict;
  }
  unsigned best = 0;
  for (unsigned k = 1; k < kSteps; ++k)
    if (entry.times[k] > entry.times[best]) best = k;
  if (entry.steps + entry.stays == 0) return verdict;
  if (entry.steps > 0) {
    verdict.stride_bytes = static_cast<int64_t>(entry.step[best]);
    verdict.share = static_cast<double>(entry.times[best]) / static_cast<double>(entry.steps);
  }
  // Two addresses make one step, which is always equal to itself.
  if (entry.steps >= 2 && verdict.share >= kStridedShare) {
    verdict.kind = AccessClass::kStrided;
  } else if (static_cast<double>(entry.stays) >= kStayingShare * static_cast<double>(entry.steps + entry.stays)) {
    verdict.kind = AccessClass::kStrided;
    verdict.stride_bytes = 0;
    verdict.share = static_cast<double>(entry.stays) / static_cast<double>(entry.steps + entry.stays);
  }
  return verdict;
}

void Classes::classify(uint32_t stream, std::span<const uint64_t> pcs, std::span<const uint8_t> is_store,
                       std::span<uint8_t> classes) const {
  if (is_store.size() != pcs.size() || classes.size() != pcs.size())
    throw std::invalid_argument("the columns have one length");
  // Loops repeat few instructions: most are answered here.
  struct Recent {
    uint64_t pc = 0;
    uint8_t is_store = 0, kind = 255;
  };
  Recent recent[512];
  for (size_t i = 0; i < pcs.size(); ++i) {
    Recent& known = recent[(pcs[i] * 2 + (is_store[i] != 0)) % 512];
    if (known.kind == 255 || known.pc != pcs[i] || known.is_store != is_store[i]) {
      const Entry* entry = find(stream, pcs[i], is_store[i] != 0);
      known = {pcs[i], is_store[i],
               static_cast<uint8_t>(entry == nullptr ? AccessClass::kUnknown : judge(*entry).kind)};
    }
    classes[i] = known.kind;
  }
}

std::vector<Classes::Verdict> Classes::verdicts() const {
  std::vector<Verdict> found;
  for (const Entry& entry : table_)
    if (entry.is_used) found.push_back(judge(entry));
  std::sort(found.begin(), found.end(), [](const Verdict& a, const Verdict& b) {
    return std::tie(a.stream, a.pc, a.is_store) < std::tie(b.stream, b.pc, b.is_store);
  });
  return found;
}

}  // namespace memlens::locality
