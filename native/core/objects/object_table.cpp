#include "object_table.h"

#include <algorithm>
#include <string_view>
#include <thread>

#include "replay/record_walk.h"

namespace memlens::objects {
namespace {

// Records with times and sizes that cannot overflow, whatever a damaged capture holds.
template <typename Record, typename Sink>
void each_record(std::span<const unsigned char> payload, Sink&& sink) {
  replay::each_record<Record>(payload, [&](Record record) {
    if constexpr (requires { record.time_ns; }) record.time_ns = std::min(record.time_ns, kLatest - 1);
    if constexpr (requires {
                    record.bytes;
                    record.address;
                  })
      record.bytes = std::min(record.bytes, kLatest - std::min(record.address, kLatest));
    sink(record);
  });
}

constexpr uint32_t kMostProcess = (uint32_t{1} << 31) - 1;  // what Release can hold

uint64_t covered_bytes(uint64_t bytes) { return std::max<uint64_t>(bytes, 1); }  // malloc(0) is an address too

bool is_alive(const Columns& columns, uint32_t id, uint64_t time) {
  return columns.born_ns[id - 1] <= time && (columns.died_ns[id - 1] == 0 || time < columns.died_ns[id - 1]);
}

}  // namespace

ObjectTable::ObjectTable(uint64_t page_bytes, size_t most_rows, size_t largest)
    : page_bytes_(page_bytes != 0 && (page_bytes & (page_bytes - 1)) == 0 ? page_bytes : 4096),
      most_rows_(most_rows),
      forget_at_(most_rows),
      largest_(largest) {}

// ---- input -------------------------------------------------------------------------------

void ObjectTable::add_strings(std::span<const unsigned char> payload) {
  replay::each_variable_record<ml_string>(payload, [&](const ml_string& record, std::span<const unsigned char> tail) {
    const std::string_view path(reinterpret_cast<const char*>(tail.data()), tail.size());
    if (path == "[heap]") heap_path_ = record.id;
    if (path.starts_with('/') && !path.starts_with("//") && !path.starts_with("/memfd:memlens"))
      file_paths_.insert(record.id);
  });
}

void ObjectTable::add_allocations(uint32_t process, std::span<const unsigned char> payload, uint32_t arrival) {
  if (process > kMostProcess) return;
  const auto wait = [&](uint64_t time_ns, size_t index, Order order) {
    waiting_.push_back({time_ns, static_cast<uint32_t>(index), arrival & 0xffffffu, order});
  };
  each_record<ml_allocation>(payload, [&](const ml_allocation& record) {
    switch (record.operation) {
      case ML_ENUM_allocation_operation_REALLOC:
      case ML_ENUM_allocation_operation_MALLOC:
      case ML_ENUM_allocation_operation_CALLOC:
      case ML_ENUM_allocation_operation_ALIGNED:
      case ML_ENUM_allocation_operation_NEW:
        wait(record.time_ns, births_.size(), Order::birth);
        births_.push_back({record.time_ns, record.address, record.bytes, record.weight_bytes,
                           record.operation == ML_ENUM_allocation_operation_REALLOC ? record.old_address : 0, process,
                           record.stack, record.thread, static_cast<uint8_t>(record.operation), record.alignment_shift,
                           record.flags, 0});
        break;
      case ML_ENUM_allocation_operation_FREE:
      case ML_ENUM_allocation_operation_DELETE: {
        const uint32_t in_realloc = record.flags & ML_ENUM_allocation_flags_IN_REALLOC ? 1 : 0;
        wait(record.time_ns, releases_.size(), Order::release);
        releases_.push_back({record.time_ns, record.address, process & kMostProcess, in_realloc, record.thread});
        break;
      }
      case ML_ENUM_allocation_operation_MUNMAP: unmaps_.push_back({process, record}); [[fallthrough]];
      case ML_ENUM_allocation_operation_MMAP:
      case ML_ENUM_allocation_operation_MREMAP:
      case ML_ENUM_allocation_operation_BRK:
        wait(record.time_ns, map_calls_.size(),
             record.operation == ML_ENUM_allocation_operation_MUNMAP ? Order::unmap : Order::map_call);
        map_calls_.push_back({process, record});
        break;
      default: break;
    }
  });
}

void ObjectTable::add_tag_events(uint32_t process, std::span<const unsigned char> payload) {
  each_record<ml_tag_event>(payload, [&](const auto& record) { tag_events_.emplace_back(process, record); });
}

void ObjectTable::add_thread_memory(uint32_t process, std::span<const unsigned char> payload) {
  each_record<ml_thread_memory>(payload, [&](const auto& record) { thread_memory_.emplace_back(process, record); });
}

void ObjectTable::add_process_events(uint32_t process, std::span<const unsigned char> payload) {
  each_record<ml_process_event>(payload, [&](const auto& record) { process_events_.emplace_back(process, record); });
}

void ObjectTable::add_mappings(uint32_t process, std::span<const unsigned char> payload) {
  each_record<ml_mapping>(payload, [&](const auto& record) { mappings_.emplace_back(process, record); });
}

// ---- replay ------------------------------------------------------------------------------

bool ObjectTable::comes_before(const Event& a, const Event& b) {
  if (a.time_ns != b.time_ns) return a.time_ns < b.time_ns;
  return a.order != b.order ? a.order < b.order : a.arrival < b.arrival;
}

void ObjectTable::expect(uint32_t process, uint64_t begin_ns, uint64_t end_ns) {
  Range& range = ranges_[process];
  range.begin_ns = std::min(range.begin_ns, std::min(begin_ns, kLatest - 1));
  range.end_ns = std::max(range.end_ns, std::min(end_ns, kLatest - 1));
}

// A mapping that was found is older than the look that found it: it counts from the program's beginning.
void ObjectTable::date_found_mappings() {
  std::unordered_map<uint32_t, std::vector<uint64_t>> begins;
  for (const auto& [process, event] : process_events_)
    if (event.operation == ML_ENUM_process_operation_EXEC || event.operation == ML_ENUM_process_operation_FORK ||
        event.operation == ML_ENUM_process_operation_ATTACH)
      begins[process].push_back(event.time_ns);
  for (auto& [process, times] : begins) std::sort(times.begin(), times.end());
  std::unordered_map<uint32_t, uint64_t> found_since;
  std::unordered_map<uint32_t, uint32_t> main_threads;
  for (const auto& [process, event] : process_events_) main_threads[process] = event.pid;
  for (auto& [process, record] : mappings_) {
    if (record.operation != ML_ENUM_mapping_operation_FOUND) continue;
    const auto found = begins.find(process);
    if (found == begins.end()) continue;
    const auto after = std::upper_bound(found->second.begin(), found->second.end(), record.time_ns);
    if (after == found->second.begin()) continue;
    record.time_ns = *std::prev(after);
    found_since[process] = record.time_ns;
  }
  // So is the main thread's stack.
  for (auto& [process, record] : thread_memory_) {
    const auto found = found_since.find(process);
    if (found != found_since.end() && record.time_ns > found->second && main_threads[process] == record.thread)
      record.time_ns = found->second;
  }
}

void ObjectTable::begin() {
  date_found_mappings();
  const auto collect = [&](const auto& list, Order order, auto time_of, auto process_of) {
    for (size_t i = 0; i < list.size(); ++i) {
      const uint64_t time_ns = time_of(list[i]);
      kept_events_.push_back({time_ns, static_cast<uint32_t>(i), 0, order});
      if (order != Order::process_end) expect(process_of(list[i]), time_ns, time_ns);
    }
  };
  const auto pair_time = [](const auto& e) { return e.second.time_ns; };
  const auto pair_process = [](const auto& e) { return e.first; };
  collect(process_ends_, Order::process_end, [](const auto& e) { return e.second; }, pair_process);
  collect(process_events_, Order::process_event, pair_time, pair_process);
  collect(mappings_, Order::mapping, pair_time, pair_process);
  collect(tag_events_, Order::tag, pair_time, pair_process);
  collect(thread_memory_, Order::thread_memory, pair_time, pair_process);
  collect(
      variables_, Order::variable, [](const Variable& v) { return v.time_ns; },
      [](const Variable& v) { return v.process; });
  std::stable_sort(kept_events_.begin(), kept_events_.end(), comes_before);
  for (const auto& birth : births_) expect(birth.process, birth.time_ns, birth.time_ns);
  for (const auto& release : releases_) expect(release.process, release.time_ns, release.time_ns);
  for (const auto& call : map_calls_) expect(call.process, call.record.time_ns, call.record.time_ns);
  for (const auto& [process, times] : ranges_) totals_.set_range(process, times.begin_ns, times.end_ns);
  for (const auto& [process, event] : process_events_)
    if (event.operation == ML_ENUM_process_operation_FORK) forks_[event.parent_process].push_back(event.time_ns);
  for (auto& [process, times] : forks_) std::sort(times.begin(), times.end());
}

void ObjectTable::replay_event(const Event& event) {
  const uint32_t index = event.index;
  switch (static_cast<Order>(event.order)) {
    case Order::process_end: totals_.end_process(process_ends_[index].first, event.time_ns); break;
    case Order::process_event: replay_process_event(process_events_[index].first, process_events_[index].second); break;
    case Order::mapping: replay_mapping(mappings_[index].first, mappings_[index].second); break;
    case Order::release: replay_release(releases_[index]); break;
    case Order::birth: replay_birth(births_[index]); break;
    case Order::unmap:
    case Order::map_call: replay_map_call(map_calls_[index]); break;
    case Order::tag: replay_tag(tag_events_[index].first, tag_events_[index].second); break;
    case Order::thread_memory: replay_thread(thread_memory_[index].first, thread_memory_[index].second); break;
    case Order::variable: replay_variable(variables_[index]); break;
  }
}

void ObjectTable::replay_kept_before(const Event& next) {
  for (; next_kept_ < kept_events_.size() && comes_before(kept_events_[next_kept_], next); ++next_kept_)
    replay_event(kept_events_[next_kept_]);
}

// Most events are births and releases at addresses all over the heap, so nearly each would wait for memory several times. What later
// ones need is asked for ahead: the leaf, then the entry, then the object's row.
class ObjectTable::Lookahead {
 public:
  explicit Lookahead(ObjectTable& table) : table_(table) {}
  void before(size_t event) {
    if (event + kReach < table_.waiting_.size()) reach(event + kReach);
    if (event + kSearch < table_.waiting_.size()) slot(event + kSearch).search();
    if (event + kRow < table_.waiting_.size()) {
      const uint32_t id = slot(event + kRow).id();
      if (id == 0 || id > table_.columns_.size()) return;
      const char* row = reinterpret_cast<const char*>(&table_.columns_.rows[id - 1]);
      __builtin_prefetch(row, 1);
      __builtin_prefetch(row + sizeof(Row) - 1, 1);
    }
  }
  void restart() { slots_.fill({}); }

