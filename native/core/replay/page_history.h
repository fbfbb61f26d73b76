// Which pages of one process have been touched, and in which fork epoch.
//
// Kept in blocks of 512 pages that a fork shares until one side writes: about
// 0.2 % of the memory described. The epoch is the number of forks that this
// process took part in when the page was last placed or copied: a page with an
// older epoch is shared copy-on-write.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

namespace memlens::replay {

class PageHistory {
 public:
  static constexpr unsigned kBlockShift = 9;
  static constexpr uint16_t kNever = 0xffff;
  enum Note : uint8_t { none = 0, upgraded = 1, placed = 2 };

  struct Page {
    uint16_t epoch = kNever;  // kNever: not touched
    uint8_t notes = none;
    uint32_t generation = 0;  // of the mapping it was touched in
  };

  Page look(uint64_t page) const {
    const auto found = blocks_.find(page >> kBlockShift);
    return found == blocks_.end() ? Page{} : (*found->second)[page & kMask];
  }

  Page& change(uint64_t page) {
    std::shared_ptr<Block>& block = blocks_[page >> kBlockShift];
    if (!block) block = std::make_shared<Block>();
    else if (block.use_count() > 1) block = std::make_shared<Block>(*block);
    return (*block)[page & kMask];
  }

  // Changes all pages of [first, last) with `update(page_entry)`. Whole blocks that were alike stay one block that is
  // shared: a huge page takes tens of bytes for each 2 MiB, so that a record cannot claim more memory than it is worth.
  template <typename Update>
  void change_all(uint64_t first, uint64_t last, Update&& update) {
    std::unordered_map<const Block*, std::pair<std::shared_ptr<Block>, std::shared_ptr<Block>>> made;  // kept: old, new
    constexpr uint64_t kPages = uint64_t{1} << kBlockShift;
    for (uint64_t page = first; page < last;) {
      if ((page & kMask) != 0 || last - page < kPages) {
        update(change(page));
        ++page;
        continue;
      }
      std::shared_ptr<Block>& block = blocks_[page >> kBlockShift];
      const bool is_alone = block && block.use_count() == 1;
      const auto known = is_alone ? made.end() : made.find(block.get());
      if (known != made.end()) {
        // What the update counts is counted for these pages too, on a copy of what they were.
        Block copy = block ? *block : Block{};
        for (Page& entry : copy) update(entry);
        block = known->second.second;
      } else if (is_alone) {
        for (Page& entry : *block) update(entry);
      } else {
        const std::shared_ptr<Block> before = block;
        block = before ? std::make_shared<Block>(*before) : std::make_shared<Block>();
        for (Page& entry : *block) update(entry);
        made.emplace(before.get(), std::pair(before, block));
      }
      page += kPages;
    }
  }

  void clear() { blocks_.clear(); }

  // Pages [first, last) as if never touched.
  void forget(uint64_t first, uint64_t last) {
    for (const uint64_t number : blocks_in(first, last)) {
      const uint64_t begin = number << kBlockShift;
      const uint64_t from = std::max(first, begin), to = std::min(last, begin + (uint64_t{1} << kBlockShift));
      for (uint64_t page = from; page < to; ++page) change(page) = Page{};
    }
  }

  // mremap: what is known of [first, last) is now known of the pages from `to` on, in another mapping.
  // `was_there(page, entry)`: the entry belongs to the mapping that was moved, not to an older one.
  template <typename WasThere>
  void move(uint64_t first, uint64_t last, uint64_t to, uint32_t generation, WasThere&& was_there) {
    std::vector<std::pair<uint64_t, Page>> moved;
    for (const uint64_t number : blocks_in(first, last)) {
      const uint64_t begin = number << kBlockShift;
      const uint64_t from = std::max(first, begin), end = std::min(last, begin + (uint64_t{1} << kBlockShift));
      for (uint64_t page = from; page < end; ++page) {
        Page entry = look(page);
        if (entry.epoch == kNever || !was_there(page, entry)) continue;
        entry.generation = generation;
        moved.emplace_back(page - first + to, entry);
      }
    }
    forget(first, last);
    for (const auto& [page, entry] : moved) change(page) = entry;
  }

 private:
  static constexpr uint64_t kMask = (1u << kBlockShift) - 1;
  using Block = std::array<Page, 1u << kBlockShift>;
  // Numbers of the blocks that exist in a range: few, also in a reservation of terabytes.
  std::vector<uint64_t> blocks_in(uint64_t first, uint64_t last) const {
    std::vector<uint64_t> numbers;
    if (first >= last) return numbers;
    const uint64_t first_block = first >> kBlockShift, last_block = (last - 1) >> kBlockShift;
    if (last_block - first_block > blocks_.size()) {
      for (const auto& [number, block] : blocks_)
        if (number >= first_block && number <= last_block) numbers.push_back(number);
    } else {
      for (uint64_t number = first_block; number <= last_block; ++number)
        if (blocks_.count(number) != 0) numbers.push_back(number);
    }
    return numbers;
  }
  std::unordered_map<uint64_t, std::shared_ptr<Block>> blocks_;
};

}  // namespace memlens::replay
