// Replays a capture's faults, mappings, process events and page-table looks in
// time order and says what each fault was.
//
// A fault is evidence; the class is a conclusion:
//   first    a page of this process that was not there before
//   again    was touched before in the same mapping, given back (MADV_DONTNEED, reclaim), touched anew
//   upgrade  was readable, is now writable (a zero page that is written, a shared page marked dirty)
//   copy     write to a page that a fork shared (copied, or taken back if the other side is gone),
//            or first write to a page of a private file mapping
//   file     content comes from a file, or from shared memory that somebody placed before
//   hint     NUMA balancing asked who uses the page
//   major    had to wait for the disk
//   placed   placed by the kernel inside a system call, for this process
// Every (process, mapping, page) counts once: `new_pages` is what a fault made
// accessible for the first time.
//
// Rules, in order: major flag → major. Something mapped before the fault: own
// page of an older fork epoch → copy; already upgraded and NUMA balancing on →
// hint; else upgrade. Nothing mapped before: file-backed → file (shared memory:
// the first of all processes is a first, later ones are file); touched before →
// again; kernel mode → placed; else first. When "before" was not observed, a page
// that was touched before counts as copy (older epoch) or again, marked inferred.
//
// Faults come in time order, between the changes of the address spaces, and are handed on as soon as they are classed:
// what is kept is the history of pages, not faults.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "address_spaces.h"
#include "code_resolver.h"
#include "memlens_format.h"
#include "named_list.h"
#include "page_history.h"
#include "shared_pages.h"

namespace memlens::replay {

// clang-format off
#define MEMLENS_FAULT_CLASSES(X) \
  X(first, "first") X(again, "again") X(upgrade, "upgrade") X(copy, "copy") X(file, "file") X(hint, "hint") \
  X(major, "major") X(placed, "placed")
// clang-format on
enum class FaultClass : uint8_t { MEMLENS_FAULT_CLASSES(MEMLENS_LIST_VALUE) };
inline constexpr const char* kFaultClassNames[] = {MEMLENS_FAULT_CLASSES(MEMLENS_LIST_NAME)};

struct Options {
  unsigned page_shift = 12;
  bool numa_balancing = false;
};

struct ClassifiedFault {
  ml_fault record;
  uint64_t arrival = 0;  // its place among the faults of the capture: the order of faults of one moment
  uint32_t process = 0;
  uint32_t code = 0;       // index into codes()
  uint32_t new_pages = 0;  // base pages that this fault made accessible for the first time
  FaultClass fault_class = FaultClass::first;
  AreaKind area = AreaKind::unknown;
  uint8_t span_shift = 12;
  bool inferred = false;
  uint8_t period = 1;   // one fault in so many was recorded; 0: recorded for its stack alone
  int16_t node = -1;    // of its page, -1 = not asked
  float weight = 1.0F;  // faults that it stands for
};

// Pages found resident without an event. `moved`: no mapping record explains writable memory at
// this address, which is how mremap looks from outside: the pages were placed elsewhere before.
// `before`: found by the first look at a process that ran already when the recorder attached to it: when and by
// whom they were placed is not known.
struct PlacedRun {
  uint32_t process = 0;
  uint64_t begin_ns = 0, end_ns = 0;  // the range in which the kernel placed them
  uint64_t address = 0, pages = 0;
  bool huge = false;
  bool moved = false;
  bool before = false;
  bool sampled = false;  // some faults of that range are not recorded: the program may have touched the pages
  AreaKind area = AreaKind::unknown;
};

// Faults were recorded by sampling in [begin_ns, end_ns); `weight` is the kernel's count over the records.
struct SampledStretch {
  uint64_t begin_ns = 0, end_ns = 0;
  double weight = 0;  // 0: not known, the record's own period
};

class FaultClassifier final : public AddressSpaces::Watcher {
 public:
  // A page's fault is raised a moment after it is mapped: a look's pages are judged that much later.
  static constexpr uint64_t kLookSlackNs = 5'000'000;

  FaultClassifier(AddressSpaces& spaces, CodeResolver& resolver, Options options)
      : spaces_(spaces), resolver_(resolver), options_(options) {}

  void add_fault_levels(std::span<const unsigned char> payload);
  // Shared memory [offset, offset + bytes) of a file that had its pages before the recording began.
  void add_shared_before(uint32_t device_major, uint32_t device_minor, uint64_t inode, uint64_t offset, uint64_t bytes);

  // In time order.
  void begin();
  void restart();  // to class the faults again
  void classify(ClassifiedFault& fault);
  size_t look(uint32_t process, const ml_residency& look);  // gives what confirm() takes, later
  void confirm(size_t pending);
  void finish();

  // When faults were sampled, in order; after finish() with what was still open when the recording ended without a word.
  const std::vector<SampledStretch>& sampled_stretches() const { return sampled_; }
  const std::vector<PlacedRun>& placed() const { return placed_; }
  // Pages that looks claim beyond any plausible memory: not replayed.
  uint64_t unread_look_pages() const { return unread_look_pages_; }

 private:
  struct Pages {
    PageHistory history;
    uint16_t epoch = 0;
  };
  // Pages that a look saw and no event explains yet: the event of a fault is raised a moment after
  // its page is mapped, so they are placed by the kernel only if none comes within kLookSlackNs.
  struct PendingLook {
    uint32_t process;
    uint64_t begin_ns, end_ns, exec_ns;
    bool huge, before;
    struct Run {  // pages [first, end) that are alike
      uint64_t first, end;
      uint32_t seen_generation, area_generation;
      AreaKind area;
      bool moved;
      bool continues(const Run& next) const {
        return end == next.first && seen_generation == next.seen_generation &&
               area_generation == next.area_generation && area == next.area && moved == next.moved;
      }
    };
    std::vector<Run> runs;
  };

  void forked(uint32_t parent, uint32_t child) override;
  void executed(uint32_t process) override;
  void moving(uint32_t process, uint64_t old_begin, uint64_t old_end, uint64_t begin, uint64_t end) override;
  void forgetting(uint32_t process, uint64_t begin, uint64_t end) override;

  Pages& pages_of(uint32_t number) {
    if (last_ == nullptr || last_number_ != number) {
      last_ = &pages_[number];
      last_number_ = number;
    }
    return *last_;
  }
  void weigh(ClassifiedFault& fault);
  FaultClass class_of(ClassifiedFault& fault, const Area* area, const Pages& process, const PageHistory::Page& history);
  void mark_span(ClassifiedFault& fault, const Area* area, Pages& process, const PageHistory::Page& history);
  bool overlaps_sampled(uint64_t begin_ns, uint64_t end_ns) const;

  AddressSpaces& spaces_;
  CodeResolver& resolver_;
  Options options_;
  std::vector<PlacedRun> placed_;
  std::vector<SampledStretch> sampled_;
  uint64_t open_ns_ = UINT64_MAX;  // the first sampled fault of no known stretch
  std::vector<PendingLook> pending_looks_;
  std::unordered_map<uint32_t, Pages> pages_;
  Pages* last_ = nullptr;  // entries of the map stay where they are
  uint32_t last_number_ = 0;
  SharedPages shared_pages_;  // placed by anybody
  uint64_t look_pages_ = 0;
  uint64_t span_pages_ = 0;         // of pages above 2 MiB
  uint64_t unread_look_pages_ = 0;  // beyond what looks may claim
};

}  // namespace memlens::replay
