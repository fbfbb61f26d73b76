// Which pages of one process have been touched, and in which fork epoch.
//
// Kept in blocks of 512 pages that a fork shares until one side writes: about
// 0.2 % of the memory described. The epoch is the number of forks that this
// process took part in when the page was last placed or copied: a page with an
// older epoch is shared copy-on-write.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <unordered_map>

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

  void clear() { blocks_.clear(); }

 private:
  static constexpr uint64_t kMask = (1u << kBlockShift) - 1;
  using Block = std::array<Page, 1u << kBlockShift>;
  std::unordered_map<uint64_t, std::shared_ptr<Block>> blocks_;
};

}  // namespace memlens::replay
