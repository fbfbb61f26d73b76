// The NUMA node of a fault's page, as the recorder asked the kernel for it: a question keeps its fault's time, process and page.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <tuple>
#include <vector>

#include "memlens_format.h"
#include "record_walk.h"

namespace memlens::replay {

class PageNodes {
 public:
  static constexpr int16_t kUnknown = -1;

  void add(uint32_t process, std::span<const unsigned char> payload, unsigned page_shift) {
    each_record<ml_placement>(payload, [&](const ml_placement& record) {
      answers_.push_back({record.evidence_ns, record.address >> page_shift, process,
                          static_cast<int16_t>(std::clamp<int32_t>(record.node, -1, INT16_MAX))});
    });
  }
  // Before the first question. Of several answers the highest counts: one is a page that was gone.
  void sort() {
    std::sort(answers_.begin(), answers_.end(), [](const Answer& a, const Answer& b) {
      return std::tie(a.time_ns, a.page, a.process, b.node) < std::tie(b.time_ns, b.page, b.process, a.node);
    });
  }
  int16_t find(uint32_t process, uint64_t time_ns, uint64_t page) const {
    if (answers_.empty()) return kUnknown;
    const auto at =
        std::lower_bound(answers_.begin(), answers_.end(), std::tie(time_ns, page, process),
                         [](const Answer& a, const auto& key) { return std::tie(a.time_ns, a.page, a.process) < key; });
    const bool found = at != answers_.end() && at->time_ns == time_ns && at->page == page && at->process == process;
    return found ? at->node : kUnknown;
  }

 private:
  struct Answer {
    uint64_t time_ns, page;
    uint32_t process;
    int16_t node;
  };
  std::vector<Answer> answers_;
};

}  // namespace memlens::replay
