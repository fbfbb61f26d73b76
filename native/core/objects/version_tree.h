// Which interval covered an address at a time: a multiversion B-tree.
//
// Holds intervals that never overlap at one moment. Changes come in time order; every
// past state stays readable (Becker, Gschwind, Ohler, Seeger, Widmayer: "An asymptotically
// optimal multiversion B-tree", 1996). A node keeps entries with the time they are valid
// in, sorted by key; one that is full is copied with only what is valid now (and cut in
// two if that is much), and its parent points to the copy from then on. One that becomes
// too empty is absorbed by the node to its left, in place where there is room.
//
// An address is looked up as the greatest base at or below it, which is in the leaf that
// its key leads to, or (nothing of that leaf lies below it) in one further left.
//
// Not safe for changes from several threads; any number may read once changes are over.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <span>
#include <vector>

namespace memlens::objects {

inline constexpr uint64_t kForever = UINT64_MAX;
inline constexpr uint64_t kLatest = UINT64_MAX - 1;  // the greatest time that a record may have

class VersionTree {
 public:
  static constexpr uint32_t kLong = UINT32_MAX;  // a length that does not fit: ask the object

  struct Entry {
    uint64_t base = 0;
    uint32_t length = 0;
    uint32_t id = 0;  // 0 = none
  };

  // 63 entries: header and keys fill 8 cache lines, the rest 24.
  static constexpr int kCapacity = 63;
  static constexpr size_t kKeyLines = (kCapacity + 1) / 8;
  struct alignas(64) Node {
    uint16_t count = 0, live = 0;
    uint8_t leaf = 1;
    uint8_t above_leaves = 0;  // its children are leaves
    uint64_t key[kCapacity];
    struct Version {
      uint64_t born, died;
      uint64_t payload;  // leaf: length << 32 | id; above: the child
    } version[kCapacity];
  };

  class NodePool {
   public:
    Node* make(bool leaf);
    size_t nodes() const { return used_; }
    // Every node is gone; no tree may be left.
    void clear() { chunks_.clear(), used_ = room_ = 0; }
    // Every entry's id becomes new_id[id]; 0 = it is none any more.
    void renumber(const std::vector<uint32_t>& new_id);

   private:
    // Small at first; then as large as a huge page, which spares a look-up most of its TLB misses.
    static constexpr size_t kFirstNodes = 16, kHugeBytes = size_t{2} << 20;
    struct Free {
      void operator()(void* memory) const { std::free(memory); }
    };
    std::vector<std::unique_ptr<Node, Free>> chunks_;
    size_t used_ = 0, room_ = 0;  // nodes: in use, left in the last chunk
    Node* next_ = nullptr;
  };

  explicit VersionTree(NodePool& pool);

  // `bytes` >= 1; nothing that is valid now may overlap it.
  void insert(uint64_t base, uint64_t bytes, uint32_t id, uint64_t now);
  // The same, but false and no change if something overlaps it, or may.
  bool insert_if_free(uint64_t base, uint64_t bytes, uint32_t id, uint64_t now);
  // Ends what begins at `base` now; gives its id, 0 = nothing does.
  uint32_t erase(uint64_t base, uint64_t now) {
    return erase(base, now, [](uint32_t) { return false; });
  }
  // The same; where `is_forgotten(id)` as if it had never been there.
  template <typename IsForgotten>
  uint32_t erase(uint64_t base, uint64_t now, IsForgotten&& is_forgotten) {
    int at;
    const uint32_t id = find_live(base, at);
    if (id != 0) end_found(at, now, is_forgotten(id));
    return id;
  }
  // Ends everything; gives the ids.
  std::vector<uint32_t> clear(uint64_t now);

  Entry predecessor(uint64_t key, uint64_t time) const;  // greatest base <= key
  Entry successor(uint64_t key, uint64_t time) const;    // smallest base > key

  // Brings into the cache what a change at `key` will read, in three steps that are some other changes apart. Only hints: between them
  // the tree may change in any way, but for the pool's clear().
  class Ahead {
   public:
    void reach(const VersionTree& tree, uint64_t key);  // the leaf
    void search();                                      // the entry in it
    uint32_t id() const { return entry_ == nullptr ? 0 : static_cast<uint32_t>(entry_->payload); }

   private:
    const Node* leaf_ = nullptr;
    const Node::Version* entry_ = nullptr;
    uint64_t key_ = 0;
  };

  // A probe asks for predecessor(key, time). Many under way at once hide the memory's latency:
  // when one is answered the next takes its place.
  struct Probe {
    const VersionTree* tree;  // not null
    uint64_t key, time;
    Entry found;
  };
  static void predecessors(std::span<Probe> probes);

 private:
  struct Item {
    uint64_t key;
    Node::Version version;
  };
  struct Root {
    uint64_t since;
    Node* node;
  };
  struct Step {
    Node* node;
    int slot;  // of this node in its parent
  };
  static constexpr int kSplit = kCapacity / 2;
  static constexpr int kLeast = kCapacity / 8;

  const Node* root_at(uint64_t time) const;
  const Node* descend(uint64_t key, uint64_t time, uint64_t* low, uint64_t* high) const;
  void find_path(uint64_t key);
  uint32_t find_live(uint64_t base, int& at);
  void end_found(int at, uint64_t now, bool is_forgotten);
  void put_at_path(uint64_t base, uint64_t bytes, uint32_t id, uint64_t now);
  void restructure(size_t depth, std::span<const Item> extra, uint64_t now);
  void shrink(size_t depth, uint64_t now);
  void set_root(Node* node, uint64_t now);

  NodePool& pool_;
  std::vector<Root> roots_;
  std::vector<Step> path_;  // from the root to a leaf, of the change under way
};

}  // namespace memlens::objects
