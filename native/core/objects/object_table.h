// Which object lies at an address at a time: heap, mapping, tag, stack, file mapping.
//
// Takes the payloads of chunks, replays them in time order (run) and then answers. An object
// lives in [born, died). Events of one nanosecond: process events, mappings, releases,
// allocations, map calls, tags, threads; so at one address a release comes before the next
// allocation, as the runtime stamps them.
//
// Layers: objects of one layer never overlap at one moment; what is born over others ends
// them. Each process has a VersionTree for each layer that it uses. Tags may overlap and have
// a structure of their own (TagIndex).
//
// A fork copies nothing: what a child does not find in its own trees it looks up in its
// parent's at the time of the fork, less what it has ended itself since (`ended`). An exec
// ends that, and everything of its own.
//
// Allocations are streamed: they are added as time goes on, and `advance` replays up to a time before which none is to come. All
// other records are few and are kept from the beginning.
//
// Sums need a table of live objects only. With `most_rows` the rest is forgotten when there are so many rows: small objects of the
// heap that have ended, but for the largest, those that a fork may have handed on, sampled ones and those that a kept one continues.
// What is left has its sums whole, and look-ups find what is left (object_forget.cpp).
//
// Lifecycle: add_* but allocations, begin(), then add_allocations and advance() in turns, finish(); or all of add_*, then run().
// Reads come after that, from any thread.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "memlens_format.h"
#include "object_columns.h"
#include "replay/address_space.h"
#include "site_totals.h"
#include "tag_index.h"
#include "touches.h"
#include "version_tree.h"

namespace memlens::objects {

// In the order of precedence: the first layer with an object at an address is the answer.
// clang-format off
#define MEMLENS_OBJECT_LAYERS(X) \
  X(heap, "heap") X(memlens, "memlens") X(variable, "variable") X(stack, "stack") X(mmap, "mmap") X(brk, "brk") \
  X(file, "file")
// clang-format on
enum class Layer : uint8_t { MEMLENS_OBJECT_LAYERS(MEMLENS_LIST_VALUE) };
inline constexpr const char* kLayerNames[] = {MEMLENS_OBJECT_LAYERS(MEMLENS_LIST_NAME)};
inline constexpr size_t kLayers = std::size(kLayerNames);

struct Counts {
  uint64_t failed_calls = 0;      // allocations that returned no memory
  uint64_t unknown_releases = 0;  // of addresses where nothing known was alive
  uint64_t lost_releases = 0;     // objects ended because another one was allocated over them
  uint64_t unknown_unmaps = 0;    // munmap and mremap of memory that no mmap call gave
};

class ObjectTable {
 public:
  // `largest`: so many small ones are never forgotten, for tables of the largest objects.
  explicit ObjectTable(uint64_t page_bytes, size_t most_rows = SIZE_MAX, size_t largest = 200);
  ObjectTable(const ObjectTable&) = delete;
  ObjectTable& operator=(const ObjectTable&) = delete;

  void add_strings(std::span<const unsigned char> payload);
  // `arrival`: the order of chunks, for records of one moment.
  void add_allocations(uint32_t process, std::span<const unsigned char> payload, uint32_t arrival = 0);
  void add_tag_events(uint32_t process, std::span<const unsigned char> payload);
  void add_thread_memory(uint32_t process, std::span<const unsigned char> payload);
  void add_process_events(uint32_t process, std::span<const unsigned char> payload);
  void add_mappings(uint32_t process, std::span<const unsigned char> payload);

  // A static variable, or one thread's copy of a thread-local one. `name` is the caller's own number.
  struct Variable {
    uint64_t time_ns, base, bytes;
    uint32_t process, name, thread;
    bool is_thread_local;
  };
  void add_variable(const Variable& variable) { variables_.push_back(variable); }

  // The times of a process's allocations that are added after begin(): what its curves are laid out for.
  void expect(uint32_t process, uint64_t begin_ns, uint64_t end_ns);
  // When a process ended: what it left counts no longer where several sites are taken together.
  void add_process_end(uint32_t process, uint64_t time_ns) { process_ends_.emplace_back(process, time_ns); }