 private:
  static constexpr size_t kSlots = 32, kReach = 24, kSearch = 16, kRow = 8;
  VersionTree::Ahead& slot(size_t event) { return slots_[event % kSlots]; }
  void reach(size_t at) {
    const Event& event = table_.waiting_[at];
    slot(at) = {};
    uint32_t number = 0;
    uint64_t address = 0;
    if (event.order == Order::birth) {
      number = table_.births_[event.index].process;
      address = table_.births_[event.index].address;
    } else if (event.order == Order::release) {
      number = table_.releases_[event.index].process;
      address = table_.releases_[event.index].address;
    } else {
      return;
    }
    if (table_.last_process_ == nullptr || table_.last_process_->number != number) return;
    const VersionTree* heap = table_.last_process_->layers[static_cast<size_t>(Layer::heap)].get();
    if (heap != nullptr) slot(at).reach(*heap, address);
  }

  ObjectTable& table_;
  std::array<VersionTree::Ahead, kSlots> slots_{};
};

void ObjectTable::advance(uint64_t before_ns) {
  if (!std::is_sorted(waiting_.begin(), waiting_.end(), comes_before))
    std::stable_sort(waiting_.begin(), waiting_.end(), comes_before);
  Lookahead ahead(*this);
  size_t done = 0;
  for (; done < waiting_.size() && waiting_[done].time_ns < before_ns; ++done) {
    ahead.before(done);
    replay_kept_before(waiting_[done]);
    replay_event(waiting_[done]);
    if (columns_.size() < forget_at_) continue;
    forget();
    ahead.restart();
  }
  drop_done(done);
}

// What is still to be replayed is put to the beginning of the lists.
void ObjectTable::drop_done(size_t done) {
  std::vector<Birth> births;
  std::vector<Release> releases;
  std::vector<MapCall> calls;
  std::vector<Event> left(waiting_.begin() + static_cast<ptrdiff_t>(done), waiting_.end());
  const auto take = [](auto& to, const auto& from, Event& event) {
    to.push_back(from[event.index]);
    event.index = static_cast<uint32_t>(to.size() - 1);
  };
  for (Event& event : left) {
    switch (static_cast<Order>(event.order)) {
      case Order::birth: take(births, births_, event); break;
      case Order::release: take(releases, releases_, event); break;
      default: take(calls, map_calls_, event); break;
    }
  }
  births_.swap(births);
  releases_.swap(releases);
  map_calls_.swap(calls);
  waiting_.swap(left);
}

void ObjectTable::finish() {
  advance(kForever);
  replay_kept_before({kForever, 0, 0, UINT8_MAX});
  totals_.finish();
  for (auto& [number, process] : processes_) process->tags.freeze(columns_);
}

ObjectTable::Process& ObjectTable::process_of(uint32_t number) {
  if (last_process_ != nullptr && last_process_->number == number) return *last_process_;
  std::unique_ptr<Process>& process = processes_[number];
  if (!process) {
    process = std::make_unique<Process>();
    process->number = number;
  }
  return *(last_process_ = process.get());
}

const ObjectTable::Process* ObjectTable::known_process(uint32_t number) const {
  const auto found = processes_.find(number);
  return found == processes_.end() ? nullptr : found->second.get();
}

VersionTree& ObjectTable::tree(Process& process, Layer layer) {
  std::unique_ptr<VersionTree>& tree = process.layers[static_cast<size_t>(layer)];
  if (!tree) tree = std::make_unique<VersionTree>(pool_);
  return *tree;
}

uint64_t ObjectTable::page_end(uint64_t address, uint64_t bytes) const {
  const uint64_t end = address + bytes;  // bytes was cut to fit
  const uint64_t rounded = (end + page_bytes_ - 1) & ~(page_bytes_ - 1);
  return rounded >= end ? rounded : kLatest;
}

uint32_t ObjectTable::make(Process& process, const NewObject& object, uint64_t now) {
  columns_.rows.push_back({.base = object.base,
                           .bytes = object.bytes,
                           .born_ns = now,
                           .died_ns = 0,
                           .weight_bytes = object.weight_bytes,
                           .site = kNoSite,
                           .number = static_cast<uint32_t>(++made_),
                           .thread = object.thread,
                           .death_thread = 0,
                           .kind = static_cast<uint8_t>(object.kind),
                           .operation = object.operation,
                           .alignment_shift = object.alignment_shift,
                           .flags = object.flags,
                           .protection = object.protection,
                           .process = process.number,
                           .stack = object.stack,
                           .previous = object.previous,
                           .name = object.name,
                           .map_flags = object.map_flags});
  ++made_of_kind_[static_cast<size_t>(object.kind)];
  const uint32_t id = static_cast<uint32_t>(columns_.size());
  if (object.kind == Kind::heap || object.kind == Kind::mmap)
    columns_.rows.back().site = totals_.born(id, now, (object.flags & kPiece) != 0);
  return id;
}

void ObjectTable::end_object(uint32_t id, uint64_t now, uint32_t thread, End how) {
  columns_.died_ns[id - 1] = std::max<uint64_t>(now, 1);  // 0 would say that it is alive
  columns_.death_thread[id - 1] = thread;
  if (how == End::cut) columns_.flags[id - 1] |= kCut;
  if (columns_.site[id - 1] != kNoSite) totals_.died(id, now, how == End::released, how == End::cut);
}

void ObjectTable::end_interval(Process& process, Layer layer, const Interval& interval, uint64_t now, uint32_t thread,
                               End how) {
  if (interval.inherited) {
    process.ended.try_emplace(interval.id, now);
    return;
  }
  tree(process, layer).erase(interval.base, now);
  end_object(interval.id, now, thread, how);
}

// ---- what is where ------------------------------------------------------------------------

uint32_t ObjectTable::covering(const VersionTree::Entry& entry, uint64_t address) const {
  if (entry.id == 0) return 0;
  const uint64_t length =
      entry.length != VersionTree::kLong ? entry.length : covered_bytes(columns_.bytes[entry.id - 1]);
  return address - entry.base < length ? entry.id : 0;
}

uint32_t ObjectTable::break_at(const Process& process, uint64_t address, uint64_t time) const {
  for (auto at = process.breaks.rbegin(); at != process.breaks.rend(); ++at)
    if (is_alive(columns_, *at, time))
      return address - columns_.base[*at - 1] < covered_bytes(columns_.bytes[*at - 1]) ? *at : 0;
  return 0;
}

uint32_t ObjectTable::own_at(const Process& process, Layer layer, uint64_t address, uint64_t time) const {
  if (layer == Layer::brk) return break_at(process, address, time);
  const VersionTree* tree = process.layers[static_cast<size_t>(layer)].get();
  return tree != nullptr ? covering(tree->predecessor(address, time), address) : 0;
}

// Visits (ancestor, time of the fork, is_ended(id)) from the parent upwards while the visitor returns true.
template <typename Visit>
void ObjectTable::each_ancestor(const Process& process, uint64_t time, Visit&& visit) const {
  std::vector<std::pair<const Process*, uint64_t>> chain;
  const Process* at = &process;
  while (at->parent != nullptr && time >= at->fork_ns && time < at->inherits_until_ns) {
    chain.emplace_back(at, time);
    time = at->fork_ns > 0 ? at->fork_ns - 1 : 0;  // what comes in the fork's own nanosecond comes after it
    at = at->parent;
    const auto is_ended = [&](uint32_t id) {
      for (const auto& [heir, seen_ns] : chain) {
        const auto found = heir->ended.find(id);
        if (found != heir->ended.end() && found->second <= seen_ns) return true;
      }
      return false;
    };
    if (!visit(*at, time, is_ended)) return;
  }
}

uint32_t ObjectTable::inherited_at(const Process& process, Layer layer, uint64_t address, uint64_t time) const {
  uint32_t id = 0;
  each_ancestor(process, time, [&](const Process& ancestor, uint64_t fork_ns, const auto& is_ended) {
    id = own_at(ancestor, layer, address, fork_ns);
    if (id != 0 && is_ended(id)) id = 0;
    return id == 0;
  });
  return id;
}

uint32_t ObjectTable::find_one(const Process& process, Layer layer, uint64_t address, uint64_t time) const {
  const uint32_t own = own_at(process, layer, address, time);
  return own != 0 || process.parent == nullptr ? own : inherited_at(process, layer, address, time);
}

std::vector<ObjectTable::Interval> ObjectTable::overlapping(const Process& process, Layer layer, uint64_t begin,
                                                            uint64_t end, uint64_t now) const {
  std::vector<Interval> found;
  if (end <= begin) return found;
  const auto scan = [&](const Process& owner, uint64_t time, bool inherited, const auto& is_ended) {
    const VersionTree* tree = owner.layers[static_cast<size_t>(layer)].get();
    if (tree == nullptr) return;
    VersionTree::Entry entry = tree->predecessor(begin, time);
    if (entry.id == 0 || covering(entry, begin) == 0) entry = tree->successor(begin, time);
    while (entry.id != 0 && entry.base < end) {
      if (!is_ended(entry.id))
        found.push_back({entry.base, entry.base + covered_bytes(columns_.bytes[entry.id - 1]), entry.id, inherited});
      entry = tree->successor(entry.base, time);
    }
  };
  scan(process, kLatest, false, [](uint32_t) { return false; });
  each_ancestor(process, now, [&](const Process& ancestor, uint64_t fork_ns, const auto& is_ended) {
    scan(ancestor, fork_ns, true, is_ended);
    return true;
  });
  return found;
}

uint32_t ObjectTable::cut(Process& process, Layer layer, uint64_t begin, uint64_t end, uint64_t now, uint32_t thread) {
  uint32_t first = 0;
  for (const Interval& interval : overlapping(process, layer, begin, end, now)) {
    if (first == 0) first = interval.id;
    const bool whole = interval.base >= begin && interval.end <= end;
    end_interval(process, layer, interval, now, thread, whole ? End::released : End::cut);
    if (whole) continue;
    const auto keep = [&](uint64_t base, uint64_t piece_end) {
      const size_t row = interval.id - 1;
      NewObject piece{.kind = static_cast<Kind>(columns_.kind[row]), .base = base, .bytes = piece_end - base};
      if (columns_.weight_bytes[row] != 0)
        piece.weight_bytes = static_cast<uint64_t>(static_cast<double>(columns_.weight_bytes[row] / 2) /
                                                   static_cast<double>(interval.end - interval.base) *
                                                   static_cast<double>(piece.bytes)) *
                             2;
      piece.thread = columns_.thread[row];
      piece.stack = columns_.stack[row];
      piece.previous = interval.id;
      piece.name = columns_.name[row];
      piece.map_flags = columns_.map_flags[row];
      piece.operation = columns_.operation[row];
      piece.alignment_shift = columns_.alignment_shift[row];
      piece.flags = static_cast<uint8_t>((columns_.flags[row] | kPiece) & ~kCut);
      piece.protection = columns_.protection[row];
      const uint32_t id = make(process, piece, now);
      tree(process, layer).insert(base, piece.bytes, id, now);
    };
    if (interval.base < begin) keep(interval.base, begin);
    if (interval.end > end) keep(end, interval.end);
  }
  return first;
}

// ---- events -------------------------------------------------------------------------------

void ObjectTable::replay_birth(const Birth& birth) {
  if (birth.address == 0 || birth.address >= kLatest) {
    ++counts_.failed_calls;
    return;
  }
  Process& process = process_of(birth.process);
  const uint64_t now = birth.time_ns;
  NewObject object{.kind = Kind::heap,
                   .base = birth.address,
                   .bytes = birth.bytes,
                   .weight_bytes = birth.weight_bytes,
                   .thread = birth.thread,
                   .stack = birth.stack,
                   .operation = birth.operation,
                   .alignment_shift = birth.alignment_shift,
                   .flags = static_cast<uint8_t>(birth.flags & ~(kPiece | kCut))};
  if (birth.old_address != 0) {
    const auto moved = process.moved.find(birth.old_address);
    if (moved != process.moved.end()) {
      object.previous = moved->second;
      process.moved.erase(moved);
    }
  }
  const uint32_t id = make(process, object, now);
  const uint64_t bytes = covered_bytes(object.bytes);
  VersionTree& heap = tree(process, Layer::heap);
  if (process.parent == nullptr || now >= process.inherits_until_ns) {
    if (heap.insert_if_free(object.base, bytes, id, now)) return;
  }
  for (const Interval& interval : overlapping(process, Layer::heap, object.base, object.base + bytes, now)) {
    ++counts_.lost_releases;
    end_interval(process, Layer::heap, interval, now, 0, End::replaced);
  }
  heap.insert(object.base, bytes, id, now);
}

void ObjectTable::replay_release(const Release& release) {
  if (release.address == 0) return;
  Process& process = process_of(release.process);
  VersionTree& heap = tree(process, Layer::heap);
  const auto is_forgotten = [&](uint32_t found) {
    return is_forgetting_ && !release.in_realloc && is_forgettable(found - 1, release.time_ns);
  };
  uint32_t id = heap.erase(release.address, release.time_ns, is_forgotten);
  if (id != 0) {
    end_object(id, release.time_ns, release.thread, End::released);
  } else {
    id = inherited_at(process, Layer::heap, release.address, release.time_ns);
    if (id == 0 || columns_.base[id - 1] != release.address) {
      ++counts_.unknown_releases;
      return;
    }
    process.ended.try_emplace(id, release.time_ns);
  }
  if (release.in_realloc) process.moved[release.address] = id;
}

void ObjectTable::replay_map_call(const MapCall& call) {
  const ml_allocation& record = call.record;
  Process& process = process_of(call.process);
  const uint64_t now = record.time_ns;
  if (record.address == 0 || record.address >= kLatest) {
    ++counts_.failed_calls;
    return;
  }
  if (record.operation == ML_ENUM_allocation_operation_BRK) {
    replay_break(process, record);
    return;
  }
  const uint64_t end = page_end(record.address, record.bytes);
  if (record.operation == ML_ENUM_allocation_operation_MUNMAP) {
    if (cut(process, Layer::mmap, record.address, end, now, record.thread) == 0) ++counts_.unknown_unmaps;
    return;
  }
  NewObject object{.kind = Kind::mmap,
                   .base = record.address,
                   .bytes = record.bytes,
                   .weight_bytes = record.weight_bytes,
                   .thread = record.thread,
                   .stack = record.stack,
                   .map_flags = static_cast<uint32_t>(record.map_flags),
                   .operation = static_cast<uint8_t>(record.operation),
                   .alignment_shift = record.alignment_shift,
                   .flags = static_cast<uint8_t>(record.flags & ~(kPiece | kCut)),
                   .protection = static_cast<uint8_t>(record.protection)};
  // Address space without access, or without a promise of memory: kept for later, not memory yet.
  constexpr uint64_t kNoReserve = 0x4000;
  if (record.operation == ML_ENUM_allocation_operation_MMAP &&
      (record.protection == 0 || (record.map_flags & kNoReserve) != 0))
    object.kind = Kind::reserved;
  if (record.operation == ML_ENUM_allocation_operation_MREMAP) {
    object.protection = 0;  // the record has the old length there
    const auto hit = overlapping(process, Layer::mmap, record.old_address, record.old_address + 1, now);
    if (hit.empty()) {
      ++counts_.unknown_unmaps;
    } else {
      object.previous = hit[0].id;
      object.kind = static_cast<Kind>(columns_.kind[hit[0].id - 1]);
      object.map_flags = columns_.map_flags[hit[0].id - 1];
      object.protection = columns_.protection[hit[0].id - 1];
      // Older captures do not have how much was moved: all of the object from the old address on.
      const uint64_t old_bytes = uint64_t{record.protection} << 12;
      const uint64_t old_end = old_bytes != 0 && old_bytes <= kLatest - record.old_address
                                   ? std::min(page_end(record.old_address, old_bytes), hit[0].end)
                                   : hit[0].end;
      cut(process, Layer::mmap, record.old_address, std::max(old_end, record.old_address + 1), now, record.thread);
    }
  }
  cut(process, Layer::mmap, object.base, std::max(end, object.base + 1), now, record.thread);
  const uint32_t id = make(process, object, now);
  tree(process, Layer::mmap).insert(object.base, covered_bytes(object.bytes), id, now);
}

void ObjectTable::replay_break(Process& process, const ml_allocation& record) {
  const uint64_t now = record.time_ns;
  NewObject object{.kind = Kind::brk,
                   .base = record.address,
                   .bytes = record.bytes,
                   .thread = record.thread,
                   .stack = record.stack,
                   .operation = static_cast<uint8_t>(record.operation)};
  if (!process.breaks.empty() && columns_.died_ns[process.breaks.back() - 1] == 0) {
    const uint32_t live = process.breaks.back();
    if (columns_.base[live - 1] == record.address) {
      columns_.bytes[live - 1] = std::max(columns_.bytes[live - 1], record.bytes);
      return;
    }
    end_object(live, now, record.thread, End::replaced);
    object.previous = live;
  } else if (const uint32_t inherited = inherited_at(process, Layer::brk, record.address, now)) {
    process.ended.try_emplace(inherited, now);
    object.previous = inherited;
    object.bytes = std::max(object.bytes, columns_.bytes[inherited - 1]);
  }
  process.breaks.push_back(make(process, object, now));
}

void ObjectTable::end_everything(Process& process, uint64_t now, uint32_t thread) {
  for (auto& layer : process.layers) {
    if (!layer) continue;
    for (uint32_t id : layer->clear(now)) end_object(id, now, thread, End::replaced);
  }
  for (uint32_t id : process.tags.clear()) end_object(id, now, thread, End::replaced);
  if (!process.breaks.empty() && columns_.died_ns[process.breaks.back() - 1] == 0)
    end_object(process.breaks.back(), now, thread, End::replaced);
  process.moved.clear();
  process.thread_stacks.clear();
}

void ObjectTable::replay_process_event(uint32_t number, const ml_process_event& event) {
  Process& process = process_of(number);
  if (process.main_thread == 0) process.main_thread = event.pid;
  const uint64_t now = event.time_ns;
  switch (event.operation) {
    case ML_ENUM_process_operation_FORK: {
      if (event.parent_process == 0 || process.parent != nullptr) break;
      Process& parent = process_of(event.parent_process);
      for (const Process* at = &parent; at != nullptr; at = at->parent)
        if (at == &process) return;                // damage: nobody is their own ancestor
      end_everything(process, now, event.thread);  // nothing, unless records of an older process were taken for its own
      process.parent = &parent;
      process.fork_ns = now;
      process.inherits_until_ns = kForever;
      process.space = parent.space;
      break;
    }
    case ML_ENUM_process_operation_EXEC: {
      end_everything(process, now, event.thread);
      process.inherits_until_ns = std::min(process.inherits_until_ns, now);
      process.space.clear();
      break;
    }
    case ML_ENUM_process_operation_THREAD_EXIT: {
      const auto found = process.thread_stacks.find(event.thread);
      if (found == process.thread_stacks.end()) break;
      const uint32_t id = found->second;
      process.thread_stacks.erase(found);
      if (columns_.died_ns[id - 1] != 0) break;
      tree(process, Layer::stack).erase(columns_.base[id - 1], now);
      end_object(id, now, event.thread, End::released);
      break;
    }
    default: break;
  }
}

// Approximate: munmap and mremap leave no mapping record, so a file mapping lives until something else is mapped there.
void ObjectTable::replay_mapping(uint32_t number, const ml_mapping& record) {
  Process& process = process_of(number);
  if (record.bytes == 0) return;
  const uint64_t end = record.address + record.bytes;
  const uint64_t now = record.time_ns;
  if (record.operation == ML_ENUM_mapping_operation_UNMAP) {
    process.space.unmap(record.address, end);
    cut(process, Layer::file, record.address, end, now, record.thread);
    return;
  }
  process.space.map(record);
  const bool is_file = is_file_path(record.path);
  if (is_file) {
    // A part of the same file reported again: its protection changed.
    const uint32_t known = find_one(process, Layer::file, record.address, now);
    if (known != 0 && columns_.name[known - 1] == record.path && columns_.process[known - 1] == number &&
        columns_.base[known - 1] + columns_.bytes[known - 1] >= end && columns_.bytes[known - 1] > record.bytes &&
        columns_.protection[known - 1] != record.protection)
      return;
  }
  cut(process, Layer::file, record.address, end, now, record.thread);
  NewObject object{.kind = Kind::file,
                   .base = record.address,
                   .bytes = record.bytes,
                   .thread = record.thread,
                   .name = record.path,
                   .map_flags = record.map_flags,
                   .protection = record.protection};
  if (!is_file) {  // memory right behind a file's writable data is its zeroed part (.bss)
    const uint32_t before = record.address != 0 ? own_at(process, Layer::file, record.address - 1, kLatest) : 0;
    if (before == 0 || record.inode != 0 || record.path == heap_path_ || (columns_.protection[before - 1] & 2) == 0 ||
        (record.protection & 2) == 0)
      return;
    object.name = columns_.name[before - 1];
  }
  tree(process, Layer::file).insert(record.address, record.bytes, make(process, object, now), now);
}

void ObjectTable::replay_tag(uint32_t number, const ml_tag_event& record) {
  Process& process = process_of(number);
  const uint64_t now = record.time_ns;
  if (record.address >= kLatest) return;
  if (record.operation == ML_ENUM_tag_operation_OWN) {
    const uint64_t bytes = covered_bytes(record.bytes);
    for (const Interval& interval : overlapping(process, Layer::memlens, record.address, record.address + bytes, now))
      end_interval(process, Layer::memlens, interval, now, record.thread, End::replaced);
    const uint32_t id = make(process,
                             {.kind = Kind::memlens,
                              .base = record.address,
                              .bytes = record.bytes,
                              .thread = record.thread,
                              .name = record.name},
                             now);
    tree(process, Layer::memlens).insert(record.address, bytes, id, now);
    return;
  }
  // Live tags that begin here, as the process sees them, oldest first; inherited ones before its own.
  std::vector<std::pair<uint32_t, bool>> here;
  each_ancestor(process, now, [&](const Process& ancestor, uint64_t fork_ns, const auto& is_ended) {
    if (const auto* ids = ancestor.tags.all_at(record.address))
      for (uint32_t id : *ids)
        if (is_alive(columns_, id, fork_ns) && !is_ended(id)) here.emplace_back(id, true);
    return true;
  });
  std::sort(here.begin(), here.end());
  if (const auto* ids = process.tags.live_at(record.address))
    for (uint32_t id : *ids) here.emplace_back(id, false);

  if (record.operation == ML_ENUM_tag_operation_TAG) {
    for (const auto& [id, inherited] : here)
      if (columns_.bytes[id - 1] == record.bytes && columns_.name[id - 1] == record.name) return;
    process.tags.add(make(process,
                          {.kind = Kind::tag,
                           .base = record.address,
                           .bytes = record.bytes,
                           .thread = record.thread,
                           .name = record.name},
                          now),
                     columns_);
  } else if (record.operation == ML_ENUM_tag_operation_UNTAG) {
    if (here.empty()) {
      const uint32_t id = tree(process, Layer::memlens).erase(record.address, now);
      if (id != 0) end_object(id, now, record.thread, End::released);
      return;
    }
    auto chosen = here.back();
    if (record.bytes != 0)
      for (const auto& entry : here)
        if (columns_.bytes[entry.first - 1] == record.bytes) chosen = entry;
    if (chosen.second) {
      process.ended.try_emplace(chosen.first, now);
    } else {
      process.tags.end(chosen.first, columns_);
      end_object(chosen.first, now, record.thread, End::released);
    }
  }
}

void ObjectTable::replay_thread(uint32_t number, const ml_thread_memory& record) {
  Process& process = process_of(number);
  const uint64_t now = record.time_ns;
  const bool is_main = process.main_thread != 0 && record.thread == process.main_thread;
  // The main thread's thread pointer lies in a block of the loader's, not in its stack.
  const replay::Area* area = process.space.find(is_main ? record.stack_address : record.thread_pointer);
  if (is_main && record.stack_address == 0) return;
  if (area == nullptr && !is_main) return;
  uint64_t begin = 0, bytes = 0;
  if (area != nullptr) {
    begin = area->begin;
    bytes = area->end - area->begin;
  } else {
    // An emulator reports mappings of files only: from the usual limit of a stack (or what lies below it) to what lies above.
    constexpr uint64_t kStackBytes = 8 << 20, kAbove = 1 << 20;
    const uint64_t here = record.stack_address & ~(page_bytes_ - 1);
    begin = here > kStackBytes ? here - kStackBytes : 0;
    uint64_t end = std::min(here, kLatest - kAbove) + (128 << 10);
    for (const replay::Area& other : process.space.areas()) {
      if (other.end <= here) begin = std::max(begin, other.end);
      else if (other.begin > here && other.begin - here <= kAbove)
        end = std::min(std::max(end, other.begin), other.begin);
      if (other.begin > here) break;
    }
    bytes = end - begin;
  }
  const uint32_t known = own_at(process, Layer::stack, begin, kLatest);
  if (known != 0 && columns_.base[known - 1] == begin && columns_.bytes[known - 1] == bytes &&
      (columns_.thread[known - 1] == record.thread || columns_.thread[known - 1] == 0 || record.thread == 0)) {
    if (record.thread != 0) {
      columns_.thread[known - 1] = record.thread;  // its creator may have told of it first
      process.thread_stacks[record.thread] = known;
    }
    return;
  }
  const auto before = process.thread_stacks.find(record.thread);
  if (record.thread != 0 && before != process.thread_stacks.end() && columns_.died_ns[before->second - 1] == 0) {
    tree(process, Layer::stack).erase(columns_.base[before->second - 1], now);
    end_object(before->second, now, record.thread, End::replaced);
  }
  for (const Interval& interval : overlapping(process, Layer::stack, begin, begin + bytes, now))
    end_interval(process, Layer::stack, interval, now, record.thread, End::replaced);
  const uint32_t id = make(process,
                           {.kind = Kind::stack,
                            .base = begin,
                            .bytes = bytes,
                            .thread = record.thread,
                            .protection = static_cast<uint8_t>(area != nullptr ? area->protection : 3)},
                           now);
  tree(process, Layer::stack).insert(begin, bytes, id, now);
  if (record.thread != 0) process.thread_stacks[record.thread] = id;
}

void ObjectTable::replay_variable(const Variable& variable) {
  Process& process = process_of(variable.process);
  const uint64_t bytes = covered_bytes(variable.bytes);
  if (variable.base + bytes < variable.base) return;
  // Names for one place (aliases, a block and its members): the first one stays.
  if (!overlapping(process, Layer::variable, variable.base, variable.base + bytes, variable.time_ns).empty()) return;
  const uint32_t id = make(process,
                           {.kind = variable.is_thread_local ? Kind::thread_local_variable : Kind::variable,
                            .base = variable.base,
                            .bytes = variable.bytes,
                            .thread = variable.thread,
                            .name = variable.name},
                           variable.time_ns);
  tree(process, Layer::variable).insert(variable.base, bytes, id, variable.time_ns);
}

// ---- answers ------------------------------------------------------------------------------

void ObjectTable::find(const Queries& queries, size_t layer, std::span<uint32_t> ids, unsigned threads) const {
  const auto find_part = [&](size_t first, size_t last) {
    const size_t first_layer = layer < kLayers ? layer : 0, last_layer = layer < kLayers ? layer + 1 : kLayers;
    constexpr size_t kBatch = 512;
    const Process* processes[kBatch];
    VersionTree::Probe probes[kBatch];
    size_t asked[kBatch];
    const Process* process = nullptr;
    uint32_t number = 0;
    for (size_t begin = first; begin < last; begin += kBatch) {
      const size_t count = std::min(last - begin, kBatch);
      for (size_t i = 0; i < count; ++i) {
        const uint32_t wanted = queries.process(begin + i);
        if (process == nullptr || wanted != number) {
          process = known_process(wanted);
          number = wanted;
        }
        processes[i] = process;
        ids[begin + i] = 0;
      }
      for (size_t current = first_layer; current < last_layer; ++current) {
        size_t waiting = 0;
        for (size_t i = 0; i < count; ++i) {
          if (ids[begin + i] != 0 || processes[i] == nullptr) continue;
          const VersionTree* tree = processes[i]->layers[current].get();
          if (tree == nullptr) continue;
          probes[waiting].tree = tree;
          probes[waiting].key = queries.addresses[begin + i];
          probes[waiting].time = std::min(queries.times[begin + i], kLatest);
          asked[waiting++] = i;
        }
        VersionTree::predecessors({probes, waiting});
        for (size_t i = 0; i < waiting; ++i) ids[begin + asked[i]] = covering(probes[i].found, probes[i].key);
        const Layer here = static_cast<Layer>(current);
        for (size_t i = 0; i < count; ++i) {
          if (ids[begin + i] != 0 || processes[i] == nullptr) continue;
          const uint64_t address = queries.addresses[begin + i], time = std::min(queries.times[begin + i], kLatest);
          if (here == Layer::brk) ids[begin + i] = break_at(*processes[i], address, time);
          if (ids[begin + i] == 0 && processes[i]->parent != nullptr)
            ids[begin + i] = inherited_at(*processes[i], here, address, time);
        }
      }
    }
  };
  constexpr size_t kWorthAThread = 1 << 16;
  const size_t count = queries.addresses.size();
  threads = count < 2 * kWorthAThread ? 1 : std::max(1u, threads);
  std::vector<std::thread> helpers;
  const size_t share = count / threads;
  for (unsigned i = 1; i < threads; ++i)
    helpers.emplace_back(find_part, i * share, i + 1 == threads ? count : (i + 1) * share);
  find_part(0, threads == 1 ? count : share);
  for (std::thread& helper : helpers) helper.join();
}

void ObjectTable::find_tags(const Queries& queries, std::span<uint32_t> ids) const {
  const Process* process = nullptr;
  for (size_t i = 0; i < queries.addresses.size(); ++i) {
    const uint32_t number = queries.process(i);
    if (process == nullptr || process->number != number) process = known_process(number);
    ids[i] = 0;
    if (process == nullptr) continue;
    const uint64_t address = queries.addresses[i], time = std::min(queries.times[i], kLatest);
    const auto better = [&](uint32_t id) {
      const uint32_t best = ids[i];
      if (best == 0 || columns_.bytes[id - 1] < columns_.bytes[best - 1] ||
          (columns_.bytes[id - 1] == columns_.bytes[best - 1] && id > best))
        ids[i] = id;
    };
    process->tags.each_containing(address, columns_, [&](uint32_t id) {
      if (is_alive(columns_, id, time)) better(id);
    });
    if (process->parent == nullptr) continue;
    each_ancestor(*process, time, [&](const Process& ancestor, uint64_t fork_ns, const auto& is_ended) {
      ancestor.tags.each_containing(address, columns_, [&](uint32_t id) {
        if (is_alive(columns_, id, fork_ns) && !is_ended(id)) better(id);
      });
      return true;
    });
  }
}

}  // namespace memlens::objects
