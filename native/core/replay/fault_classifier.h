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
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "address_space.h"
#include "code_index.h"
#include "memlens_format.h"
#include "page_history.h"
#include "shared_pages.h"

namespace memlens::replay {

enum class FaultClass : uint8_t { first, again, upgrade, copy, file, hint, major, placed };
inline constexpr const char* kFaultClassNames[] = {"first", "again", "upgrade", "copy",
                                                   "file",  "hint",  "major",   "placed"};
enum class AreaKind : uint8_t { anonymous, heap, stack, file, shared_memory, special, unknown, memlens };
inline constexpr const char* kAreaKindNames[] = {"anonymous", "heap",          "stack",  "file",
                                                 "shared_memory", "special", "unknown", "memlens"};

struct Options {
  unsigned page_shift = 12;
  bool numa_balancing = false;
};

// A code address made independent of the process: file and offset, or, for code
// without a file (just-in-time compiled), the process and address.
struct Code {
  uint32_t path = 0;     // string id, 0 = no file
  uint32_t process = 0;  // only when path is 0
  uint64_t address = 0;  // file offset or address
  uint64_t time_ns = 0;  // first seen, for just-in-time code that changes
  uint64_t inode = 0;
  bool executable = false;  // lies in executable memory: code made at run time when it has no path
};

struct ClassifiedFault {
  ml_fault record;
  uint32_t process = 0;
  uint32_t code = 0;  // index into codes()
  uint32_t area_path = 0;
  uint32_t new_pages = 0;  // base pages that this fault made accessible for the first time
  FaultClass fault_class = FaultClass::first;
  AreaKind area = AreaKind::unknown;
  uint8_t span_shift = 12;
  bool inferred = false;
  uint8_t period = 1;   // one fault in so many was recorded; 0: recorded for its stack alone
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

class FaultClassifier {
 public:
  explicit FaultClassifier(Options options) : options_(options) {}

  // Payloads of chunks, in any order. Records that do not fit are ignored whole.
  void add_strings(std::span<const unsigned char> payload);
  void add_stacks(std::span<const unsigned char> payload);
  void add_process_events(uint32_t process, std::span<const unsigned char> payload);
  void add_mappings(uint32_t process, std::span<const unsigned char> payload);
  void add_faults(uint32_t process, std::span<const unsigned char> payload);
  void add_sampled_faults(uint32_t process, std::span<const unsigned char> payload);
  void add_fault_levels(std::span<const unsigned char> payload);
  void add_residency(uint32_t process, std::span<const unsigned char> payload);
  // Allocations: which stacks they name, so that those are resolved too, and calls that move or remove
  // mappings without a mapping record: mremap, munmap, and realloc of a large object.
  void add_allocations(uint32_t process, std::span<const unsigned char> payload);
  // All allocations, before the first add_allocations: which objects are ever resized. Then only calls that concern those are
  // kept: programs make millions of large objects a second and resize few. Without it all are kept.
  void note_resized(std::span<const unsigned char> payload);
  // Shared memory [offset, offset + bytes) of a file that had its pages before the recording began.
  void add_shared_before(uint32_t device_major, uint32_t device_minor, uint64_t inode, uint64_t offset, uint64_t bytes);
  // Tags: only the memory of our own library, whose faults are not the program's.
  void add_tags(uint32_t process, std::span<const unsigned char> payload);

  // Code and stacks that other records name, to be resolved like those of faults; after all process
  // events and mappings. The walks over window records are the caller's: it decodes their streams.
  void add_code_counts(uint32_t process, std::span<const unsigned char> payload);
  void add_page_counts(uint32_t process, std::span<const unsigned char> payload);
  void add_unseen(uint32_t process, std::span<const unsigned char> payload);
  void add_code_use(uint32_t process, uint64_t pc, uint64_t time_ns, bool anonymous = false);
  void add_stack_use(uint32_t process, uint32_t stack, uint64_t time_ns);

  void run();

  // What add_code_use and the counts named: instruction pointer and time → index into codes().
  const CodeIndex& code_index() const { return pc_codes_; }
  const std::vector<ClassifiedFault>& faults() const { return faults_; }
  // When faults were sampled, in order; from run() on with what was still open when the recording ended without a word.
  const std::vector<SampledStretch>& sampled_stretches() const { return sampled_; }
  const std::vector<PlacedRun>& placed() const { return placed_; }
  // Faults on memory of our own library: counted, and left out of faults().
  uint64_t own_faults() const { return own_faults_; }
  // Pages that looks claim beyond any plausible memory: not replayed.
  uint64_t unread_look_pages() const { return unread_look_pages_; }
  const std::vector<Code>& codes() const { return codes_; }
  // Frames of each sampled stack as codes, innermost first.
  const std::map<uint32_t, std::vector<uint32_t>>& stacks() const { return resolved_stacks_; }