  void begin();
  void advance(uint64_t before_ns);
  void finish();
  void run() { begin(), finish(); }

  size_t waiting() const { return waiting_.size(); }
  // All objects that were made, and those of each kind; rows are fewer where some were forgotten.
  uint64_t made() const { return made_; }
  const std::array<uint64_t, kKinds>& made_of_kind() const { return made_of_kind_; }

  const Columns& columns() const { return columns_; }
  const Counts& counts() const { return counts_; }
  const SiteTotals& totals() const { return totals_; }
  size_t index_nodes() const { return pool_.nodes(); }

  struct Queries {
    std::span<const uint32_t> processes;  // one for all, or one each
    std::span<const uint64_t> addresses, times;
    uint32_t process(size_t i) const { return processes[processes.size() == 1 ? 0 : i]; }
  };
  // Ids, 0 = none. `layer` kLayers: the first layer that has one.
  void find(const Queries& queries, size_t layer, std::span<uint32_t> ids, unsigned threads) const;
  // The innermost tag: the shortest, of equals the latest.
  void find_tags(const Queries& queries, std::span<uint32_t> ids) const;

  // What faults say about objects; see touches.h.
  TouchColumns touch(const TouchInput& input) const;

 private:
  class Lookahead;
  friend class PageWalk;  // touches.cpp
  friend class TouchSums;
  // Compact forms of the two records that there are millions of.
  struct Birth {
    uint64_t time_ns, address, bytes, weight_bytes, old_address;
    uint32_t process, stack, thread;
    uint8_t operation, alignment_shift, flags, reserved;
  };
  struct Release {
    uint64_t time_ns, address;
    uint32_t process : 31, in_realloc : 1;
    uint32_t thread;
  };
  struct MapCall {
    uint32_t process;
    ml_allocation record;
  };
  struct Process {
    uint32_t number = 0;
    uint32_t main_thread = 0;  // 0 = not known
    Process* parent = nullptr;
    uint64_t fork_ns = 0, inherits_until_ns = kForever;
    std::array<std::unique_ptr<VersionTree>, kLayers> layers;
    std::vector<uint32_t> breaks;  // brk objects, one after the other
    replay::AddressSpace space;
    std::unordered_map<uint32_t, uint64_t> ended;  // inherited object → when it ended in this process
    std::unordered_map<uint64_t, uint32_t> moved;  // address → object that a realloc released there
    TagIndex tags;
    std::unordered_map<uint32_t, uint32_t> thread_stacks;  // thread → stack object
  };
  // How an object comes to its end.
  enum class End : uint8_t { released, replaced, cut };
  struct Interval {
    uint64_t base, end;
    uint32_t id;
    bool inherited;
  };

  Process& process_of(uint32_t number);
  const Process* known_process(uint32_t number) const;
  VersionTree& tree(Process& process, Layer layer);

  // Events of one moment, in the order of their effects.
  enum Order : uint8_t {
    process_end,
    process_event,
    mapping,
    release,
    unmap,
    birth,
    map_call,
    tag,
    thread_memory,
    variable
  };
  struct Event {
    uint64_t time_ns;
    uint32_t index;
    uint32_t arrival : 24, order : 8;
  };
  struct Range {
    uint64_t begin_ns = kForever, end_ns = 0;
  };
  static bool comes_before(const Event& a, const Event& b);
  void date_found_mappings();
  void replay_event(const Event& event);
  void replay_kept_before(const Event& next);
  void drop_done(size_t done);

  // Forgetting, in object_forget.cpp.
  void forget();
  std::vector<uint8_t> worth_keeping() const;
  bool is_forgettable(uint32_t row, uint64_t died_ns) const;
  void renumber(const std::vector<uint32_t>& new_id);
  void rebuild_trees();

