#include "fault_classifier.h"

#include <algorithm>

#include "record_walk.h"

namespace memlens::replay {
namespace {

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

// ---- sampled faults ------------------------------------------------------------------------

void FaultClassifier::add_fault_levels(std::span<const unsigned char> payload) {
  each_record<ml_fault_level>(payload, [&](const ml_fault_level& record) {
    if (record.level != ML_ENUM_fault_level_kind_SAMPLED || record.end_ns <= record.begin_ns) return;
    const double ratio =
        record.recorded > 0 ? static_cast<double>(record.counted) / static_cast<double>(record.recorded) : 0;
    // A thread's first record comes after a whole period, so there are rather too few records than too many.
    const bool plausible = ratio >= 1 && ratio <= 16.0 * std::max<unsigned>(record.period, 1);
    sampled_.push_back({record.begin_ns, record.end_ns, plausible ? ratio : 0});
  });
}

void FaultClassifier::begin() {
  std::sort(sampled_.begin(), sampled_.end(), [](const auto& a, const auto& b) { return a.begin_ns < b.begin_ns; });
}

void FaultClassifier::restart() {
  if (open_ns_ != UINT64_MAX && !sampled_.empty() && sampled_.back().end_ns == UINT64_MAX) sampled_.pop_back();
  open_ns_ = UINT64_MAX;
  placed_.clear();
  pending_looks_.clear();
  pages_.clear();
  last_ = nullptr;
  shared_pages_.restart();
  look_pages_ = span_pages_ = unread_look_pages_ = 0;
}

// What a sampled fault stands for.
void FaultClassifier::weigh(ClassifiedFault& fault) {
  if (fault.period == 1) return;
  fault.weight = fault.period;
  if (fault.period == 0) return;
  const auto stretch_of = [&](uint64_t time_ns) -> const SampledStretch* {
    const auto after = std::upper_bound(sampled_.begin(), sampled_.end(), time_ns,
                                        [](uint64_t t, const SampledStretch& s) { return t < s.begin_ns; });
    return after != sampled_.begin() && time_ns < std::prev(after)->end_ns ? &*std::prev(after) : nullptr;
  };
  constexpr uint64_t kSlackNs = 20'000'000;  // events of a level are enabled shortly before its record begins
  const SampledStretch* stretch = stretch_of(fault.record.time_ns);
  if (stretch == nullptr) stretch = stretch_of(later(fault.record.time_ns, kSlackNs));
  if (stretch == nullptr) open_ns_ = std::min(open_ns_, fault.record.time_ns);
  else if (stretch->weight > 0) fault.weight = static_cast<float>(stretch->weight);
}

// The recording's last stretch has no record if the recorder was killed.
void FaultClassifier::finish() {
  if (open_ns_ != UINT64_MAX) sampled_.push_back({open_ns_, UINT64_MAX, 0});
}

bool FaultClassifier::overlaps_sampled(uint64_t begin_ns, uint64_t end_ns) const {
  return open_ns_ < end_ns || std::any_of(
                                  sampled_.begin(), sampled_.end(),
                                  [&](const SampledStretch& s) { return s.begin_ns < end_ns && begin_ns < s.end_ns; });
}

void FaultClassifier::add_shared_before(uint32_t device_major, uint32_t device_minor, uint64_t inode, uint64_t offset,
                                        uint64_t bytes) {
  const unsigned shift = options_.page_shift;
  const uint64_t first = offset >> shift, last = first + (std::min(bytes, uint64_t{1} << 62) >> shift);
  const Area file{.inode = inode, .device = (uint64_t{device_major} << 32) | device_minor};
  shared_pages_.insert_before(shared_file(file), first, last);
}

// ---- pages that move with their mappings -----------------------------------------------------

void FaultClassifier::forked(uint32_t parent, uint32_t child) {
  Pages& pages = pages_[parent];
  if (pages.epoch < PageHistory::kNever - 1) ++pages.epoch;
  Pages copy = pages;
  pages_[child] = std::move(copy);
}

void FaultClassifier::executed(uint32_t process) { pages_[process] = {}; }

void FaultClassifier::moving(uint32_t number, uint64_t old_begin, uint64_t old_end, uint64_t begin, uint64_t end) {
  const unsigned base = options_.page_shift;
  const AddressSpace& space = spaces_.process(number).space;
  PageHistory& history = pages_[number].history;
  const auto was_there = [&](uint64_t page, const PageHistory::Page& entry) {
    const Area* area = space.find(page << base);
    return area == nullptr || area->generation == entry.generation;
  };
  // Only as much as the new range holds; the generation is given by the address space after the look at the old one.
  const uint64_t first = old_begin >> base, last = std::min(old_end, old_begin + (end - begin)) >> base;
  history.forget(begin >> base, end >> base);
  history.move(first, last, begin >> base, space.generation() + 1, was_there);
  history.forget(last, old_end >> base);
}

void FaultClassifier::forgetting(uint32_t process, uint64_t begin, uint64_t end) {
  pages_[process].history.forget(begin >> options_.page_shift, end >> options_.page_shift);
}

// ---- faults ----------------------------------------------------------------------------------

void FaultClassifier::classify(ClassifiedFault& fault) {
  weigh(fault);
  const ml_fault& record = fault.record;
  const Area* area = spaces_.process(fault.process).space.find(record.address);
  fault.area =
      spaces_.is_own(fault.process, record.address, record.time_ns) ? AreaKind::memlens : spaces_.kind_of(area);
  fault.code = resolver_.code_of(fault.process, record.ip, record.time_ns);
  if (record.stack != 0) resolver_.resolve_stack(fault.process, record.stack, record.time_ns);

  const unsigned base = options_.page_shift;
  const bool after_known = record.after_shift >= base && record.after_shift <= kMaxPageShift;
  fault.span_shift = static_cast<uint8_t>(after_known ? record.after_shift : base);
  // Huge pages cost time and memory in proportion to what they claim: more than a machine has are taken as small ones.
  if (fault.span_shift > base + PageHistory::kBlockShift) {
    const uint64_t claimed = uint64_t{1} << (fault.span_shift - base);
    if (claimed > kMaxSpanPages - span_pages_) fault.span_shift = static_cast<uint8_t>(base);
    else span_pages_ += claimed;
  }
  Pages& process = pages_of(fault.process);
  const PageHistory::Page history = process.history.look(record.address >> base);
  fault.fault_class = class_of(fault, area, process, history);
  if (fault.period != 1) fault.inferred = true;  // the page's history has gaps
  mark_span(fault, area, process, history);
}

FaultClass FaultClassifier::class_of(ClassifiedFault& fault, const Area* area, const Pages& process,
                                     const PageHistory::Page& history) {
  const ml_fault& record = fault.record;
  const bool before_known = record.before_shift != ML_NOT_OBSERVED;
  const bool touched = history.epoch != PageHistory::kNever;
  const bool older_epoch = touched && history.epoch < process.epoch;
  const bool in_kernel = (record.flags & ML_ENUM_fault_flags_KERNEL_MODE) != 0;
  const bool is_file = fault.area == AreaKind::file || fault.area == AreaKind::special;  // [vdso]: the kernel's page

  if (record.flags & ML_ENUM_fault_flags_MAJOR) return FaultClass::major;
  if (before_known && record.before_shift != 0) {
    const bool is_private = area == nullptr || !area->shared;
    // A private page that was inherited, or that a fork made shared since we last saw it. A page of a
    // private file mapping is copied from the page cache by its first write.
    if (is_private && (older_epoch || (is_file && !(history.notes & PageHistory::upgraded)))) return FaultClass::copy;
    return options_.numa_balancing && (history.notes & PageHistory::upgraded) ? FaultClass::hint : FaultClass::upgrade;
  }
  if (is_file) return FaultClass::file;
  if (fault.area == AreaKind::shared_memory) {
    if (area != nullptr &&
        shared_pages_.contains(shared_file(*area), shared_page(*area, record.address, options_.page_shift)))
      return FaultClass::file;
    return in_kernel ? FaultClass::placed : FaultClass::first;
  }
  if (touched && (area == nullptr || history.generation == area->generation)) {
    fault.inferred = !before_known;
    return !before_known && older_epoch ? FaultClass::copy : FaultClass::again;
  }
  fault.inferred = !before_known && process.epoch > 0;
  return in_kernel ? FaultClass::placed : FaultClass::first;
}

// Marks the pages that the fault mapped; counts those that were not accessible before.
void FaultClassifier::mark_span(ClassifiedFault& fault, const Area* area, Pages& process,
                                const PageHistory::Page& history) {
  const unsigned base = options_.page_shift;
  const bool touched = history.epoch != PageHistory::kNever;
  const uint64_t span_pages = uint64_t{1} << (fault.span_shift - base);
  const uint64_t first_page = (fault.record.address >> base) & ~(span_pages - 1);
  const uint32_t generation = area != nullptr ? area->generation : history.generation;
  const bool marks_upgrade = fault.fault_class == FaultClass::upgrade || fault.fault_class == FaultClass::copy ||
                             fault.fault_class == FaultClass::hint;
  if (fault.period == 0) {  // recorded for its stack: its pages count where a sample of faults has them
    fault.new_pages = touched && history.generation == generation ? 0 : static_cast<uint32_t>(span_pages);
    return;
  }
  const auto mark = [&](PageHistory::Page& entry) {
    if (entry.epoch == PageHistory::kNever || entry.generation != generation) {
      ++fault.new_pages;
      entry.notes = PageHistory::none;
    }
    entry.epoch = process.epoch;
    entry.generation = generation;
    if (marks_upgrade) entry.notes |= PageHistory::upgraded;
    else if (fault.fault_class == FaultClass::again) entry.notes = PageHistory::none;
  };
  if (span_pages == 1) mark(process.history.change(first_page));
  else process.history.change_all(first_page, first_page + span_pages, mark);
  if (fault.area != AreaKind::shared_memory || area == nullptr) return;
  for (uint64_t p = first_page; p < first_page + span_pages; ++p) {
    const uint64_t address = p << base;
    if (address >= area->begin && address < area->end)
      shared_pages_.insert(shared_file(*area), shared_page(*area, address, base));
  }
}

// ---- looks at page tables ----------------------------------------------------------------------

size_t FaultClassifier::look(uint32_t number, const ml_residency& look) {
  const AddressSpaces::Process& process = spaces_.process(number);
  const PageHistory& pages = pages_of(number).history;
  const size_t pending = pending_looks_.size();
  pending_looks_.push_back({number,
                            look.begin_ns,
                            look.end_ns,
                            process.exec_ns,
                            (look.flags & ML_ENUM_residency_flags_HUGE) != 0,
                            look.begin_ns == 0 && process.attached,
                            {}});
  if (look.flags & (ML_ENUM_residency_flags_FILE_OR_SHARED | ML_ENUM_residency_flags_ZERO_PAGE)) return pending;
  const uint64_t scan_begin_ns = look.end_ns - uint64_t{look.scan_us} * 1000;
  if (process.exec_ns >= scan_begin_ns) return pending;  // the address space was replaced under the look
  const unsigned base = options_.page_shift;
  const uint64_t begin = look.address >> base;
  const uint64_t claimed = std::min(look.bytes, UINT64_MAX - look.address) >> base;
  const uint64_t read = std::min(claimed, kMaxLookPages - look_pages_);
  look_pages_ += read;
  unread_look_pages_ += claimed - read;
  std::vector<PendingLook::Run>& runs = pending_looks_.back().runs;
  for (uint64_t page = begin; page < begin + read; ++page) {
    const Area* area = process.space.find(page << base);
    // Mapped while the look went on: it may have seen what was there before.
    if (area != nullptr && area->mapped_ns >= scan_begin_ns) continue;
    const PageHistory::Page history = pages.look(page);
    const uint32_t generation = area != nullptr ? area->generation : history.generation;
    if (history.epoch != PageHistory::kNever && history.generation == generation) continue;
    const AreaKind kind = spaces_.is_own(number, page << base, look.end_ns) ? AreaKind::memlens : spaces_.kind_of(area);
    const PendingLook::Run run{page,       page + 1, history.generation,
                               generation, kind,     area == nullptr || !(area->protection & 2)};
    if (!runs.empty() && runs.back().continues(run)) ++runs.back().end;
    else runs.push_back(run);
  }
  return pending;
}

void FaultClassifier::confirm(size_t pending) {
  PendingLook look = std::move(pending_looks_[pending]);
  pending_looks_[pending].runs = {};
  Pages& process = pages_of(look.process);
  if (spaces_.process(look.process).exec_ns != look.exec_ns) return;
  const unsigned base = options_.page_shift;
  PlacedRun run;
  const bool sampled = overlaps_sampled(look.begin_ns, later(look.end_ns, kLookSlackNs));
  const auto finish = [&] {
    if (run.pages > 0 && run.area != AreaKind::memlens) placed_.push_back(run);
    run.pages = 0;
  };
  for (const PendingLook::Run& seen : look.runs) {
    uint64_t page = seen.first;
    process.history.change_all(seen.first, seen.end, [&](PageHistory::Page& entry) {
      const uint64_t at = page++;
      const bool touched_since = entry.epoch != PageHistory::kNever && entry.generation != seen.seen_generation;
      if (touched_since || (seen.seen_generation == seen.area_generation && entry.epoch != PageHistory::kNever)) return;
      if (run.pages > 0 &&
          (seen.area != run.area || seen.moved != run.moved || run.address + (run.pages << base) != at << base))
        finish();
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

}  // namespace memlens::replay
