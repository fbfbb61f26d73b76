#include "replay.h"

#include <algorithm>
#include <cstring>

#include "record_walk.h"

namespace memlens::replay {
namespace {

// Events of one moment, in this order.
enum Order : uint8_t { process_event, mapping, fault, look, confirmed_look, stack_use, code_use, map_call };

uint64_t later(uint64_t time_ns, uint64_t by_ns) { return time_ns > UINT64_MAX - by_ns ? UINT64_MAX : time_ns + by_ns; }

bool comes_before(const ClassifiedFault& a, const ClassifiedFault& b) {
  return a.record.time_ns != b.record.time_ns ? a.record.time_ns < b.record.time_ns : a.arrival < b.arrival;
}

}  // namespace

void Replay::add_residency(uint32_t process, std::span<const unsigned char> payload) {
  each_record<ml_residency>(payload, [&](const auto& record) { looks_.emplace_back(process, record); });
}

bool Replay::note_allocations(uint32_t process, std::span<const unsigned char> payload) {
  bool has_calls = false;
  each_record<ml_allocation>(payload, [&](const ml_allocation& record) {
    if (record.stack != 0) resolver_.add_stack_use(process, record.stack, record.time_ns);
    has_calls |= spaces_.note_call(record);
  });
  return has_calls;
}

void Replay::add_calls(uint32_t process, std::span<const unsigned char> payload) {
  each_record<ml_allocation>(payload, [&](const ml_allocation& record) { spaces_.add_call(process, record); });
}

void Replay::add_faults(uint32_t process, std::span<const unsigned char> payload, uint32_t arrival) {
  uint64_t place = uint64_t{arrival} << 32;
  each_record<ml_fault>(payload, [&](const ml_fault& record) {
    ClassifiedFault fault;
    fault.record = record;
    fault.process = process;
    fault.arrival = place++;
    waiting_.push_back(fault);
  });
}

void Replay::add_sampled_faults(uint32_t process, std::span<const unsigned char> payload, uint32_t arrival) {
  static_assert(sizeof(ml_sampled_fault) == sizeof(ml_fault));
  uint64_t place = uint64_t{arrival} << 32;
  each_record<ml_sampled_fault>(payload, [&](const ml_sampled_fault& record) {
    ClassifiedFault fault;
    fault.process = process;
    fault.arrival = place++;
    fault.period = record.period;
    memcpy(&fault.record, &record, sizeof record);
    fault.record.reserved = 0;
    waiting_.push_back(fault);
  });
}

void Replay::begin() {
  spaces_.begin();
  classifier_.begin();
  nodes_.sort();
  const auto& processes = spaces_.process_events();
  const auto& uses = resolver_.stack_uses();
  events_.reserve(processes.size() + spaces_.mappings().size() + 2 * looks_.size() + spaces_.calls().size() +
                  uses.size() + resolver_.code_index().uses().size());
  const auto collect = [&](const auto& list, uint8_t order, auto time_of, auto process_of) {
    for (size_t i = 0; i < list.size(); ++i)
      events_.push_back({time_of(list[i]), process_of(list[i]), static_cast<uint32_t>(i), order});
  };
  const auto by_pair = [](const auto& entry) { return entry.first; };
  const auto pair_time = [](const auto& entry) { return entry.second.time_ns; };
  const auto time = [](const auto& entry) { return entry.time_ns; };
  const auto number = [](const auto& entry) { return entry.process; };
  collect(processes, Order::process_event, pair_time, by_pair);
  collect(spaces_.mappings(), Order::mapping, pair_time, by_pair);
  collect(spaces_.calls(), Order::map_call, time, number);
  collect(uses, Order::stack_use, time, number);
  collect(resolver_.code_index().uses(), Order::code_use, time, number);
  collect(looks_, Order::look, [](const auto& e) { return e.second.end_ns; }, by_pair);
  collect(
      looks_, Order::confirmed_look,
      [](const auto& e) { return later(e.second.end_ns, FaultClassifier::kLookSlackNs); }, by_pair);
  std::stable_sort(events_.begin(), events_.end(), [](const Event& a, const Event& b) {
    return a.time_ns != b.time_ns ? a.time_ns < b.time_ns : a.order < b.order;
  });
  pending_of_look_.resize(looks_.size());
}

void Replay::replay_event(const Event& event) {
  switch (event.order) {
    case Order::process_event: {
      const ml_process_event& record = spaces_.process_events()[event.index].second;
      if (record.operation == ML_ENUM_process_operation_EXEC) resolver_.give_up_on_uses(event.process);
      spaces_.replay(event.process, record);
      break;
    }
    case Order::mapping: {
      const ml_mapping& record = spaces_.mappings()[event.index].second;
      spaces_.replay(event.process, record);
      if ((record.protection & 4) != 0) resolver_.retry_uses(event.process);
      break;
    }
    case Order::look:
      pending_of_look_[event.index] = classifier_.look(event.process, looks_[event.index].second);
      break;
    case Order::confirmed_look: classifier_.confirm(pending_of_look_[event.index]); break;
    case Order::code_use:
      if (!is_code_known_) resolver_.resolve_use(resolver_.code_index().uses()[event.index]);
      break;
    case Order::map_call: spaces_.replay(spaces_.calls()[event.index]); break;
    default:
      resolver_.resolve_stack(event.process, resolver_.stack_uses()[event.index].stack, event.time_ns, false);
      break;
  }
}

void Replay::replay_events_before(uint64_t time_ns, uint8_t order) {
  for (; next_event_ < events_.size(); ++next_event_) {
    const Event& event = events_[next_event_];
    if (event.time_ns > time_ns || (event.time_ns == time_ns && event.order >= order)) return;
    replay_event(event);
  }
}

// Chunks are nearly in order, each a long ascending run: runs are merged.
void Replay::sort_waiting() {
  runs_.assign(1, 0);
  for (size_t i = 1; i < waiting_.size(); ++i)
    if (comes_before(waiting_[i], waiting_[i - 1])) runs_.push_back(i);
  if (runs_.size() > waiting_.size() / 16 + 8) {
    std::stable_sort(waiting_.begin(), waiting_.end(), comes_before);
    return;
  }
  const auto at = [&](size_t run) {
    return waiting_.begin() + static_cast<ptrdiff_t>(run < runs_.size() ? runs_[run] : waiting_.size());
  };
  for (size_t width = 1; width < runs_.size(); width *= 2)
    for (size_t run = 0; run + width < runs_.size(); run += 2 * width)
      std::inplace_merge(at(run), at(run + width), at(run + 2 * width), comes_before);
}

void Replay::walk(size_t count) {
  for (size_t i = 0; i < count; ++i) {
    ClassifiedFault& next = waiting_[i];
    replay_events_before(next.record.time_ns, Order::fault);
    classifier_.classify(next);
    next.node = nodes_.find(next.process, next.record.time_ns, next.record.address >> page_shift_);
    if (next.area == AreaKind::memlens) own_faults_ += static_cast<double>(next.weight);
    else if (is_grouping_) groups_.add(next);
    else classified_.push_back(next);
  }
  waiting_.erase(waiting_.begin(), waiting_.begin() + static_cast<ptrdiff_t>(count));
}

void Replay::advance(uint64_t before_ns) {
  sort_waiting();
  const auto later = std::partition_point(
      waiting_.begin(), waiting_.end(), [&](const ClassifiedFault& fault) { return fault.record.time_ns < before_ns; });
  walk(static_cast<size_t>(later - waiting_.begin()));
}

void Replay::restart() {
  spaces_.restart();
  classifier_.restart();
  waiting_.clear();
  classified_.clear();
  next_event_ = 0;
  is_grouping_ = false;
  own_faults_ = 0;
}

void Replay::finish() {
  sort_waiting();
  walk(waiting_.size());
  replay_events_before(UINT64_MAX, UINT8_MAX);
  if (!is_code_known_) resolver_.finish();
  is_code_known_ = true;
  classifier_.finish();
  groups_.finish();
}

}  // namespace memlens::replay
