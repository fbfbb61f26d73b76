// What is mapped where in every process, replayed in time order: forks, execs, mapping records, and calls that change
// mappings and leave no mapping record (mremap, munmap, realloc of a large object).
//
// Knows nothing of faults and of code. Who keeps something by page (what was touched) is told by a Watcher before the
// mappings change. Who keeps something by address asks `changes()`: it counts every change of any process.
//
// Lifecycle: add_* in any order, begin() once, then replay() in time order.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "address_space.h"
#include "memlens_format.h"
#include "named_list.h"

namespace memlens::replay {

// clang-format off
#define MEMLENS_AREA_KINDS(X) \
  X(anonymous, "anonymous") X(heap, "heap") X(stack, "stack") X(file, "file") X(shared_memory, "shared_memory") \
  X(special, "special") X(unknown, "unknown") X(memlens, "memlens")
// clang-format on
enum class AreaKind : uint8_t { MEMLENS_AREA_KINDS(MEMLENS_LIST_VALUE) };
inline constexpr const char* kAreaKindNames[] = {MEMLENS_AREA_KINDS(MEMLENS_LIST_NAME)};

class AddressSpaces {
 public:
  struct Process {
    AddressSpace space;
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
  // Told what happens to the pages of a process, before its mappings change.
  class Watcher {
   public:
    virtual ~Watcher() = default;
    virtual void forked(uint32_t parent, uint32_t child) = 0;
    virtual void executed(uint32_t process) = 0;
    // Addresses [old_begin, old_end) become [begin, end).
    virtual void moving(uint32_t process, uint64_t old_begin, uint64_t old_end, uint64_t begin, uint64_t end) = 0;
    virtual void forgetting(uint32_t process, uint64_t begin, uint64_t end) = 0;
  };

  explicit AddressSpaces(unsigned page_shift) : page_shift_(page_shift) {}

  // Payloads of chunks, in any order. Records that do not fit are ignored whole.
  void add_strings(std::span<const unsigned char> payload);
  void add_process_events(uint32_t process, std::span<const unsigned char> payload);
  void add_mappings(uint32_t process, std::span<const unsigned char> payload);
  // Calls that move or remove mappings without a mapping record. All of them are noted before the first is added: calls are kept
  // that concern an object which is ever resized, for programs make millions of large objects a second and resize few.
  // note_call gives whether this one may be such a call.
  bool note_call(const ml_allocation& record);
  void add_call(uint32_t process, const ml_allocation& record);
  // Tags: only the memory of our own library, which is no memory of the program's.
  void add_tags(uint32_t process, std::span<const unsigned char> payload);

  void watch(Watcher* watcher) { watcher_ = watcher; }
  void begin();
  void restart() { processes_.clear(), last_ = nullptr, ++changes_; }  // to replay again
  void replay(uint32_t process, const ml_process_event& event);
  void replay(uint32_t process, const ml_mapping& record);
  void replay(const MapCall& call);

  const std::vector<std::pair<uint32_t, ml_process_event>>& process_events() const { return process_events_; }
  const std::vector<std::pair<uint32_t, ml_mapping>>& mappings() const { return mappings_; }
  const std::vector<MapCall>& calls() const { return calls_; }

  Process& process(uint32_t number) {
    if (last_ == nullptr || last_number_ != number) {
      last_ = &processes_[number];
      last_number_ = number;
    }
    return *last_;
  }
  uint64_t changes() const { return changes_; }
  AreaKind kind_of(const Area* area) const;
  // Whether an address lies in memory of our own library, in this process or those that it was forked from.
  bool is_own(uint32_t number, uint64_t address, uint64_t time_ns) const;

 private:
  struct OwnRange {
    uint64_t begin, end;
    uint64_t time_ns;
    uint64_t valid_from = 0, valid_until = UINT64_MAX;  // the program image that it was seen in
  };
  void fork(uint32_t number, const ml_process_event& event);
  void replay_remap(uint32_t number, Process& process, const MapCall& call);
  void replay_realloc(uint32_t number, Process& process, const MapCall& call);
  void move_pages(uint32_t number, Process& process, uint64_t old_begin, uint64_t old_end, uint64_t begin, uint64_t end,
                  uint64_t now);
  void forget(uint32_t number, uint64_t begin, uint64_t end) {
    if (watcher_ != nullptr) watcher_->forgetting(number, begin, end);
  }
  uint64_t page_down(uint64_t address) const { return address & ~((uint64_t{1} << page_shift_) - 1); }
  uint64_t page_up(uint64_t address) const { return page_down(address + (uint64_t{1} << page_shift_) - 1); }

  unsigned page_shift_;
  Watcher* watcher_ = nullptr;
  uint64_t changes_ = 1;
  std::unordered_map<uint32_t, std::string> strings_;
  std::vector<std::pair<uint32_t, ml_process_event>> process_events_;
  std::vector<std::pair<uint32_t, ml_mapping>> mappings_;
  std::vector<MapCall> calls_;
  // addresses of objects before a realloc, of any process: a fork's child inherits them
  std::unordered_set<uint64_t> resized_;
  std::unordered_map<uint32_t, std::vector<OwnRange>> own_;
  std::unordered_map<uint32_t, Process> processes_;
  Process* last_ = nullptr;  // entries of the map stay where they are
  uint32_t last_number_ = 0;
  mutable std::unordered_map<uint32_t, AreaKind> path_kinds_;
};

}  // namespace memlens::replay
