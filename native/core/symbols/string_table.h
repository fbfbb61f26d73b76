// SPDX-License-Identifier: Apache-2.0
// Interned strings: frames carry 32-bit ids, the table owns the text. Id 0 is always "".
// Not synchronised: one thread at a time may intern.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <unordered_map>

namespace memlens::symbols {

class StringTable {
 public:
  StringTable() { intern(std::string_view()); }
  StringTable(const StringTable&) = delete;
  StringTable& operator=(const StringTable&) = delete;

  uint32_t intern(std::string_view text) {
    if (auto found = id_by_text_.find(text); found != id_by_text_.end()) return found->second;
    const auto id = static_cast<uint32_t>(texts_.size());
    texts_.emplace_back(text);
    id_by_text_.emplace(texts_.back(), id);  // the key views deque storage, which never moves
    return id;
  }
  // An id that was never handed out reads as "", so a damaged capture cannot crash a reader.
  const std::string& at(uint32_t id) const { return texts_[id < texts_.size() ? id : 0]; }
  size_t size() const { return texts_.size(); }

 private:
  std::deque<std::string> texts_;
  std::unordered_map<std::string_view, uint32_t> id_by_text_;
};

}  // namespace memlens::symbols