  void replay_birth(const Birth& birth);
  void replay_release(const Release& release);
  void replay_map_call(const MapCall& call);
  void replay_break(Process& process, const ml_allocation& record);
  void replay_process_event(uint32_t number, const ml_process_event& event);
  void end_everything(Process& process, uint64_t now, uint32_t thread);
  void replay_mapping(uint32_t number, const ml_mapping& record);
  void replay_tag(uint32_t number, const ml_tag_event& record);
  void replay_thread(uint32_t number, const ml_thread_memory& record);
  void replay_variable(const Variable& variable);

  // Everything alive that overlaps [begin, end) as `process` sees it now, inherited objects included.
  std::vector<Interval> overlapping(const Process& process, Layer layer, uint64_t begin, uint64_t end,
                                    uint64_t now) const;
  uint32_t inherited_at(const Process& process, Layer layer, uint64_t address, uint64_t time) const;
  uint32_t find_one(const Process& process, Layer layer, uint64_t address, uint64_t time) const;
  uint32_t covering(const VersionTree::Entry& entry, uint64_t address) const;
  uint32_t break_at(const Process& process, uint64_t address, uint64_t time) const;
  uint32_t own_at(const Process& process, Layer layer, uint64_t address, uint64_t time) const;
  template <typename Visit>
  void each_ancestor(const Process& process, uint64_t time, Visit&& visit) const;

  struct NewObject {
    Kind kind;
    uint64_t base, bytes, weight_bytes = 0;
    uint32_t thread = 0, stack = 0, previous = 0, name = 0;
    uint32_t map_flags = 0;
    uint8_t operation = 0, alignment_shift = 0, flags = 0, protection = 0;
  };
  uint32_t make(Process& process, const NewObject& object, uint64_t now);
  void end_object(uint32_t id, uint64_t now, uint32_t thread, End how);
  void end_interval(Process& process, Layer layer, const Interval& interval, uint64_t now, uint32_t thread, End how);
  // Takes [begin, end) out of a layer; what remains of objects at its edges lives on as new ones.
  // Gives the first object that was hit.
  uint32_t cut(Process& process, Layer layer, uint64_t begin, uint64_t end, uint64_t now, uint32_t thread);
  bool is_file_path(uint32_t path) const { return file_paths_.count(path) != 0; }
  uint64_t page_end(uint64_t address, uint64_t bytes) const;

  uint64_t page_bytes_;
  uint32_t heap_path_ = 0;                   // string "[heap]"
  std::unordered_set<uint32_t> file_paths_;  // strings that begin with one "/"
  // Allocations that wait to be replayed, by events in waiting_.
  std::vector<Birth> births_;
  std::vector<Release> releases_;
  std::vector<MapCall> map_calls_;
  std::vector<Event> waiting_;
  std::vector<MapCall> unmaps_;  // all of them: pages of faults need them
  std::vector<Event> kept_events_;
  size_t next_kept_ = 0;
  std::unordered_map<uint32_t, Range> ranges_;
  std::vector<std::pair<uint32_t, uint64_t>> process_ends_;
  std::unordered_map<uint32_t, std::vector<uint64_t>> forks_;  // times at which a process was forked
  std::vector<std::pair<uint32_t, ml_tag_event>> tag_events_;
  std::vector<std::pair<uint32_t, ml_thread_memory>> thread_memory_;
  std::vector<Variable> variables_;
  std::vector<std::pair<uint32_t, ml_process_event>> process_events_;
  std::vector<std::pair<uint32_t, ml_mapping>> mappings_;

  size_t most_rows_, forget_at_, largest_;
  bool is_forgetting_ = false;  // it has begun
  uint64_t made_ = 0;
  std::array<uint64_t, kKinds> made_of_kind_{};
  Columns columns_;
  Counts counts_;
  SiteTotals totals_{columns_};
  VersionTree::NodePool pool_;
  std::unordered_map<uint32_t, std::unique_ptr<Process>> processes_;
  Process* last_process_ = nullptr;
};

}  // namespace memlens::objects
