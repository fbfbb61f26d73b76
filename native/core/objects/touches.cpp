#include "touches.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <unordered_map>

#include "object_table.h"
#include "page_times.h"

namespace memlens::objects {
namespace {

constexpr uint64_t kMostSpanBytes = uint64_t{1} << 30;  // the largest page there is
constexpr double kMostWeight = 1e6;
constexpr uint64_t kFewPages = 256;  // where one fault in dozens is recorded, too few to say how many were touched
constexpr uint64_t kMostPlacedBytes = uint64_t{1} << 40;  // a longer run is damage

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

// What pages say of objects: the walk over deaths of objects, mappings, faults and placed runs in time order.
class PageWalk {
 public:
  PageWalk(const ObjectTable& table, const TouchInput& input, TouchColumns& result)
      : table_(table),
        columns_(table.columns_),
        input_(input),
        result_(result),
        page_bytes_(table.page_bytes_),
        shift_(static_cast<unsigned>(__builtin_ctzll(table.page_bytes_))) {}
  void run() {
    collect_events();
    for (const Event& event : events_) replay(event);
    distrust_sampled();
  }

 private:
  void collect_events();
  void collect_objects();
  void collect_placed(const std::unordered_map<uint32_t, std::vector<uint64_t>>& beginnings);
  void replay(const Event& event);
  void judge(uint32_t id);
  uint8_t never_known(size_t row, const replay::AddressSpace& space) const;
  void take_along(uint32_t id);
  void take_piece(size_t row, PageTimes& pages);
  void take_copy(size_t row, uint64_t kept, PageTimes& pages);
  void take_moved(size_t row, uint64_t kept, PageTimes& pages);
  void replay_process_event(uint32_t index);
  void replay_mapping(uint32_t index, uint64_t time_ns);
  void replay_fault(uint32_t i, uint64_t time_ns);
  void replay_placed(uint32_t i);
  void distrust_sampled();

  const ObjectTable& table_;
  const Columns& columns_;
  const TouchInput& input_;
  TouchColumns& result_;
  const uint64_t page_bytes_;
  const unsigned shift_;
  std::vector<Event> events_;
  std::unordered_map<uint32_t, ProcessPages> processes_;
};

// Who touched objects: the faults and placed runs that lie in each.
class TouchSums {
 public:
  TouchSums(const ObjectTable& table, const TouchInput& input, TouchColumns& result)
      : table_(table),
        columns_(table.columns_),
        input_(input),
        result_(result),
        page_bytes_(table.page_bytes_),
        shift_(static_cast<unsigned>(__builtin_ctzll(table.page_bytes_))) {}
  void run() {
    find_faults();
    find_placed();
    sum_up();
  }

 private:
  using BytesByThread = std::vector<std::pair<uint32_t, uint64_t>>;
  template <typename Visit>
  void each_object_at(const ObjectTable::Process& process, uint64_t address, uint64_t time, Visit&& visit) const;
  void find_faults();
  void find_placed();
  void sum_up();
  void take_over(size_t row, uint32_t previous);
  void sum_object(uint32_t id, size_t& at, BytesByThread& by_thread);
  void add_hit(size_t row, const Hit& hit, Estimate& estimate);
  void estimate_pages(size_t row, const Estimate& estimate);