 private:
  struct Process {
    AddressSpace space;
    PageHistory pages;
    uint16_t epoch = 0;
    uint64_t exec_ns = 0;
    uint32_t fork_parent = 0;  // until it executes a program
    uint64_t fork_ns = 0;
    bool attached = false;  // it ran before the recording began
    // Objects of kMovableBytes and more, by address: how much a realloc moves.
    std::unordered_map<uint64_t, uint64_t> object_bytes;
  };
  struct MapCall {
    uint32_t process;
    uint64_t time_ns, address, bytes, old_address, old_bytes;  // old_bytes 0: not recorded
    uint16_t operation, flags;
  };
  struct OwnRange {
    uint64_t begin, end;
    uint64_t time_ns;
    uint64_t valid_from = 0, valid_until = UINT64_MAX;  // the program image that it was seen in
  };
  struct StackUse {
    uint32_t stack, process;
    uint64_t time_ns;
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
  struct Event {
    uint64_t time_ns;
    uint32_t process;
    uint32_t index;
    uint8_t order;  // events of one moment: process events, mappings, faults, looks
  };
  struct CodeKey {
    uint32_t path, process;
    uint64_t address, inode;
    bool operator==(const CodeKey&) const = default;
  };
  struct CodeKeyHash {
    size_t operator()(const CodeKey& key) const {
      return (key.address * 0x9E3779B97F4A7C15u) ^ (uint64_t{key.path} << 32) ^ key.process ^ key.inode;
    }
  };

  void replay_process_event(uint32_t process, const ml_process_event& event);
  void replay_fault(ClassifiedFault& fault);
  void replay_look(uint32_t process, const ml_residency& look);
  void replay_call(const MapCall& call);
  void move_pages(Process& process, uint64_t old_begin, uint64_t old_end, uint64_t begin, uint64_t end, uint64_t now);
  void confirm_look(size_t pending);
  uint32_t code_of(const Process& process, uint32_t number, uint64_t ip, uint64_t time_ns, bool anonymous = false);
  void find_code_changes();
  void resolve_use(const CodeIndex::Use& use);
  void retry_uses(uint32_t number);
  void give_up_on_uses(uint32_t number);  // their code is named as unknown
  AreaKind kind_of(const Area* area) const;
  // `last`: also when its code is not mapped, as far as is known.
  void resolve_stack(const Process& process, uint32_t number, uint32_t stack, uint64_t time_ns, bool last = true);
  void bound_own_ranges();
  void weigh_faults();
  bool overlaps_sampled(uint64_t begin_ns, uint64_t end_ns) const;
  bool is_own(uint32_t number, uint64_t address, uint64_t time_ns) const;

  Options options_;
  std::unordered_map<uint32_t, std::string> strings_;
  std::unordered_map<uint32_t, std::vector<uint64_t>> raw_stacks_;
  std::vector<std::pair<uint32_t, ml_process_event>> process_events_;
  std::vector<std::pair<uint32_t, ml_mapping>> mappings_;
  std::vector<std::pair<uint32_t, ml_residency>> looks_;
  std::vector<MapCall> calls_;
  std::unordered_set<uint64_t> resized_;  // addresses of objects before a realloc, of any process: a fork's child inherits them
  bool resized_known_ = false;
  std::vector<ClassifiedFault> faults_;
  std::vector<PlacedRun> placed_;
  std::vector<SampledStretch> sampled_;
  std::vector<PendingLook> pending_looks_;
  std::unordered_map<uint32_t, std::vector<OwnRange>> own_;
  std::unordered_map<uint32_t, StackUse> stack_uses_;  // by stack: its earliest use
  uint64_t own_faults_ = 0;
  CodeIndex pc_codes_;
  bool code_changes_known_ = false;
  std::map<uint32_t, std::vector<CodeIndex::Use>> unmapped_uses_;  // until their mapping is known
  std::vector<Code> codes_;
  std::unordered_map<CodeKey, uint32_t, CodeKeyHash> code_index_;
  std::map<uint32_t, std::vector<uint32_t>> resolved_stacks_;
  std::unordered_map<uint32_t, Process> processes_;
  SharedPages shared_pages_;  // placed by anybody
  uint64_t look_pages_ = 0;
  uint64_t span_pages_ = 0;  // of pages above 2 MiB
  uint64_t unread_look_pages_ = 0;  // beyond what looks may claim
  mutable std::unordered_map<uint32_t, AreaKind> path_kinds_;
};

}  // namespace memlens::replay
