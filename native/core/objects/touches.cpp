#include "touches.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <unordered_map>

#include "object_table.h"

namespace memlens::objects {
namespace {

constexpr uint64_t kMostSpanBytes = uint64_t{1} << 30;    // the largest page there is
constexpr double kMostWeight = 1e6;
constexpr uint64_t kFewPages = 256;  // where one fault in dozens is recorded, too few to say how many were touched
constexpr uint64_t kMostPlacedBytes = uint64_t{1} << 40;  // a longer run is damage

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
      change_block(blocks_[begin >> kShift], std::max(first, begin), std::min(last, begin + kPages), changed, [&](Page& entry) {
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
  static void change_block(std::shared_ptr<Block>& block, uint64_t from, uint64_t to, Changed& changed, Update&& update) {
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

struct ProcessPages {
  PageTimes pages;
  uint32_t fork_parent = 0;  // until it executes a program
  replay::AddressSpace space;
};

// Events of one moment: an object's end does not see a touch of the same moment.
enum Order : uint8_t { death, process_event, mapping, unmap, fault, placed, continued };

struct Event {
  uint64_t time_ns;
  uint32_t index;
  Order order;
};

struct Hit {
  uint32_t object, thread, code;
  double faults;
  uint64_t time_ns, bytes;
  double weight;
  bool mapped_around;
};

// What sampled faults say of an object's pages.
struct Estimate {
  double pages = 0, variance = 0, largest_weight = 0;
};

// mmap flags of Linux, the same on every machine that memlens runs on.
constexpr uint32_t kMapShared = 0x01, kMapAnonymous = 0x20, kMapLocked = 0x2000, kMapPopulate = 0x8000;

uint64_t span_of(uint64_t span_bytes, uint64_t page_bytes) {
  if (span_bytes < page_bytes || (span_bytes & (span_bytes - 1)) != 0) return page_bytes;
  return std::min(span_bytes, kMostSpanBytes);
}

}  // namespace

TouchColumns ObjectTable::touch(const TouchInput& input) const {
  const size_t count = columns_.size();
  TouchColumns result;
  result.touched_pages.assign(count, TouchColumns::kNotCounted);
  result.recycled_pages.assign(count, TouchColumns::kNotCounted);
  result.never_pages.assign(count, TouchColumns::kNotCounted);
  result.first_touch_ns.assign(count, 0);
  result.top_thread_bytes.assign(count, 0);
  result.faults.assign(count, 0);
  result.first_touch_thread.assign(count, 0);
  result.first_touch_code.assign(count, 0);
  result.touching_threads.assign(count, 0);
  result.has_touch.assign(count, 0);
  result.never_known.assign(count, 1);
  result.touched_known.assign(count, 1);
  result.touched_error_pages.assign(count, 0);
  const uint64_t page_bytes = page_bytes_;
  const unsigned shift = static_cast<unsigned>(__builtin_ctzll(page_bytes));

  // ---- pages of objects -----------------------------------------------------------------
  std::vector<Event> events;
  std::unordered_map<uint32_t, std::vector<uint64_t>> beginnings;  // forks and execs of each process
  for (uint32_t id = 1; id <= count; ++id) {
    const uint64_t base = columns_.base[id - 1], bytes = columns_.bytes[id - 1];
    if (bytes < page_bytes) continue;
    const uint64_t first = (base + page_bytes - 1) >> shift, last = (base + bytes) >> shift;
    if (first >= last) continue;
    const uint64_t died_ns = columns_.died_ns[id - 1];
    events.push_back({died_ns != 0 ? died_ns : kForever, id, Order::death});
    if (columns_.previous[id - 1] != 0) events.push_back({columns_.born_ns[id - 1], id, Order::continued});
  }
  for (size_t i = 0; i < process_events_.size(); ++i) {
    const ml_process_event& event = process_events_[i].second;
    if (event.operation != ML_ENUM_process_operation_FORK && event.operation != ML_ENUM_process_operation_EXEC) continue;
    events.push_back({event.time_ns, static_cast<uint32_t>(i), Order::process_event});
    beginnings[process_events_[i].first].push_back(event.time_ns);
  }
  for (auto& [process, times] : beginnings) std::sort(times.begin(), times.end());
  for (size_t i = 0; i < mappings_.size(); ++i)
    events.push_back({mappings_[i].second.time_ns, static_cast<uint32_t>(i), Order::mapping});
  for (size_t i = 0; i < map_calls_.size(); ++i)
    if (map_calls_[i].record.operation == ML_ENUM_allocation_operation_MUNMAP)
      events.push_back({map_calls_[i].record.time_ns, static_cast<uint32_t>(i), Order::unmap});
  for (size_t i = 0; i < input.process.size(); ++i)
    events.push_back({std::min(input.time_ns[i], kLatest), static_cast<uint32_t>(i), Order::fault});
  for (size_t i = 0; i < input.placed_process.size(); ++i) {
    // The previous look may have been before the fork or exec that made this address space.
    uint64_t begin_ns = input.placed_begin_ns[i];
    const auto found = beginnings.find(input.placed_process[i]);
    if (found != beginnings.end()) {
      const auto after = std::upper_bound(found->second.begin(), found->second.end(), input.placed_end_ns[i]);
      if (after != found->second.begin()) begin_ns = std::max(begin_ns, *std::prev(after));
    }
    events.push_back({std::min(begin_ns, kLatest), static_cast<uint32_t>(i), Order::placed});
  }
  std::stable_sort(events.begin(), events.end(), [](const Event& a, const Event& b) {
    return a.time_ns != b.time_ns ? a.time_ns < b.time_ns : a.order < b.order;
  });

  std::unordered_map<uint32_t, ProcessPages> processes;
  // Whether a page without a touch was not touched: only private anonymous memory faults page by page.
  const auto never_known = [&](size_t row, const replay::AddressSpace& space) -> uint8_t {
    const Kind kind = static_cast<Kind>(columns_.kind[row]);
    if (kind == Kind::heap || kind == Kind::brk) return 1;
    if (kind == Kind::mmap || kind == Kind::reserved)
      return columns_.map_flags[row] == 0 || ((columns_.map_flags[row] & kMapAnonymous) != 0 && (columns_.map_flags[row] & kMapShared) == 0);
    const auto& areas = space.areas();
    const uint64_t end = columns_.base[row] + columns_.bytes[row];
    auto area = std::lower_bound(areas.begin(), areas.end(), columns_.base[row],
                                 [](const replay::Area& a, uint64_t address) { return a.end <= address; });
    for (; area != areas.end() && area->begin < end; ++area)
      if (area->inode != 0 || area->shared) return 0;
    return 1;
  };
  // The pages of an object that continues another one, at its birth.
  const auto take_along = [&](uint32_t id) {
    const size_t row = id - 1, old = columns_.previous[row] - 1;
    if (old >= row || columns_.process[old] != columns_.process[row]) return;
    PageTimes& pages = processes[columns_.process[row]].pages;
    const uint64_t base = columns_.base[row], old_base = columns_.base[old], born_ns = columns_.born_ns[row];
    const uint64_t old_born_ns = columns_.born_ns[old], died_ns = columns_.died_ns[old];
    const bool is_piece = (columns_.flags[row] & kPiece) != 0;
    if (is_piece) {  // it lies where it was
      std::vector<uint64_t> touched;  // changed afterwards: blocks may be shared with a child
      pages.each(base >> shift, ((base + columns_.bytes[row] - 1) >> shift) + 1, [&](uint64_t page, const PageTimes::Page& seen) {
        if (seen.touched_ns != 0 && seen.touched_ns >= seen.mapped_ns && seen.touched_ns >= old_born_ns) touched.push_back(page);
      });
      for (const uint64_t page : touched) pages.touch(page, born_ns);
      return;
    }
    const uint64_t kept = std::min(columns_.bytes[row], columns_.bytes[old]);
    const uint64_t first = base >> shift, last = ((base + columns_.bytes[row] - 1) >> shift) + 1;
    if (kept == 0) return;
    std::vector<uint64_t> touched, gone;
    if ((base & (page_bytes - 1)) != (old_base & (page_bytes - 1))) {
      // Copied: every byte of the new object up to here was written by the copy.
      pages.each(first, (base + kept) >> shift, [&](uint64_t page, const PageTimes::Page& seen) {
        if (seen.touched_ns != 0 && seen.touched_ns >= seen.mapped_ns) touched.push_back(page);
      });
      for (const uint64_t page : touched) pages.touch(page, born_ns);
      return;
    }
    const bool moved = base != old_base;
    const uint64_t old_first = old_base >> shift, old_last = ((old_base + kept - 1) >> shift) + 1;
    std::vector<std::pair<uint64_t, uint64_t>> recycled;  // page, time of the touch before the old object
    pages.each(old_first, old_last, [&](uint64_t page, const PageTimes::Page& seen) {
      if (seen.touched_ns == 0 || seen.touched_ns < seen.mapped_ns) return;
      const uint64_t to = page - old_first + first;
      if (seen.touched_ns >= old_born_ns) touched.push_back(to);
      else if (moved) recycled.emplace_back(to, seen.touched_ns);
    });
    if (moved)  // what is known of the new place is of other memory, except faults since the old object ended: the copy's
      pages.each(first, last, [&](uint64_t page, const PageTimes::Page& seen) {
        if (died_ns != 0 && seen.touched_ns >= died_ns) touched.push_back(page);
        else gone.push_back(page);
      });
    for (const uint64_t page : gone) pages.change(page) = {};
    for (const auto& [page, time_ns] : recycled) pages.change(page) = {time_ns, 0, 0};
    for (const uint64_t page : touched) pages.touch(page, born_ns);
  };
  const auto judge = [&](uint32_t id) {
    const size_t row = id - 1;
    const uint64_t base = columns_.base[row], end = base + columns_.bytes[row], born_ns = columns_.born_ns[row];
    const uint64_t inner_first = (base + page_bytes - 1) >> shift, inner_last = end >> shift;
    uint64_t touched = 0, inner_touched = 0, recycled = 0, by_child = 0;
    ProcessPages& process = processes[columns_.process[row]];
    result.never_known[row] = never_known(row, process.space);
    const Kind kind = static_cast<Kind>(columns_.kind[row]);
    if (kind == Kind::mmap && (columns_.map_flags[row] & (kMapPopulate | kMapLocked)) != 0 && result.never_known[row]) {
      result.touched_pages[row] = ((end - 1) >> shift) + 1 - (base >> shift);
      result.recycled_pages[row] = result.never_pages[row] = 0;
      return;
    }
    process.pages.each(
        base >> shift, ((end - 1) >> shift) + 1, [&](uint64_t page, const PageTimes::Page& entry) {
          const bool inner = page >= inner_first && page < inner_last;
          if (entry.touched_ns >= born_ns && entry.touched_ns != 0) {
            ++touched;
            inner_touched += inner;
          } else if (entry.child_ns >= born_ns && entry.child_ns != 0) {
            by_child += inner;
          } else if (entry.touched_ns == 0) {
            return;
          } else if (inner && entry.touched_ns >= entry.mapped_ns) {
            ++recycled;
          }
        });
    result.touched_pages[row] = touched;
    result.recycled_pages[row] = recycled;
    result.never_pages[row] = inner_last - inner_first - inner_touched - recycled - by_child;
  };
  for (const Event& event : events) {
    switch (event.order) {
      case Order::death: judge(event.index); break;
      case Order::process_event: {
        const auto& [number, record] = process_events_[event.index];
        if (record.operation == ML_ENUM_process_operation_FORK) {
          if (record.parent_process == 0 || record.parent_process == number) break;
          ProcessPages copy = processes[record.parent_process];
          processes[number] = std::move(copy);
          processes[number].fork_parent = record.parent_process;
        } else {
          processes[number].fork_parent = 0;
          processes[number].pages.renew_all(event.time_ns);
          processes[number].space.clear();
        }
        break;
      }
      case Order::mapping: {
        const auto& [number, record] = mappings_[event.index];
        ProcessPages& process = processes[number];
        const uint64_t end = record.address + record.bytes;
        if (record.operation == ML_ENUM_mapping_operation_UNMAP) {
          process.space.unmap(record.address, end);
          process.pages.renew(record.address >> shift, (end + page_bytes - 1) >> shift, event.time_ns);
          break;
        }
        process.space.map(record);
        // What the address space took as a new mapping, and not as an old one that grew or changed.
        const auto& areas = process.space.areas();
        auto area = std::lower_bound(areas.begin(), areas.end(), record.address,
                                     [](const replay::Area& a, uint64_t address) { return a.end <= address; });
        uint32_t newest = 0;
        for (auto at = area; at != areas.end() && at->begin < end; ++at) newest = std::max(newest, at->generation);
        for (; area != areas.end() && area->begin < end; ++area)
          if (area->generation == newest && area->mapped_ns == record.time_ns)
            process.pages.renew(area->begin >> shift, area->end >> shift, event.time_ns);
        break;
      }
      case Order::unmap: {
        const MapCall& call = map_calls_[event.index];
        processes[call.process].pages.renew(call.record.address >> shift,
                                            page_end(call.record.address, call.record.bytes) >> shift, event.time_ns);
        break;
      }
      case Order::fault: {
        const size_t i = event.index;
        const uint64_t span = span_of(input.span_bytes[i], page_bytes);
        const uint64_t first = (input.address[i] & ~(span - 1)) >> shift;
        uint32_t number = input.process[i];
        // Also for the processes that it was forked from, whose objects it has.
        for (int generations = 0; number != 0 && generations < 64; ++generations) {
          ProcessPages& process = processes[number];
          const uint64_t time_ns = std::max<uint64_t>(event.time_ns, 1);
          process.pages.touch_all(first, first + (span >> shift), time_ns, generations != 0);
          number = process.fork_parent;
        }
        break;
      }
      case Order::continued: take_along(event.index); break;
      case Order::placed: {
        const size_t i = event.index;
        PageTimes& pages = processes[input.placed_process[i]].pages;
        const uint64_t first = input.placed_address[i] >> shift;
        const uint64_t last = first + (std::min(input.placed_bytes[i], kMostPlacedBytes) >> shift);
        pages.touch_all(first, last, std::max<uint64_t>(input.placed_end_ns[i], 1), false);
        break;
      }
    }
  }

  for (size_t row = 0; row < count; ++row) {
    if (columns_.died_ns[row] != 0 && columns_.died_ns[row] <= input.sampled_from_ns) continue;
    if (input.sampled_from_ns == UINT64_MAX) break;
    result.never_known[row] = 0;
    const uint64_t pages = columns_.bytes[row] / page_bytes;
    if (pages < kFewPages) result.touched_known[row] = 0;
  }

  // ---- who touched --------------------------------------------------------------------------
  std::vector<Hit> hits;
  const auto each_object_at = [&](const Process& process, uint64_t address, uint64_t time, auto&& visit) {
    for (size_t layer = 0; layer < kLayers; ++layer)
      if (const uint32_t id = own_at(process, static_cast<Layer>(layer), address, time)) visit(id);
    process.tags.each_containing(address, columns_, [&](uint32_t id) {
      if (columns_.born_ns[id - 1] <= time && (columns_.died_ns[id - 1] == 0 || time < columns_.died_ns[id - 1])) visit(id);
    });
  };
  for (size_t i = 0; i < input.process.size(); ++i) {
    const Process* process = known_process(input.process[i]);
    if (process == nullptr) continue;
    const uint64_t span = span_of(input.span_bytes[i], page_bytes);
    const uint64_t first = input.address[i] & ~(span - 1);
    const uint64_t time_ns = std::min(input.time_ns[i], kLatest);
    each_object_at(*process, input.address[i], time_ns, [&](uint32_t id) {
      const uint64_t begin = std::max(first, columns_.base[id - 1]);
      const uint64_t end = std::min(first + span - 1, columns_.base[id - 1] + columns_.bytes[id - 1] - 1) + 1;
      const uint64_t inside = end > begin ? end - begin : 0;
      const double weight = std::clamp(input.weight[i], 0.0, kMostWeight);
      hits.push_back({id, input.thread[i], input.code[i], input.new_bytes[i] != 0 ? weight : 0, time_ns,
                      std::min(inside, input.new_bytes[i]), weight, input.mapped_around[i] != 0});
    });
  }
  for (size_t i = 0; i < input.placed_process.size(); ++i) {
    const Process* process = known_process(input.placed_process[i]);
    if (process == nullptr) continue;
    const uint64_t first = input.placed_address[i] & ~(page_bytes - 1);
    const uint64_t pages = std::min(input.placed_bytes[i], kMostPlacedBytes) >> shift;
    const uint64_t time_ns = std::min(input.placed_end_ns[i], kLatest);
    const size_t hits_before = hits.size();
    for (uint64_t page = 0; page < pages; ++page) {
      each_object_at(*process, first + page * page_bytes, time_ns, [&](uint32_t id) {
        // A long run lies in few objects: look back a little before noting one again.
        for (size_t back = hits.size(); back > hits_before && back + 8 > hits.size(); --back)
          if (hits[back - 1].object == id) return;
        hits.push_back({id, 0, 0, 0, std::max(input.placed_begin_ns[i], columns_.born_ns[id - 1]), 0, 1, false});
      });
    }
  }
  std::stable_sort(hits.begin(), hits.end(), [](const Hit& a, const Hit& b) {
    return a.object != b.object ? a.object < b.object : a.thread < b.thread;
  });
  // Bytes by thread of objects that another one continues.
  std::unordered_map<uint32_t, std::vector<std::pair<uint32_t, uint64_t>>> continued;
  for (uint32_t id = 1; id <= count; ++id)
    if (columns_.previous[id - 1] != 0 && columns_.previous[id - 1] < id) continued[columns_.previous[id - 1]];
  size_t at = 0;
  for (uint32_t id = 1; id <= count; ++id) {
    const size_t row = id - 1;
    const uint32_t previous = columns_.previous[row];
    const auto before = previous != 0 && previous < id ? continued.find(previous) : continued.end();
    if ((at >= hits.size() || hits[at].object != id) && before == continued.end()) continue;
    std::vector<std::pair<uint32_t, uint64_t>> by_thread;
    if (before != continued.end()) {  // who touched it first did so before it was moved
      by_thread = before->second;
      result.has_touch[row] = result.has_touch[previous - 1];
      result.first_touch_ns[row] = result.first_touch_ns[previous - 1];
      result.first_touch_thread[row] = result.first_touch_thread[previous - 1];
      result.first_touch_code[row] = result.first_touch_code[previous - 1];
      result.touched_known[row] = result.touched_known[previous - 1];
    }
    Estimate estimate;
    double faults = 0;
    while (at < hits.size() && hits[at].object == id) {
      const uint32_t thread = hits[at].thread;
      double weighted = 0;
      for (; at < hits.size() && hits[at].object == id && hits[at].thread == thread; ++at) {
        const Hit& hit = hits[at];
        const double pages = static_cast<double>(hit.bytes) / static_cast<double>(page_bytes);
        weighted += static_cast<double>(hit.bytes) * hit.weight;
        estimate.pages += pages * hit.weight;
        if (hit.weight > 1) estimate.variance += pages * pages * hit.weight * (hit.weight - 1);
        estimate.largest_weight = std::max(estimate.largest_weight, hit.weight);
        if (hit.mapped_around) result.touched_known[row] = 0;
        faults += hit.faults;
        if (!result.has_touch[row] || hit.time_ns < result.first_touch_ns[row]) {
          result.has_touch[row] = 1;
          result.first_touch_ns[row] = hit.time_ns;
          result.first_touch_thread[row] = hit.thread;
          result.first_touch_code[row] = hit.code;
        }
      }
      if (thread == 0) continue;  // the kernel's, for nobody in particular
      const uint64_t bytes = static_cast<uint64_t>(weighted + 0.5);
      const auto known = std::find_if(by_thread.begin(), by_thread.end(), [&](const auto& e) { return e.first == thread; });
      if (known != by_thread.end()) known->second += bytes;
      else by_thread.emplace_back(thread, bytes);
    }
    result.faults[row] = static_cast<uint32_t>(std::min(faults + 0.5, 4294967295.0));
    if (estimate.largest_weight > 1 && result.touched_pages[row] != TouchColumns::kNotCounted) {
      const uint64_t most = ((columns_.base[row] + columns_.bytes[row] - 1) >> shift) + 1 - (columns_.base[row] >> shift);
      result.touched_pages[row] = std::max(result.touched_pages[row], std::min(most, static_cast<uint64_t>(estimate.pages + 0.5)));
      result.touched_error_pages[row] = static_cast<uint64_t>(1.96 * std::sqrt(estimate.variance) + 0.5);
    }
    result.touching_threads[row] = static_cast<uint8_t>(std::min<size_t>(by_thread.size(), 255));
    for (const auto& [thread, bytes] : by_thread)
      result.top_thread_bytes[row] = std::max(result.top_thread_bytes[row], std::min(bytes, columns_.bytes[row]));
    if (const auto mine = continued.find(id); mine != continued.end()) mine->second = std::move(by_thread);
  }
  return result;
}

}  // namespace memlens::objects