  const ObjectTable& table_;
  const Columns& columns_;
  const TouchInput& input_;
  TouchColumns& result_;
  const uint64_t page_bytes_;
  const unsigned shift_;
  std::vector<Hit> hits_;
};

// ---- pages of objects ---------------------------------------------------------------------

void PageWalk::collect_objects() {
  for (uint32_t id = 1; id <= columns_.size(); ++id) {
    const uint64_t base = columns_.base[id - 1], bytes = columns_.bytes[id - 1];
    if (bytes < page_bytes_) continue;
    const uint64_t first = (base + page_bytes_ - 1) >> shift_, last = (base + bytes) >> shift_;
    if (first >= last) continue;
    const uint64_t died_ns = columns_.died_ns[id - 1];
    events_.push_back({died_ns != 0 ? died_ns : kForever, id, Order::death});
    if (columns_.previous[id - 1] != 0) events_.push_back({columns_.born_ns[id - 1], id, Order::continued});
  }
}

void PageWalk::collect_placed(const std::unordered_map<uint32_t, std::vector<uint64_t>>& beginnings) {
  for (size_t i = 0; i < input_.placed_process.size(); ++i) {
    // The previous look may have been before the fork or exec that made this address space.
    uint64_t begin_ns = input_.placed_begin_ns[i];
    const auto found = beginnings.find(input_.placed_process[i]);
    if (found != beginnings.end()) {
      const auto after = std::upper_bound(found->second.begin(), found->second.end(), input_.placed_end_ns[i]);
      if (after != found->second.begin()) begin_ns = std::max(begin_ns, *std::prev(after));
    }
    events_.push_back({std::min(begin_ns, kLatest), static_cast<uint32_t>(i), Order::placed});
  }
}

void PageWalk::collect_events() {
  std::unordered_map<uint32_t, std::vector<uint64_t>> beginnings;  // forks and execs of each process
  collect_objects();
  for (size_t i = 0; i < table_.process_events_.size(); ++i) {
    const ml_process_event& event = table_.process_events_[i].second;
    if (event.operation != ML_ENUM_process_operation_FORK && event.operation != ML_ENUM_process_operation_EXEC)
      continue;
    events_.push_back({event.time_ns, static_cast<uint32_t>(i), Order::process_event});
    beginnings[table_.process_events_[i].first].push_back(event.time_ns);
  }
  for (auto& [process, times] : beginnings) std::sort(times.begin(), times.end());
  for (size_t i = 0; i < table_.mappings_.size(); ++i)
    events_.push_back({table_.mappings_[i].second.time_ns, static_cast<uint32_t>(i), Order::mapping});
  for (size_t i = 0; i < table_.unmaps_.size(); ++i)
    events_.push_back({table_.unmaps_[i].record.time_ns, static_cast<uint32_t>(i), Order::unmap});
  for (size_t i = 0; i < input_.process.size(); ++i)
    events_.push_back({std::min(input_.time_ns[i], kLatest), static_cast<uint32_t>(i), Order::fault});
  collect_placed(beginnings);
  std::stable_sort(events_.begin(), events_.end(), [](const Event& a, const Event& b) {
    return a.time_ns != b.time_ns ? a.time_ns < b.time_ns : a.order < b.order;
  });
}

void PageWalk::replay(const Event& event) {
  switch (event.order) {
    case Order::death: judge(event.index); break;
    case Order::process_event: replay_process_event(event.index); break;
    case Order::mapping: replay_mapping(event.index, event.time_ns); break;
    case Order::unmap: {
      const ObjectTable::MapCall& call = table_.unmaps_[event.index];
      const uint64_t end = table_.page_end(call.record.address, call.record.bytes);
      processes_[call.process].pages.renew(call.record.address >> shift_, end >> shift_, event.time_ns);
      break;
    }
    case Order::fault: replay_fault(event.index, event.time_ns); break;
    case Order::continued: take_along(event.index); break;
    case Order::placed: replay_placed(event.index); break;
  }
}

void PageWalk::replay_process_event(uint32_t index) {
  const auto& [number, record] = table_.process_events_[index];
  if (record.operation == ML_ENUM_process_operation_FORK) {
    if (record.parent_process == 0 || record.parent_process == number) return;
    ProcessPages copy = processes_[record.parent_process];
    processes_[number] = std::move(copy);
    processes_[number].fork_parent = record.parent_process;
  } else {
    processes_[number].fork_parent = 0;
    processes_[number].pages.renew_all(record.time_ns);
    processes_[number].space.clear();
  }
}

void PageWalk::replay_mapping(uint32_t index, uint64_t time_ns) {
  const auto& [number, record] = table_.mappings_[index];
  ProcessPages& process = processes_[number];
  const uint64_t end = record.address + record.bytes;
  if (record.operation == ML_ENUM_mapping_operation_UNMAP) {
    process.space.unmap(record.address, end);
    process.pages.renew(record.address >> shift_, (end + page_bytes_ - 1) >> shift_, time_ns);
    return;
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
      process.pages.renew(area->begin >> shift_, area->end >> shift_, time_ns);
}

void PageWalk::replay_fault(uint32_t i, uint64_t time_ns) {
  const uint64_t span = span_of(input_.span_bytes[i], page_bytes_);
  const uint64_t first = (input_.address[i] & ~(span - 1)) >> shift_;
  uint32_t number = input_.process[i];
  // Also for the processes that it was forked from, whose objects it has.
  for (int generations = 0; number != 0 && generations < 64; ++generations) {
    ProcessPages& process = processes_[number];
    process.pages.touch_all(first, first + (span >> shift_), std::max<uint64_t>(time_ns, 1), generations != 0);
    number = process.fork_parent;
  }
}

void PageWalk::replay_placed(uint32_t i) {
  PageTimes& pages = processes_[input_.placed_process[i]].pages;
  const uint64_t first = input_.placed_address[i] >> shift_;
  const uint64_t last = first + (std::min(input_.placed_bytes[i], kMostPlacedBytes) >> shift_);
  pages.touch_all(first, last, std::max<uint64_t>(input_.placed_end_ns[i], 1), false);
}

// Whether a page without a touch was not touched: only private anonymous memory faults page by page.
uint8_t PageWalk::never_known(size_t row, const replay::AddressSpace& space) const {
  const Kind kind = static_cast<Kind>(columns_.kind[row]);
  if (kind == Kind::heap || kind == Kind::brk) return 1;
  if (kind == Kind::mmap || kind == Kind::reserved)
    return columns_.map_flags[row] == 0 ||
           ((columns_.map_flags[row] & kMapAnonymous) != 0 && (columns_.map_flags[row] & kMapShared) == 0);
  const auto& areas = space.areas();
  const uint64_t end = columns_.base[row] + columns_.bytes[row];
  auto area = std::lower_bound(areas.begin(), areas.end(), columns_.base[row],
                               [](const replay::Area& a, uint64_t address) { return a.end <= address; });
  for (; area != areas.end() && area->begin < end; ++area)
    if (area->inode != 0 || area->shared) return 0;
  return 1;
}

// The pages of an object that continues another one, at its birth.
void PageWalk::take_along(uint32_t id) {
  const size_t row = id - 1, old = columns_.previous[row] - 1;
  if (old >= row || columns_.process[old] != columns_.process[row]) return;
  PageTimes& pages = processes_[columns_.process[row]].pages;
  if ((columns_.flags[row] & kPiece) != 0) {
    take_piece(row, pages);
    return;
  }
  const uint64_t kept = std::min(columns_.bytes[row], columns_.bytes[old]);
  if (kept == 0) return;
  const bool same_place = (columns_.base[row] & (page_bytes_ - 1)) == (columns_.base[old] & (page_bytes_ - 1));
  if (same_place) take_moved(row, kept, pages);
  else take_copy(row, kept, pages);
}

// It lies where it was.
void PageWalk::take_piece(size_t row, PageTimes& pages) {
  const uint64_t base = columns_.base[row], old_born_ns = columns_.born_ns[columns_.previous[row] - 1];
  std::vector<uint64_t> touched;  // changed afterwards: blocks may be shared with a child
  pages.each(base >> shift_, ((base + columns_.bytes[row] - 1) >> shift_) + 1,
             [&](uint64_t page, const PageTimes::Page& seen) {
               if (seen.touched_ns != 0 && seen.touched_ns >= seen.mapped_ns && seen.touched_ns >= old_born_ns)
                 touched.push_back(page);
             });
  for (const uint64_t page : touched) pages.touch(page, columns_.born_ns[row]);
}

// Copied: every byte of the new object up to here was written by the copy.
void PageWalk::take_copy(size_t row, uint64_t kept, PageTimes& pages) {
  const uint64_t base = columns_.base[row];
  std::vector<uint64_t> touched;
  pages.each(base >> shift_, (base + kept) >> shift_, [&](uint64_t page, const PageTimes::Page& seen) {
    if (seen.touched_ns != 0 && seen.touched_ns >= seen.mapped_ns) touched.push_back(page);
  });
  for (const uint64_t page : touched) pages.touch(page, columns_.born_ns[row]);
}

// Its pages were moved there, or it grew or shrank in place.
void PageWalk::take_moved(size_t row, uint64_t kept, PageTimes& pages) {
  const size_t old = columns_.previous[row] - 1;
  const uint64_t base = columns_.base[row], old_base = columns_.base[old], born_ns = columns_.born_ns[row];
  const uint64_t old_born_ns = columns_.born_ns[old], died_ns = columns_.died_ns[old];
  const uint64_t first = base >> shift_, last = ((base + columns_.bytes[row] - 1) >> shift_) + 1;
  std::vector<uint64_t> touched, gone;
  const bool moved = base != old_base;
  const uint64_t old_first = old_base >> shift_, old_last = ((old_base + kept - 1) >> shift_) + 1;
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
}

void PageWalk::judge(uint32_t id) {
  const size_t row = id - 1;
  const uint64_t base = columns_.base[row], end = base + columns_.bytes[row], born_ns = columns_.born_ns[row];
  const uint64_t inner_first = (base + page_bytes_ - 1) >> shift_, inner_last = end >> shift_;
  uint64_t touched = 0, inner_touched = 0, recycled = 0, by_child = 0;
  ProcessPages& process = processes_[columns_.process[row]];
  result_.never_known[row] = never_known(row, process.space);
  const Kind kind = static_cast<Kind>(columns_.kind[row]);
  if (kind == Kind::mmap && (columns_.map_flags[row] & (kMapPopulate | kMapLocked)) != 0 && result_.never_known[row]) {
    result_.touched_pages[row] = ((end - 1) >> shift_) + 1 - (base >> shift_);
    result_.recycled_pages[row] = result_.never_pages[row] = 0;
    return;
  }
  process.pages.each(base >> shift_, ((end - 1) >> shift_) + 1, [&](uint64_t page, const PageTimes::Page& entry) {
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
  result_.touched_pages[row] = touched;
  result_.recycled_pages[row] = recycled;
  result_.never_pages[row] = inner_last - inner_first - inner_touched - recycled - by_child;
}

// Of objects that lived when not every fault was recorded.
void PageWalk::distrust_sampled() {
  for (size_t row = 0; row < columns_.size(); ++row) {
    if (columns_.died_ns[row] != 0 && columns_.died_ns[row] <= input_.sampled_from_ns) continue;
    if (input_.sampled_from_ns == UINT64_MAX) break;
    result_.never_known[row] = 0;
    const uint64_t pages = columns_.bytes[row] / page_bytes_;
    if (pages < kFewPages) result_.touched_known[row] = 0;
  }
}

// ---- who touched ----------------------------------------------------------------------------

template <typename Visit>
void TouchSums::each_object_at(const ObjectTable::Process& process, uint64_t address, uint64_t time,
                               Visit&& visit) const {
  for (size_t layer = 0; layer < kLayers; ++layer)
    if (const uint32_t id = table_.own_at(process, static_cast<Layer>(layer), address, time)) visit(id);
  process.tags.each_containing(address, columns_, [&](uint32_t id) {
    if (columns_.born_ns[id - 1] <= time && (columns_.died_ns[id - 1] == 0 || time < columns_.died_ns[id - 1]))
      visit(id);
  });
}

void TouchSums::find_faults() {
  for (size_t i = 0; i < input_.process.size(); ++i) {
    const ObjectTable::Process* process = table_.known_process(input_.process[i]);
    if (process == nullptr) continue;
    const uint64_t span = span_of(input_.span_bytes[i], page_bytes_);
    const uint64_t first = input_.address[i] & ~(span - 1);
    const uint64_t time_ns = std::min(input_.time_ns[i], kLatest);
    each_object_at(*process, input_.address[i], time_ns, [&](uint32_t id) {
      const uint64_t begin = std::max(first, columns_.base[id - 1]);
      const uint64_t end = std::min(first + span - 1, columns_.base[id - 1] + columns_.bytes[id - 1] - 1) + 1;
      const uint64_t inside = end > begin ? end - begin : 0;
      const double weight = std::clamp(input_.weight[i], 0.0, kMostWeight);
      hits_.push_back({id, input_.thread[i], input_.code[i], input_.new_bytes[i] != 0 ? weight : 0, time_ns,
                       std::min(inside, input_.new_bytes[i]), weight, input_.mapped_around[i] != 0});
    });
  }
}

void TouchSums::find_placed() {
  for (size_t i = 0; i < input_.placed_process.size(); ++i) {
    const ObjectTable::Process* process = table_.known_process(input_.placed_process[i]);
    if (process == nullptr) continue;
    const uint64_t first = input_.placed_address[i] & ~(page_bytes_ - 1);
    const uint64_t pages = std::min(input_.placed_bytes[i], kMostPlacedBytes) >> shift_;
    const uint64_t time_ns = std::min(input_.placed_end_ns[i], kLatest);
    const size_t hits_before = hits_.size();
    for (uint64_t page = 0; page < pages; ++page) {
      each_object_at(*process, first + page * page_bytes_, time_ns, [&](uint32_t id) {
        // A long run lies in few objects: look back a little before noting one again.
        for (size_t back = hits_.size(); back > hits_before && back + 8 > hits_.size(); --back)
          if (hits_[back - 1].object == id) return;
        hits_.push_back({id, 0, 0, 0, std::max(input_.placed_begin_ns[i], columns_.born_ns[id - 1]), 0, 1, false});
      });
    }
  }
}

void TouchSums::sum_up() {
  std::stable_sort(hits_.begin(), hits_.end(), [](const Hit& a, const Hit& b) {
    return a.object != b.object ? a.object < b.object : a.thread < b.thread;
  });
  // Bytes by thread of objects that another one continues.
  std::unordered_map<uint32_t, BytesByThread> continued;
  for (uint32_t id = 1; id <= columns_.size(); ++id)
    if (columns_.previous[id - 1] != 0 && columns_.previous[id - 1] < id) continued[columns_.previous[id - 1]];
  size_t at = 0;
  for (uint32_t id = 1; id <= columns_.size(); ++id) {
    const uint32_t previous = columns_.previous[id - 1];
    const auto before = previous != 0 && previous < id ? continued.find(previous) : continued.end();
    if ((at >= hits_.size() || hits_[at].object != id) && before == continued.end()) continue;
    BytesByThread by_thread;
    if (before != continued.end()) {
      by_thread = before->second;
      take_over(id - 1, previous);
    }
    sum_object(id, at, by_thread);
    if (const auto mine = continued.find(id); mine != continued.end()) mine->second = std::move(by_thread);
  }
}

// Who touched it first did so before it was moved.
void TouchSums::take_over(size_t row, uint32_t previous) {
  result_.has_touch[row] = result_.has_touch[previous - 1];
  result_.first_touch_ns[row] = result_.first_touch_ns[previous - 1];
  result_.first_touch_thread[row] = result_.first_touch_thread[previous - 1];
  result_.first_touch_code[row] = result_.first_touch_code[previous - 1];
  result_.touched_known[row] = result_.touched_known[previous - 1];
}

// The hits of one object, from `at` on.
void TouchSums::sum_object(uint32_t id, size_t& at, BytesByThread& by_thread) {
  const size_t row = id - 1;
  Estimate estimate;
  double faults = 0;
  while (at < hits_.size() && hits_[at].object == id) {
    const uint32_t thread = hits_[at].thread;
    double weighted = 0;
    for (; at < hits_.size() && hits_[at].object == id && hits_[at].thread == thread; ++at) {
      weighted += static_cast<double>(hits_[at].bytes) * hits_[at].weight;
      faults += hits_[at].faults;
      add_hit(row, hits_[at], estimate);
    }
    if (thread == 0) continue;  // the kernel's, for nobody in particular
    const uint64_t bytes = static_cast<uint64_t>(weighted + 0.5);
    const auto known =
        std::find_if(by_thread.begin(), by_thread.end(), [&](const auto& e) { return e.first == thread; });
    if (known != by_thread.end()) known->second += bytes;
    else by_thread.emplace_back(thread, bytes);
  }
  result_.faults[row] = static_cast<uint32_t>(std::min(faults + 0.5, 4294967295.0));
  estimate_pages(row, estimate);
  result_.touching_threads[row] = static_cast<uint8_t>(std::min<size_t>(by_thread.size(), 255));
  for (const auto& [thread, bytes] : by_thread)
    result_.top_thread_bytes[row] = std::max(result_.top_thread_bytes[row], std::min(bytes, columns_.bytes[row]));
}

void TouchSums::add_hit(size_t row, const Hit& hit, Estimate& estimate) {
  const double pages = static_cast<double>(hit.bytes) / static_cast<double>(page_bytes_);
  estimate.pages += pages * hit.weight;
  if (hit.weight > 1) estimate.variance += pages * pages * hit.weight * (hit.weight - 1);
  estimate.largest_weight = std::max(estimate.largest_weight, hit.weight);
  if (hit.mapped_around) result_.touched_known[row] = 0;
  if (result_.has_touch[row] && hit.time_ns >= result_.first_touch_ns[row]) return;
  result_.has_touch[row] = 1;
  result_.first_touch_ns[row] = hit.time_ns;
  result_.first_touch_thread[row] = hit.thread;
  result_.first_touch_code[row] = hit.code;
}

// Where faults were sampled.
void TouchSums::estimate_pages(size_t row, const Estimate& estimate) {
  if (estimate.largest_weight <= 1 || result_.touched_pages[row] == TouchColumns::kNotCounted) return;
  const uint64_t most = ((columns_.base[row] + columns_.bytes[row] - 1) >> shift_) + 1 - (columns_.base[row] >> shift_);
  result_.touched_pages[row] =
      std::max(result_.touched_pages[row], std::min(most, static_cast<uint64_t>(estimate.pages + 0.5)));
  result_.touched_error_pages[row] = static_cast<uint64_t>(1.96 * std::sqrt(estimate.variance) + 0.5);
}

// ---- the answer -----------------------------------------------------------------------------

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
  PageWalk(*this, input, result).run();
  TouchSums(*this, input, result).run();
  return result;
}

}  // namespace memlens::objects
