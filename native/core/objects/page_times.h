// When each page of a process was touched, in blocks of 512 pages that a fork shares until one side writes.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <utility>

namespace memlens::objects {

// When each page of a process was touched last, and since when its mapping is there. A fork
// shares blocks until one side writes.
class PageTimes {
 public:
  static constexpr unsigned kShift = 9;
  struct Page {
    uint64_t touched_ns = 0;  // 0 = never
    uint64_t mapped_ns = 0;
    uint64_t child_ns = 0;  // touched by a child of a fork, which has the object too
  };
  using Block = std::array<Page, 1u << kShift>;

  void touch(uint64_t page, uint64_t time_ns) {
    Page& entry = own(blocks_[page >> kShift])[page & kMask];
    entry.touched_ns = std::max(entry.touched_ns, time_ns);
  }
  // Pages [first, last): a huge page, or a run that the kernel placed.
  void touch_all(uint64_t first, uint64_t last, uint64_t time_ns, bool by_child) {
    Changed changed;
    for (uint64_t begin = first & ~kMask; begin < last; begin += kPages)
      change_block(blocks_[begin >> kShift], std::max(first, begin), std::min(last, begin + kPages), changed,
                   [&](Page& entry) {
                     uint64_t& touched_ns = by_child ? entry.child_ns : entry.touched_ns;
                     touched_ns = std::max(touched_ns, time_ns);
                   });
  }
  // New memory in [first, last): what was touched there is gone.
  void renew(uint64_t first, uint64_t last, uint64_t now) {
    Changed changed;
    each_block(first, last, [&](std::shared_ptr<Block>& block, uint64_t from, uint64_t to) {
      change_block(block, from, to, changed, [&](Page& entry) { entry.mapped_ns = now; });
    });
  }
  const Page* look(uint64_t page) const {
    const auto found = blocks_.find(page >> kShift);
    return found == blocks_.end() ? nullptr : &(*found->second)[page & kMask];
  }
  Page& change(uint64_t page) { return own(blocks_[page >> kShift])[page & kMask]; }
  void renew_all(uint64_t now) { renew(0, UINT64_MAX, now); }
  template <typename Visit>
  void each(uint64_t first, uint64_t last, Visit&& visit) {
    each_block(first, last, [&](const std::shared_ptr<Block>& block, uint64_t from, uint64_t to) {
      for (uint64_t page = from; page < to; ++page) visit(page, (*block)[page & kMask]);
    });
  }

 private:
  static constexpr uint64_t kMask = (1u << kShift) - 1;
  static Block& own(std::shared_ptr<Block>& block) {
    if (!block) block = std::make_shared<Block>();
    else if (block.use_count() > 1) block = std::make_shared<Block>(*block);
    return *block;
  }
  static constexpr uint64_t kPages = uint64_t{1} << kShift;
  // Whole blocks that were alike stay one block that is shared: a huge page takes tens of bytes for each 2 MiB, so that a record
  // cannot claim more memory than it is worth. Kept: old and new.
  using Changed = std::unordered_map<const Block*, std::pair<std::shared_ptr<Block>, std::shared_ptr<Block>>>;
  template <typename Update>
  static void change_block(std::shared_ptr<Block>& block, uint64_t from, uint64_t to, Changed& changed,
                           Update&& update) {
    const bool is_shared = !block || block.use_count() > 1;
    if (to - from < kPages || !is_shared) {
      Block& pages = own(block);
      for (uint64_t page = from; page < to; ++page) update(pages[page & kMask]);
      return;
    }
    auto& [before, after] = changed[block.get()];
    if (!after) {
      before = block;
      after = block ? std::make_shared<Block>(*block) : std::make_shared<Block>();
      for (Page& entry : *after) update(entry);
    }
    block = after;
  }
  template <typename Visit>
  void each_block(uint64_t first, uint64_t last, Visit&& visit) {
    if (first >= last) return;
    const uint64_t first_block = first >> kShift, last_block = (last - 1) >> kShift;
    const auto one = [&](uint64_t number, std::shared_ptr<Block>& block) {
      const uint64_t begin = number << kShift;
      visit(block, std::max(first, begin), std::min(last, begin + (1u << kShift)));
    };
    if (last_block - first_block > blocks_.size()) {  // a reservation of terabytes: few of its blocks exist
      for (auto& [number, block] : blocks_)
        if (number >= first_block && number <= last_block) one(number, block);
      return;
    }
    for (uint64_t number = first_block; number <= last_block; ++number) {
      const auto found = blocks_.find(number);
      if (found != blocks_.end()) one(number, found->second);
    }
  }
  std::unordered_map<uint64_t, std::shared_ptr<Block>> blocks_;
};

}  // namespace memlens::objects
