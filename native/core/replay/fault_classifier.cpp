#include "fault_classifier.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "record_walk.h"

namespace memlens::replay {
namespace {

constexpr uint64_t kLookSlackNs = 5'000'000;
// Smaller objects are never mappings of their own in glibc, nor always recorded.
constexpr uint64_t kMovableBytes = 64 << 10;
constexpr unsigned kMremapDontUnmap = 4;  // MREMAP_DONTUNMAP: the old range stays mapped, without its pages

bool starts_with(const std::string& text, const char* prefix) { return text.rfind(prefix, 0) == 0; }

uint64_t shared_file(const Area& area) {
  const uint64_t key = area.device * 0x9E3779B97F4A7C15u;
  return (key ^ area.inode) * 0xC2B2AE3D27D4EB4Fu;
}

uint64_t shared_page(const Area& area, uint64_t address, unsigned page_shift) {
  return (area.file_offset + (address - area.begin)) >> page_shift;
}

// The largest page that a fault can map here (x86, Arm, RISC-V: 1 GiB); a larger one is damage.
constexpr unsigned kMaxPageShift = 30;
// What looks may claim as resident in one capture: 256 GiB of small pages. More costs time, not memory.
constexpr uint64_t kMaxLookPages = uint64_t{1} << 26;
constexpr uint64_t kMaxSpanPages = uint64_t{1} << 30;  // of faults with pages above 2 MiB: 4 TiB

uint64_t later(uint64_t time_ns, uint64_t by_ns) { return time_ns > UINT64_MAX - by_ns ? UINT64_MAX : time_ns + by_ns; }

}  // namespace

void FaultClassifier::add_strings(std::span<const unsigned char> payload) {
  each_variable_record<ml_string>(payload, [&](const ml_string& record, std::span<const unsigned char> tail) {
    strings_[record.id] = std::string(tail.begin(), tail.end());
  });
}

void FaultClassifier::add_stacks(std::span<const unsigned char> payload) {
  each_variable_record<ml_stack>(payload, [&](const ml_stack& record, std::span<const unsigned char> tail) {
    std::vector<uint64_t> ips(tail.size() / 8);
    if (!ips.empty()) memcpy(ips.data(), tail.data(), ips.size() * 8);
    raw_stacks_[record.id] = std::move(ips);
  });
}

void FaultClassifier::add_process_events(uint32_t process, std::span<const unsigned char> payload) {
  each_record<ml_process_event>(payload, [&](const auto& record) { process_events_.emplace_back(process, record); });
}

void FaultClassifier::add_mappings(uint32_t process, std::span<const unsigned char> payload) {
  each_record<ml_mapping>(payload, [&](const auto& record) { mappings_.emplace_back(process, record); });
}

void FaultClassifier::add_faults(uint32_t process, std::span<const unsigned char> payload) {
  each_record<ml_fault>(payload, [&](const auto& record) {
    ClassifiedFault fault;
    fault.record = record;
    fault.process = process;
    faults_.push_back(fault);
  });
}

void FaultClassifier::add_sampled_faults(uint32_t process, std::span<const unsigned char> payload) {
  static_assert(sizeof(ml_sampled_fault) == sizeof(ml_fault));
  each_record<ml_sampled_fault>(payload, [&](const ml_sampled_fault& record) {
    ClassifiedFault fault;
    memcpy(&fault.record, &record, sizeof record);
    fault.record.reserved = 0;
    fault.process = process;
    fault.period = record.period;
    faults_.push_back(fault);
  });
}

void FaultClassifier::add_fault_levels(std::span<const unsigned char> payload) {
  each_record<ml_fault_level>(payload, [&](const ml_fault_level& record) {
    if (record.level != ML_ENUM_fault_level_kind_SAMPLED || record.end_ns <= record.begin_ns) return;
    const double ratio = record.recorded > 0 ? static_cast<double>(record.counted) / static_cast<double>(record.recorded) : 0;
    // A thread's first record comes after a whole period, so there are rather too few records than too many.
    const bool plausible = ratio >= 1 && ratio <= 16.0 * std::max<unsigned>(record.period, 1);
    sampled_.push_back({record.begin_ns, record.end_ns, plausible ? ratio : 0});
  });
}

// What each sampled fault stands for. The recording's last stretch has no record if the recorder was killed.
void FaultClassifier::weigh_faults() {
  std::sort(sampled_.begin(), sampled_.end(), [](const auto& a, const auto& b) { return a.begin_ns < b.begin_ns; });
  const auto stretch_of = [&](uint64_t time_ns) -> const SampledStretch* {
    const auto after = std::upper_bound(sampled_.begin(), sampled_.end(), time_ns,
                                        [](uint64_t t, const SampledStretch& s) { return t < s.begin_ns; });
    return after != sampled_.begin() && time_ns < std::prev(after)->end_ns ? &*std::prev(after) : nullptr;
  };
  constexpr uint64_t kSlackNs = 20'000'000;  // events of a level are enabled shortly before its record begins
  uint64_t open_ns = UINT64_MAX;
  for (ClassifiedFault& fault : faults_) {
    if (fault.period == 1) continue;
    fault.weight = fault.period;
    if (fault.period == 0) continue;
    const SampledStretch* stretch = stretch_of(fault.record.time_ns);
    if (stretch == nullptr) stretch = stretch_of(later(fault.record.time_ns, kSlackNs));
    if (stretch == nullptr) open_ns = std::min(open_ns, fault.record.time_ns);
    else if (stretch->weight > 0) fault.weight = static_cast<float>(stretch->weight);
  }
  if (open_ns != UINT64_MAX) sampled_.push_back({open_ns, UINT64_MAX, 0});
}

bool FaultClassifier::overlaps_sampled(uint64_t begin_ns, uint64_t end_ns) const {
  return std::any_of(sampled_.begin(), sampled_.end(),
                     [&](const SampledStretch& s) { return s.begin_ns < end_ns && begin_ns < s.end_ns; });
}

void FaultClassifier::add_residency(uint32_t process, std::span<const unsigned char> payload) {
  each_record<ml_residency>(payload, [&](const auto& record) { looks_.emplace_back(process, record); });
}

void FaultClassifier::add_stack_use(uint32_t process, uint32_t stack, uint64_t time_ns) {
  if (stack == 0) return;
  const auto [at, is_new] = stack_uses_.try_emplace(stack, StackUse{stack, process, time_ns});
  if (!is_new && time_ns < at->second.time_ns) at->second.time_ns = time_ns;
}

void FaultClassifier::add_allocations(uint32_t process, std::span<const unsigned char> payload) {
  each_record<ml_allocation>(payload, [&](const ml_allocation& record) {
    add_stack_use(process, record.stack, record.time_ns);
    switch (record.operation) {
      case ML_ENUM_allocation_operation_MALLOC:
      case ML_ENUM_allocation_operation_CALLOC:
      case ML_ENUM_allocation_operation_ALIGNED:
      case ML_ENUM_allocation_operation_NEW:
      case ML_ENUM_allocation_operation_REALLOC:
        if (record.bytes < kMovableBytes) return;
        break;
      case ML_ENUM_allocation_operation_MUNMAP:
      case ML_ENUM_allocation_operation_MREMAP: break;
      default: return;
    }
    if (record.address == 0 || record.address + record.bytes < record.address) return;
    const bool is_call_of_kernel = record.operation == ML_ENUM_allocation_operation_MUNMAP ||
                                   record.operation == ML_ENUM_allocation_operation_MREMAP;
    const bool resizes = record.operation == ML_ENUM_allocation_operation_REALLOC && record.old_address != 0;
    if (resized_known_ && !is_call_of_kernel && !resizes && resized_.count(record.address) == 0) return;
    const bool is_remap = record.operation == ML_ENUM_allocation_operation_MREMAP;
    calls_.push_back({process, record.time_ns, record.address, record.bytes, record.old_address,
                      is_remap ? uint64_t{record.protection} << 12 : 0, record.operation,
                      static_cast<uint16_t>(record.map_flags)});
  });
}

void FaultClassifier::note_resized(std::span<const unsigned char> payload) {
  resized_known_ = true;
  each_record<ml_allocation>(payload, [&](const ml_allocation& record) {
    if (record.operation == ML_ENUM_allocation_operation_REALLOC && record.bytes >= kMovableBytes && record.old_address != 0)
      resized_.insert(record.old_address);
  });
}

void FaultClassifier::add_shared_before(uint32_t device_major, uint32_t device_minor, uint64_t inode, uint64_t offset,
                                        uint64_t bytes) {
  const unsigned shift = options_.page_shift;
  const uint64_t first = offset >> shift, last = first + (std::min(bytes, uint64_t{1} << 62) >> shift);
  const Area file{.inode = inode, .device = (uint64_t{device_major} << 32) | device_minor};
  shared_pages_.insert_before(shared_file(file), first, last);
}

void FaultClassifier::add_code_counts(uint32_t process, std::span<const unsigned char> payload) {
  each_record<ml_code_count>(payload, [&](const auto& record) {
    add_code_use(process, record.pc, record.time_ns, (record.flags & ML_ENUM_code_flags_ANONYMOUS) != 0);
  });
}

void FaultClassifier::add_page_counts(uint32_t process, std::span<const unsigned char> payload) {
  each_record<ml_page_count>(payload, [&](const auto& record) {
    add_code_use(process, record.pc, record.time_ns);
    add_stack_use(process, record.stack, record.time_ns);
  });
}

void FaultClassifier::add_unseen(uint32_t process, std::span<const unsigned char> payload) {
  each_record<ml_unseen>(payload, [&](const auto& record) {
    if (record.pc != 0) add_code_use(process, record.pc, record.time_ns);
  });
}

// What may change the meaning of a code address: forks, execs, executable mappings, and others over them.
void FaultClassifier::find_code_changes() {
  code_changes_known_ = true;
  std::vector<std::pair<uint64_t, uint64_t>> executable;
  for (const auto& [number, record] : mappings_)
    if ((record.protection & 4) != 0) executable.emplace_back(record.address, record.address + record.bytes);
  std::sort(executable.begin(), executable.end());
  std::vector<std::pair<uint64_t, uint64_t>> merged;
  for (const auto& range : executable) {
    if (!merged.empty() && range.first <= merged.back().second)
      merged.back().second = std::max(merged.back().second, range.second);
    else
      merged.push_back(range);
  }
  for (const auto& [number, record] : mappings_) {
    const auto after = std::upper_bound(merged.begin(), merged.end(), std::pair{record.address + record.bytes, uint64_t{0}});
    if (after != merged.begin() && std::prev(after)->second > record.address) pc_codes_.add_change(number, record.time_ns);
  }
  for (const auto& [number, event] : process_events_)
    if (event.operation == ML_ENUM_process_operation_FORK || event.operation == ML_ENUM_process_operation_EXEC)
      pc_codes_.add_change(number, event.time_ns);
  pc_codes_.sort_changes();
}

void FaultClassifier::add_code_use(uint32_t process, uint64_t pc, uint64_t time_ns, bool anonymous) {
  if (!code_changes_known_) find_code_changes();
  pc_codes_.add_use(process, pc, time_ns, anonymous);
}

void FaultClassifier::resolve_use(const CodeIndex::Use& use) {
  const Process& process = processes_[use.process];
  // Mappings of an emulated program are found some moments after its code first ran.
  if (process.space.find(use.pc) == nullptr && !use.anonymous)
    unmapped_uses_[use.process].push_back(use);
  else
    pc_codes_.resolve(use, code_of(process, use.process, use.pc, use.time_ns, use.anonymous));
}

void FaultClassifier::retry_uses(uint32_t number) {
  const auto found = unmapped_uses_.find(number);
  if (found == unmapped_uses_.end()) return;
  const std::vector<CodeIndex::Use> waiting = std::move(found->second);
  unmapped_uses_.erase(found);
  for (const CodeIndex::Use& use : waiting) resolve_use(use);
}

void FaultClassifier::give_up_on_uses(uint32_t number) {
  const auto found = unmapped_uses_.find(number);
  if (found == unmapped_uses_.end()) return;
  for (const CodeIndex::Use& use : found->second)
    pc_codes_.resolve(use, code_of(processes_[number], number, use.pc, use.time_ns));
  unmapped_uses_.erase(found);
}

void FaultClassifier::add_tags(uint32_t process, std::span<const unsigned char> payload) {
  each_record<ml_tag_event>(payload, [&](const auto& record) {
    if (record.operation == ML_ENUM_tag_operation_OWN)
      own_[process].push_back({.begin = record.address & ~uint64_t{0xfff},  // whole pages: they hold nothing else
                               .end = (record.address + record.bytes + 0xfff) & ~uint64_t{0xfff},
                               .time_ns = record.time_ns});
  });
}

// Our library writes where its memory is some moments after the program's start, and the addresses
// mean that until the next exec.
void FaultClassifier::bound_own_ranges() {
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

bool FaultClassifier::is_own(uint32_t number, uint64_t address, uint64_t time_ns) const {
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

AreaKind FaultClassifier::kind_of(const Area* area) const {
  if (area == nullptr) return AreaKind::unknown;
  const auto known = path_kinds_.find(area->path);
  AreaKind kind = AreaKind::anonymous;
  if (known != path_kinds_.end()) {
    kind = known->second;
  } else {
    const auto found = strings_.find(area->path);
    const std::string& name = found == strings_.end() ? std::string() : found->second;
    if (starts_with(name, "/memfd:memlens") || name.ends_with("libmemlens.so")) kind = AreaKind::memlens;
    else if (name == "[heap]") kind = AreaKind::heap;
    else if (starts_with(name, "[stack")) kind = AreaKind::stack;
    else if (starts_with(name, "/dev/zero") || starts_with(name, "/memfd:") || starts_with(name, "/dev/shm/") ||
             starts_with(name, "/SYSV") || starts_with(name, "/anon_hugepage"))
      kind = AreaKind::shared_memory;
    else if (starts_with(name, "[anon")) kind = AreaKind::anonymous;
    else if (starts_with(name, "[")) kind = AreaKind::special;
    else if (name.empty() || starts_with(name, "//anon")) kind = AreaKind::anonymous;
    else kind = AreaKind::file;
    path_kinds_[area->path] = kind;
  }
  if (kind == AreaKind::shared_memory && !area->shared) return AreaKind::anonymous;  // MAP_PRIVATE of /dev/zero
  if (kind == AreaKind::anonymous && area->shared) return AreaKind::shared_memory;
  return kind;
}

uint32_t FaultClassifier::code_of(const Process& process, uint32_t number, uint64_t ip, uint64_t time_ns,
                                  bool anonymous) {
  Code code{.process = number, .address = ip, .time_ns = time_ns};
  const Area* area = process.space.find(ip);
  if (area != nullptr && (kind_of(area) == AreaKind::file || kind_of(area) == AreaKind::memlens)) {
    code.path = area->path;
    code.process = 0;
    code.inode = area->inode;
    code.address = ip - area->begin + area->file_offset;
  } else if (area != nullptr && kind_of(area) == AreaKind::special) {
    code.path = area->path;  // [vdso]: offset in it
    code.process = 0;
    code.address = ip - area->begin;
  }
  code.executable = anonymous || (area != nullptr && (area->protection & 4) != 0);
  const CodeKey key{code.path, code.process, code.address, code.inode};
  const auto [at, is_new] = code_index_.try_emplace(key, static_cast<uint32_t>(codes_.size()));
  if (is_new) codes_.push_back(code);
  return at->second;
}

void FaultClassifier::resolve_stack(const Process& process, uint32_t number, uint32_t stack, uint64_t time_ns,
                                    bool last) {
  if (resolved_stacks_.count(stack) != 0) return;
  const auto raw = raw_stacks_.find(stack);
  if (raw == raw_stacks_.end()) return;
  // Without perf the mappings are looked up some moments after the stack was taken.
  if (!last)
    for (uint64_t ip : raw->second)
      if (process.space.find(ip) == nullptr) return;
  std::vector<uint32_t> frames;
  frames.reserve(raw->second.size());
  for (size_t depth = 0; depth < raw->second.size(); ++depth) {
    // Above the innermost frame these are return addresses: one byte back is inside the call.
    const uint64_t ip = raw->second[depth] - (depth > 0 ? 1 : 0);
    const Area* area = process.space.find(ip);
    // Code without frame pointers sends the kernel's walk astray: cut it where it leaves the code.
    if (depth > 0 && (area == nullptr || !(area->protection & 4))) break;
    frames.push_back(code_of(process, number, ip, time_ns));
  }
  resolved_stacks_.emplace(stack, std::move(frames));
}

void FaultClassifier::replay_process_event(uint32_t number, const ml_process_event& event) {
  switch (event.operation) {
    case ML_ENUM_process_operation_FORK: {
      if (event.parent_process == 0) break;
      Process& parent = processes_[event.parent_process];
      if (parent.epoch < PageHistory::kNever - 1) ++parent.epoch;
      Process child;
      child.space = parent.space;
      child.pages = parent.pages;
      child.epoch = parent.epoch;
      child.fork_parent = event.parent_process;
      child.fork_ns = event.time_ns;
      child.attached = parent.attached;
      child.object_bytes = parent.object_bytes;
      processes_[number] = std::move(child);
      break;
    }
    case ML_ENUM_process_operation_EXEC: {
      Process& process = processes_[number];
      give_up_on_uses(number);
      process.space.clear();
      process.pages.clear();
      process.epoch = 0;
      process.exec_ns = event.time_ns;
      process.fork_parent = 0;
      process.attached = false;
      process.object_bytes.clear();
      break;
    }
    case ML_ENUM_process_operation_ATTACH: processes_[number].attached = true; break;
    case ML_ENUM_process_operation_EXIT: {
      // The leader may end before its threads: keep the mappings, free the pages' memory only
      // when nothing can refer to them, which the replay's end does.
      break;
    }
    default: break;
  }
}

void FaultClassifier::replay_fault(ClassifiedFault& fault) {
  const ml_fault& record = fault.record;
  Process& process = processes_[fault.process];
  const Area* area = process.space.find(record.address);
  fault.area = is_own(fault.process, record.address, record.time_ns) ? AreaKind::memlens : kind_of(area);
  fault.area_path = area != nullptr ? area->path : 0;
  fault.code = code_of(process, fault.process, record.ip, record.time_ns);
  if (record.stack != 0) resolve_stack(process, fault.process, record.stack, record.time_ns);

  const unsigned base = options_.page_shift;
  const bool after_known = record.after_shift >= base && record.after_shift <= kMaxPageShift;
  fault.span_shift = static_cast<uint8_t>(after_known ? record.after_shift : base);
  // Huge pages cost time and memory in proportion to what they claim: more than a machine has are taken as small ones.
  if (fault.span_shift > base + PageHistory::kBlockShift) {
    const uint64_t claimed = uint64_t{1} << (fault.span_shift - base);
    if (claimed > kMaxSpanPages - span_pages_) fault.span_shift = static_cast<uint8_t>(base);
    else span_pages_ += claimed;
  }
  const bool before_known = record.before_shift != ML_NOT_OBSERVED;
  const uint64_t page = record.address >> base;
  const PageHistory::Page history = process.pages.look(page);
  const bool touched = history.epoch != PageHistory::kNever;
  const bool older_epoch = touched && history.epoch < process.epoch;
  const bool in_kernel = (record.flags & ML_ENUM_fault_flags_KERNEL_MODE) != 0;
  const bool is_shared_memory = fault.area == AreaKind::shared_memory;
  const bool is_file = fault.area == AreaKind::file || fault.area == AreaKind::special;  // [vdso]: the kernel's page

  if (record.flags & ML_ENUM_fault_flags_MAJOR) {
    fault.fault_class = FaultClass::major;
  } else if (before_known && record.before_shift != 0) {
    const bool is_private = area == nullptr || !area->shared;
    // A private page that was inherited, or that a fork made shared since we last saw it. A page of a
    // private file mapping is copied from the page cache by its first write.
    if (is_private && (older_epoch || (is_file && !(history.notes & PageHistory::upgraded))))
      fault.fault_class = FaultClass::copy;
    else if (options_.numa_balancing && (history.notes & PageHistory::upgraded)) fault.fault_class = FaultClass::hint;
    else fault.fault_class = FaultClass::upgrade;
  } else if (is_file) {
    fault.fault_class = FaultClass::file;
  } else if (is_shared_memory) {
    fault.fault_class = area != nullptr && shared_pages_.contains(shared_file(*area), shared_page(*area, record.address, base))
                            ? FaultClass::file
                            : (in_kernel ? FaultClass::placed : FaultClass::first);
  } else if (touched && (area == nullptr || history.generation == area->generation)) {
    fault.fault_class = !before_known && older_epoch ? FaultClass::copy : FaultClass::again;
    fault.inferred = !before_known;
  } else {
    fault.fault_class = in_kernel ? FaultClass::placed : FaultClass::first;
    fault.inferred = !before_known && process.epoch > 0;
  }
  if (fault.period != 1) fault.inferred = true;  // the page's history has gaps

  // Mark the span; count what was not accessible before.
  const uint64_t span_pages = uint64_t{1} << (fault.span_shift - base);
  const uint64_t first_page = page & ~(span_pages - 1);
  const uint32_t generation = area != nullptr ? area->generation : history.generation;
  const bool marks_upgrade = fault.fault_class == FaultClass::upgrade || fault.fault_class == FaultClass::copy ||
                             fault.fault_class == FaultClass::hint;
  if (fault.period == 0) {  // recorded for its stack: its pages count where a sample of faults has them
    fault.new_pages = touched && history.generation == generation ? 0 : static_cast<uint32_t>(span_pages);
    return;
  }
  process.pages.change_all(first_page, first_page + span_pages, [&](PageHistory::Page& entry) {
    if (entry.epoch == PageHistory::kNever || entry.generation != generation) {
      ++fault.new_pages;
      entry.notes = PageHistory::none;
    }
    entry.epoch = process.epoch;
    entry.generation = generation;
    if (marks_upgrade) entry.notes |= PageHistory::upgraded;
    else if (fault.fault_class == FaultClass::again) entry.notes = PageHistory::none;
  });
  if (!is_shared_memory || area == nullptr) return;
  for (uint64_t p = first_page; p < first_page + span_pages; ++p) {
    const uint64_t address = p << base;
    if (address >= area->begin && address < area->end)
      shared_pages_.insert(shared_file(*area), shared_page(*area, address, base));
  }
}

void FaultClassifier::move_pages(Process& process, uint64_t old_begin, uint64_t old_end, uint64_t begin, uint64_t end,
                                 uint64_t now) {
  const unsigned base = options_.page_shift;
  const auto was_there = [&](uint64_t page, const PageHistory::Page& entry) {
    const Area* area = process.space.find(page << base);
    return area == nullptr || area->generation == entry.generation;
  };
  // Only as much as the new range holds; the generation is given by the address space after the look at the old one.
  const uint64_t first = old_begin >> base, last = std::min(old_end, old_begin + (end - begin)) >> base;
  process.pages.forget(begin >> base, end >> base);
  process.pages.move(first, last, begin >> base, process.space.generation() + 1, was_there);
  process.pages.forget(last, old_end >> base);
  process.space.move(old_begin, old_end, begin, end, now);
}

// Calls that change mappings and leave no mapping record.
void FaultClassifier::replay_call(const MapCall& call) {
  Process& process = processes_[call.process];
  const uint64_t page_mask = (uint64_t{1} << options_.page_shift) - 1;
  const auto page_up = [&](uint64_t address) { return (address + page_mask) & ~page_mask; };
  const uint64_t begin = call.address & ~page_mask, end = page_up(call.address + call.bytes);
  const uint64_t old_begin = call.old_address & ~page_mask;
  if (call.operation == ML_ENUM_allocation_operation_MUNMAP) {
    process.space.unmap(begin, end);
    process.pages.forget(begin >> options_.page_shift, end >> options_.page_shift);
    return;
  }
  if (call.operation == ML_ENUM_allocation_operation_MREMAP) {
    const Area* area = process.space.find(call.old_address);
    // Older captures do not have how much was moved: all of the area from the old address on.
    const uint64_t old_end = call.old_bytes != 0 ? page_up(call.old_address + call.old_bytes)
                             : area != nullptr   ? area->end
                                                 : old_begin + (end - begin);
    if (old_begin == begin) {  // resized in place
      if (end < old_end) {
        process.space.unmap(end, old_end);
        process.pages.forget(end >> options_.page_shift, old_end >> options_.page_shift);
      } else if (end > old_end) {
        process.pages.forget(old_end >> options_.page_shift, end >> options_.page_shift);
        process.space.extend(old_begin, end);
      }
      return;
    }
    const Area left = area != nullptr ? *area : Area{.begin = old_begin, .protection = 3};
    move_pages(process, old_begin, old_end, begin, end, call.time_ns);
    if ((call.flags & kMremapDontUnmap) != 0) process.space.restore(left, old_begin, old_end);
    return;
  }
  if (call.operation == ML_ENUM_allocation_operation_REALLOC && call.old_address != 0) {
    const auto old = process.object_bytes.find(call.old_address);
    if (old != process.object_bytes.end()) {
      const uint64_t old_end = page_up(call.old_address + old->second);
      // glibc and musl move an object that is a mapping of its own with mremap. Its address keeps its place in the
      // page, which is not the page's first byte: page-aligned allocators copy. Objects of the brk area are copied too.
      const Area* area = process.space.find(call.old_address);
      const Area* target = process.space.find(call.address);
      const bool same_place = (call.old_address & page_mask) == (call.address & page_mask) && (call.address & page_mask) != 0;
      const bool in_heap = (area != nullptr && kind_of(area) == AreaKind::heap) ||
                           (target != nullptr && kind_of(target) == AreaKind::heap);
      if (same_place && !in_heap) {
        if (begin != old_begin) {
          move_pages(process, old_begin, old_end, begin, end, call.time_ns);
        } else if (end > old_end && area != nullptr && area->end == old_end) {  // grown in place
          process.pages.forget(old_end >> options_.page_shift, end >> options_.page_shift);
          process.space.extend(old_begin, end);
        }
      }
      process.object_bytes.erase(old);
    }
  }
  process.object_bytes[call.address] = call.bytes;
}

void FaultClassifier::replay_look(uint32_t number, const ml_residency& look) {
  pending_looks_.push_back({number, look.begin_ns, look.end_ns, processes_[number].exec_ns,
                            (look.flags & ML_ENUM_residency_flags_HUGE) != 0,
                            look.begin_ns == 0 && processes_[number].attached, {}});
  if (look.flags & (ML_ENUM_residency_flags_FILE_OR_SHARED | ML_ENUM_residency_flags_ZERO_PAGE)) return;
  const Process& process = processes_[number];
  const uint64_t scan_begin_ns = look.end_ns - uint64_t{look.scan_us} * 1000;
  if (process.exec_ns >= scan_begin_ns) return;  // the address space was replaced under the look
  const unsigned base = options_.page_shift;
  const uint64_t begin = look.address >> base;
  const uint64_t claimed = std::min(look.bytes, UINT64_MAX - look.address) >> base;
  const uint64_t pages = std::min(claimed, kMaxLookPages - look_pages_);
  look_pages_ += pages;
  unread_look_pages_ += claimed - pages;
  std::vector<PendingLook::Run>& runs = pending_looks_.back().runs;
  for (uint64_t page = begin; page < begin + pages; ++page) {
    const Area* area = process.space.find(page << base);
    // Mapped while the look went on: it may have seen what was there before.
    if (area != nullptr && area->mapped_ns >= scan_begin_ns) continue;
    const PageHistory::Page history = process.pages.look(page);
    const uint32_t generation = area != nullptr ? area->generation : history.generation;
    if (history.epoch != PageHistory::kNever && history.generation == generation) continue;
    const AreaKind kind = is_own(number, page << base, look.end_ns) ? AreaKind::memlens : kind_of(area);
    const PendingLook::Run run{page, page + 1, history.generation, generation, kind,
                               area == nullptr || !(area->protection & 2)};
    if (!runs.empty() && runs.back().continues(run)) ++runs.back().end;
    else runs.push_back(run);
  }
}

void FaultClassifier::confirm_look(size_t pending) {
  PendingLook look = std::move(pending_looks_[pending]);
  pending_looks_[pending].runs = {};
  Process& process = processes_[look.process];
  if (process.exec_ns != look.exec_ns) return;
  const unsigned base = options_.page_shift;
  PlacedRun run;
  const bool sampled = overlaps_sampled(look.begin_ns, later(look.end_ns, kLookSlackNs));
  const auto finish = [&] {
    if (run.pages > 0 && run.area != AreaKind::memlens) placed_.push_back(run);
    run.pages = 0;
  };
  for (const PendingLook::Run& seen : look.runs) {
    uint64_t page = seen.first;
    process.pages.change_all(seen.first, seen.end, [&](PageHistory::Page& entry) {
      const uint64_t at = page++;
      const bool touched_since = entry.epoch != PageHistory::kNever && entry.generation != seen.seen_generation;
      if (touched_since || (seen.seen_generation == seen.area_generation && entry.epoch != PageHistory::kNever)) return;
      if (run.pages > 0 && (seen.area != run.area || seen.moved != run.moved ||
                             run.address + (run.pages << base) != at << base)) finish();
      if (run.pages == 0)
        run = PlacedRun{.process = look.process,
                        .begin_ns = look.begin_ns,
                        .end_ns = look.end_ns,
                        .address = at << base,
                        .pages = 0,
                        .huge = look.huge,
                        .moved = seen.moved && !look.before,
                        .before = look.before,
                        .sampled = sampled,
                        .area = seen.area};
      ++run.pages;
      entry.epoch = process.epoch;
      entry.notes = PageHistory::placed;
      entry.generation = seen.area_generation;
    });
  }
  finish();
}

void FaultClassifier::run() {
  std::vector<Event> events;
  bound_own_ranges();
  weigh_faults();
  std::vector<StackUse> uses;
  uses.reserve(stack_uses_.size());
  for (const auto& [stack, use] : stack_uses_) uses.push_back(use);
  events.reserve(process_events_.size() + mappings_.size() + faults_.size() + looks_.size() + calls_.size());
  const auto collect = [&](const auto& list, uint8_t order, auto time_of, auto process_of) {
    for (size_t i = 0; i < list.size(); ++i)
      events.push_back({time_of(list[i]), process_of(list[i]), static_cast<uint32_t>(i), order});
  };
  const auto by_pair = [](const auto& entry) { return entry.first; };
  collect(process_events_, 0, [](const auto& e) { return e.second.time_ns; }, by_pair);
  collect(mappings_, 1, [](const auto& e) { return e.second.time_ns; }, by_pair);
  collect(calls_, 7, [](const auto& e) { return e.time_ns; }, [](const auto& e) { return e.process; });
  collect(faults_, 2, [](const auto& e) { return e.record.time_ns; }, [](const auto& e) { return e.process; });
  collect(uses, 5, [](const auto& e) { return e.time_ns; }, [](const auto& e) { return e.process; });
  collect(pc_codes_.uses(), 6, [](const auto& e) { return e.time_ns; }, [](const auto& e) { return e.process; });
  collect(looks_, 3, [](const auto& e) { return e.second.end_ns; }, by_pair);
  collect(looks_, 4, [](const auto& e) { return later(e.second.end_ns, kLookSlackNs); }, by_pair);
  std::stable_sort(events.begin(), events.end(), [](const Event& a, const Event& b) {
    return a.time_ns != b.time_ns ? a.time_ns < b.time_ns : a.order < b.order;
  });
  std::vector<size_t> pending_of_look(looks_.size());
  for (const Event& event : events) {
    switch (event.order) {
      case 0: replay_process_event(event.process, process_events_[event.index].second); break;
      case 1: {
        const ml_mapping& record = mappings_[event.index].second;
        AddressSpace& space = processes_[event.process].space;
        if (record.operation == ML_ENUM_mapping_operation_UNMAP)
          space.unmap(record.address, record.address + record.bytes);
        else
          space.map(record);
        if ((record.protection & 4) != 0) retry_uses(event.process);
        break;
      }
      case 2: replay_fault(faults_[event.index]); break;
      case 3:
        pending_of_look[event.index] = pending_looks_.size();
        replay_look(event.process, looks_[event.index].second);
        break;
      case 4: confirm_look(pending_of_look[event.index]); break;
      case 6: resolve_use(pc_codes_.uses()[event.index]); break;
      case 7: replay_call(calls_[event.index]); break;
      default: resolve_stack(processes_[event.process], event.process, uses[event.index].stack, event.time_ns, false); break;
    }
  }
  while (!unmapped_uses_.empty()) give_up_on_uses(unmapped_uses_.begin()->first);
  pc_codes_.finish();
  for (const StackUse& use : uses) resolve_stack(processes_[use.process], use.process, use.stack, use.time_ns);
  double own = 0;
  for (const ClassifiedFault& fault : faults_)
    if (fault.area == AreaKind::memlens) own += fault.weight;
  own_faults_ = static_cast<uint64_t>(own + 0.5);
  std::erase_if(faults_, [](const ClassifiedFault& fault) { return fault.area == AreaKind::memlens; });
}

}  // namespace memlens::replay
