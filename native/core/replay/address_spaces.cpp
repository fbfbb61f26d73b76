#include "address_spaces.h"

#include <algorithm>

#include "record_walk.h"

namespace memlens::replay {
namespace {

// Smaller objects are never mappings of their own in glibc, nor always recorded.
constexpr uint64_t kMovableBytes = 64 << 10;
constexpr unsigned kMremapDontUnmap = 4;  // MREMAP_DONTUNMAP: the old range stays mapped, without its pages

bool may_change_mappings(const ml_allocation& record) {
  switch (record.operation) {
    case ML_ENUM_allocation_operation_MALLOC:
    case ML_ENUM_allocation_operation_CALLOC:
    case ML_ENUM_allocation_operation_ALIGNED:
    case ML_ENUM_allocation_operation_NEW:
    case ML_ENUM_allocation_operation_REALLOC: return record.bytes >= kMovableBytes;
    case ML_ENUM_allocation_operation_MUNMAP:
    case ML_ENUM_allocation_operation_MREMAP: return true;
    default: return false;
  }
}

AreaKind kind_of_path(const std::string& name) {
  const auto starts = [&](const char* prefix) { return name.rfind(prefix, 0) == 0; };
  if (starts("/memfd:memlens") || name.ends_with("libmemlens.so")) return AreaKind::memlens;
  if (name == "[heap]") return AreaKind::heap;
  if (starts("[stack")) return AreaKind::stack;
  if (starts("/dev/zero") || starts("/memfd:") || starts("/dev/shm/") || starts("/SYSV") || starts("/anon_hugepage"))
    return AreaKind::shared_memory;
  if (starts("[anon")) return AreaKind::anonymous;
  if (starts("[")) return AreaKind::special;
  if (name.empty() || starts("//anon")) return AreaKind::anonymous;
  return AreaKind::file;
}

}  // namespace

// ---- input -------------------------------------------------------------------------------

void AddressSpaces::add_strings(std::span<const unsigned char> payload) {
  each_variable_record<ml_string>(payload, [&](const ml_string& record, std::span<const unsigned char> tail) {
    strings_[record.id] = std::string(tail.begin(), tail.end());
  });
}

void AddressSpaces::add_process_events(uint32_t process, std::span<const unsigned char> payload) {
  each_record<ml_process_event>(payload, [&](const auto& record) { process_events_.emplace_back(process, record); });
}

void AddressSpaces::add_mappings(uint32_t process, std::span<const unsigned char> payload) {
  each_record<ml_mapping>(payload, [&](const auto& record) { mappings_.emplace_back(process, record); });
}

bool AddressSpaces::note_call(const ml_allocation& record) {
  if (!may_change_mappings(record)) return false;
  if (record.operation == ML_ENUM_allocation_operation_REALLOC && record.old_address != 0)
    resized_.insert(record.old_address);
  return true;
}

void AddressSpaces::add_call(uint32_t process, const ml_allocation& record) {
  if (!may_change_mappings(record) || record.address == 0 || record.address + record.bytes < record.address) return;
  const bool is_remap = record.operation == ML_ENUM_allocation_operation_MREMAP;
  const bool is_of_kernel = is_remap || record.operation == ML_ENUM_allocation_operation_MUNMAP;
  const bool resizes = record.operation == ML_ENUM_allocation_operation_REALLOC && record.old_address != 0;
  if (!is_of_kernel && !resizes && resized_.count(record.address) == 0) return;
  calls_.push_back({process, record.time_ns, record.address, record.bytes, record.old_address,
                    is_remap ? uint64_t{record.protection} << 12 : 0, record.operation,
                    static_cast<uint16_t>(record.map_flags)});
}

void AddressSpaces::add_tags(uint32_t process, std::span<const unsigned char> payload) {
  each_record<ml_tag_event>(payload, [&](const auto& record) {
    if (record.operation == ML_ENUM_tag_operation_OWN)
      own_[process].push_back({.begin = record.address & ~uint64_t{0xfff},  // whole pages: they hold nothing else
                               .end = (record.address + record.bytes + 0xfff) & ~uint64_t{0xfff},
                               .time_ns = record.time_ns});
  });
}

// Our library writes where its memory is some moments after the program's start, and the addresses
// mean that until the next exec.
void AddressSpaces::begin() {
  for (const auto& [number, event] : process_events_) {
    if (event.operation != ML_ENUM_process_operation_EXEC) continue;
    const auto found = own_.find(number);
    if (found == own_.end()) continue;
    for (OwnRange& range : found->second) {
      if (event.time_ns <= range.time_ns) range.valid_from = std::max(range.valid_from, event.time_ns);
      else range.valid_until = std::min(range.valid_until, event.time_ns);
    }
  }
}

// ---- answers -----------------------------------------------------------------------------

bool AddressSpaces::is_own(uint32_t number, uint64_t address, uint64_t time_ns) const {
  if (own_.empty()) return false;
  for (int generations = 0; number != 0 && generations < 64; generations++) {
    const auto found = own_.find(number);
    if (found != own_.end())
      for (const OwnRange& range : found->second)
        if (address >= range.begin && address < range.end && time_ns >= range.valid_from && time_ns < range.valid_until)
          return true;
    const auto process = processes_.find(number);
    if (process == processes_.end() || process->second.fork_parent == 0) return false;
    time_ns = process->second.fork_ns;
    number = process->second.fork_parent;
  }
  return false;
}

AreaKind AddressSpaces::kind_of(const Area* area) const {
  if (area == nullptr) return AreaKind::unknown;
  auto known = path_kinds_.find(area->path);
  if (known == path_kinds_.end()) {
    const auto found = strings_.find(area->path);
    known =
        path_kinds_.emplace(area->path, kind_of_path(found == strings_.end() ? std::string() : found->second)).first;
  }
  const AreaKind kind = known->second;
  if (kind == AreaKind::shared_memory && !area->shared) return AreaKind::anonymous;  // MAP_PRIVATE of /dev/zero
  if (kind == AreaKind::anonymous && area->shared) return AreaKind::shared_memory;
  return kind;
}

// ---- replay ------------------------------------------------------------------------------

void AddressSpaces::fork(uint32_t number, const ml_process_event& event) {
  if (event.parent_process == 0) return;
  const Process& parent = processes_[event.parent_process];
  if (watcher_ != nullptr) watcher_->forked(event.parent_process, number);
  Process child;
  child.space = parent.space;
  child.fork_parent = event.parent_process;
  child.fork_ns = event.time_ns;
  child.attached = parent.attached;
  child.object_bytes = parent.object_bytes;
  processes_[number] = std::move(child);
}

void AddressSpaces::replay(uint32_t number, const ml_process_event& event) {
  ++changes_;
  switch (event.operation) {
    case ML_ENUM_process_operation_FORK: fork(number, event); break;
    case ML_ENUM_process_operation_EXEC: {
      if (watcher_ != nullptr) watcher_->executed(number);
      Process& process = processes_[number];
      process.space.clear();
      process.exec_ns = event.time_ns;
      process.fork_parent = 0;
      process.attached = false;
      process.object_bytes.clear();
      break;
    }
    case ML_ENUM_process_operation_ATTACH: processes_[number].attached = true; break;
    // At an exit the leader may end before its threads: mappings and pages are kept to the replay's end.
    default: break;
  }
}

void AddressSpaces::replay(uint32_t number, const ml_mapping& record) {
  ++changes_;
  AddressSpace& space = processes_[number].space;
  if (record.operation == ML_ENUM_mapping_operation_UNMAP) space.unmap(record.address, record.address + record.bytes);
  else space.map(record);
}

void AddressSpaces::move_pages(uint32_t number, Process& process, uint64_t old_begin, uint64_t old_end, uint64_t begin,
                               uint64_t end, uint64_t now) {
  if (watcher_ != nullptr) watcher_->moving(number, old_begin, old_end, begin, end);
  process.space.move(old_begin, old_end, begin, end, now);
}

void AddressSpaces::replay(const MapCall& call) {
  ++changes_;
  Process& process = processes_[call.process];
  switch (call.operation) {
    case ML_ENUM_allocation_operation_MUNMAP: {
      const uint64_t begin = page_down(call.address), end = page_up(call.address + call.bytes);
      process.space.unmap(begin, end);
      forget(call.process, begin, end);
      return;
    }
    case ML_ENUM_allocation_operation_MREMAP: replay_remap(call.process, process, call); return;
    case ML_ENUM_allocation_operation_REALLOC:
      if (call.old_address != 0) replay_realloc(call.process, process, call);
      break;
    default: break;
  }
  process.object_bytes[call.address] = call.bytes;
}

void AddressSpaces::replay_remap(uint32_t number, Process& process, const MapCall& call) {
  const uint64_t begin = page_down(call.address), end = page_up(call.address + call.bytes);
  const uint64_t old_begin = page_down(call.old_address);
  const Area* area = process.space.find(call.old_address);
  // Older captures do not have how much was moved: all of the area from the old address on.
  const uint64_t old_end = call.old_bytes != 0 ? page_up(call.old_address + call.old_bytes)
                           : area != nullptr   ? area->end
                                               : old_begin + (end - begin);
  if (old_begin == begin) {  // resized in place
    if (end < old_end) {
      process.space.unmap(end, old_end);
      forget(number, end, old_end);
    } else if (end > old_end) {
      forget(number, old_end, end);
      process.space.extend(old_begin, end);
    }
    return;
  }
  const Area left = area != nullptr ? *area : Area{.begin = old_begin, .protection = 3};
  move_pages(number, process, old_begin, old_end, begin, end, call.time_ns);
  if ((call.flags & kMremapDontUnmap) != 0) process.space.restore(left, old_begin, old_end);
}

void AddressSpaces::replay_realloc(uint32_t number, Process& process, const MapCall& call) {
  const auto old = process.object_bytes.find(call.old_address);
  if (old == process.object_bytes.end()) return;
  const uint64_t begin = page_down(call.address), end = page_up(call.address + call.bytes);
  const uint64_t old_begin = page_down(call.old_address), old_end = page_up(call.old_address + old->second);
  // glibc and musl move an object that is a mapping of its own with mremap. Its address keeps its place in the
  // page, which is not the page's first byte: page-aligned allocators copy. Objects of the brk area are copied too.
  const Area* area = process.space.find(call.old_address);
  const Area* target = process.space.find(call.address);
  const uint64_t place = call.address - begin;
  const bool same_place = call.old_address - old_begin == place && place != 0;
  const bool in_heap =
      (area != nullptr && kind_of(area) == AreaKind::heap) || (target != nullptr && kind_of(target) == AreaKind::heap);
  if (same_place && !in_heap) {
    if (begin != old_begin) {
      move_pages(number, process, old_begin, old_end, begin, end, call.time_ns);
    } else if (end > old_end && area != nullptr && area->end == old_end) {  // grown in place
      forget(number, old_end, end);
      process.space.extend(old_begin, end);
    }
  }
  process.object_bytes.erase(old);
}

}  // namespace memlens::replay
