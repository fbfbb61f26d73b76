#include "version_tree.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <new>

namespace memlens::objects {
namespace {

using Node = VersionTree::Node;

// Number of keys <= key.
inline int keys_up_to(const Node& node, uint64_t key) {
  const uint64_t* base = node.key;
  int left = node.count;
  if (left == 0) return 0;
  while (left > 1) {
    const int half = left >> 1;
    base += static_cast<size_t>(half) & -static_cast<size_t>(base[half - 1] <= key);  // no branch: it would be a guess
    left -= half;
  }
  return static_cast<int>(base - node.key) + (*base <= key ? 1 : 0);
}

inline bool valid(const Node::Version& version, uint64_t time) { return version.born <= time && time < version.died; }

inline Node* child_of(const Node::Version& version) { return reinterpret_cast<Node*>(version.payload); }
inline uint64_t payload_of(const Node* node) { return reinterpret_cast<uint64_t>(node); }

inline VersionTree::Entry entry_of(const Node& node, int at) {
  const uint64_t payload = node.version[at].payload;
  return {node.key[at], static_cast<uint32_t>(payload >> 32), static_cast<uint32_t>(payload)};
}

void put(Node& node, uint64_t key, const Node::Version& version) {
  const int at = keys_up_to(node, key);  // after equal keys: the newest is met first on the way back
  const size_t behind = static_cast<size_t>(node.count - at);
  memmove(node.key + at + 1, node.key + at, behind * sizeof node.key[0]);
  memmove(node.version + at + 1, node.version + at, behind * sizeof node.version[0]);
  node.key[at] = key;
  node.version[at] = version;
  ++node.count;
  ++node.live;
}

// Ends an entry; one that was not valid for any time is taken out.
void end_entry(Node& node, int at, uint64_t now) {
  --node.live;
  if (node.version[at].born < now) {
    node.version[at].died = now;
    return;
  }
  const size_t behind = static_cast<size_t>(node.count - at - 1);
  memmove(node.key + at, node.key + at + 1, behind * sizeof node.key[0]);
  memmove(node.version + at, node.version + at + 1, behind * sizeof node.version[0]);
  --node.count;
}

}  // namespace

VersionTree::Node* VersionTree::NodePool::make(bool leaf) {
  if (room_ == 0) {
    const size_t bytes = chunks_.empty() ? kFirstNodes * sizeof(Node) : kHugeBytes;
    void* memory = std::aligned_alloc(chunks_.empty() ? alignof(Node) : kHugeBytes, bytes);
    if (memory == nullptr) throw std::bad_alloc();
    if (!chunks_.empty()) madvise(memory, bytes, MADV_HUGEPAGE);  // a wish: it works without
    next_ = static_cast<Node*>(memory);
    chunks_.emplace_back(next_);
    room_ = bytes / sizeof(Node);
  }
  --room_;
  ++used_;
  Node* node = new (next_++) Node;  // its entries stay as they are until they are used
  node->leaf = leaf ? 1 : 0;
  return node;
}

VersionTree::VersionTree(NodePool& pool) : pool_(pool) { roots_.push_back({0, pool_.make(true)}); }

void VersionTree::set_root(Node* node, uint64_t now) {
  if (roots_.back().since == now) roots_.back().node = node;
  else roots_.push_back({now, node});
}

const VersionTree::Node* VersionTree::root_at(uint64_t time) const {
  if (time >= roots_.back().since) return roots_.back().node;
  const auto after = std::upper_bound(roots_.begin(), roots_.end(), time,
                                      [](uint64_t at, const Root& root) { return at < root.since; });
  return std::prev(after)->node;  // the first is since 0
}

// ---- reading ---------------------------------------------------------------------------

// The leaf that a key leads to; the keys in [low, high) lead to it (high 0 = no end).
const VersionTree::Node* VersionTree::descend(uint64_t key, uint64_t time, uint64_t* low, uint64_t* high) const {
  const Node* node = root_at(time);
  *low = *high = 0;
  while (!node->leaf) {
    const int after = keys_up_to(*node, key);
    int at = after - 1;
    while (at >= 0 && !valid(node->version[at], time)) --at;
    if (at < 0) return nullptr;  // not reached: the leftmost child begins at the node's low end
    *low = node->key[at];
    for (int next = after; next < node->count; ++next)
      if (valid(node->version[next], time)) {
        *high = node->key[next];
        break;
      }
    node = child_of(node->version[at]);
  }
  return node;
}

VersionTree::Entry VersionTree::predecessor(uint64_t key, uint64_t time) const {
  for (;;) {
    uint64_t low, high;
    const Node* leaf = descend(key, time, &low, &high);
    if (leaf == nullptr) return {};
    for (int at = keys_up_to(*leaf, key) - 1; at >= 0; --at)
      if (valid(leaf->version[at], time)) return entry_of(*leaf, at);
    if (low == 0) return {};
    key = low - 1;
  }
}

VersionTree::Entry VersionTree::successor(uint64_t key, uint64_t time) const {
  if (key == UINT64_MAX) return {};
  for (uint64_t from = key + 1;;) {
    uint64_t low, high;
    const Node* leaf = descend(from, time, &low, &high);
    if (leaf == nullptr) return {};
    // Entries that the leaf took over from its right neighbour were valid before too: still the answer.
    for (int at = from == 0 ? 0 : keys_up_to(*leaf, from - 1); at < leaf->count; ++at)
      if (valid(leaf->version[at], time)) return entry_of(*leaf, at);
    if (high == 0) return {};
    from = high;
  }
}

void VersionTree::predecessors(std::span<Probe> probes) {
  constexpr size_t kUnderWay = 16;
  struct Walk {
    Probe* probe;
    const Node* node;
    uint64_t key, low;
    int at;
  };
  Walk walks[kUnderWay];
  size_t active = 0, next = 0;
  const auto begin = [&](Walk& walk, Probe* probe, uint64_t key) {
    walk = {probe, probe->tree->root_at(probe->time), key, 0, 0};
    __builtin_prefetch(walk.node);
  };
  while (active < kUnderWay && next < probes.size()) {
    probes[next].found = {};
    begin(walks[active++], &probes[next], probes[next].key);
    ++next;
  }
  while (active > 0) {
    // Each level in two rounds: find the place among the keys, then look at the versions there.
    for (size_t i = 0; i < active; ++i) {
      Walk& walk = walks[i];
      walk.at = keys_up_to(*walk.node, walk.key);
      const Node::Version* version = walk.node->version + (walk.at > 1 ? walk.at - 2 : 0);
      __builtin_prefetch(version);
      __builtin_prefetch(version + 2);
    }
    for (size_t i = 0; i < active;) {
      Walk& walk = walks[i];
      const Node* node = walk.node;
      const uint64_t time = walk.probe->time;
      int at = walk.at - 1;
      while (at >= 0 && !valid(node->version[at], time)) --at;
      if (!node->leaf && at >= 0) {
        walk.low = node->key[at];
        walk.node = child_of(node->version[at]);
        const char* keys = reinterpret_cast<const char*>(walk.node);
        for (size_t line = 0; line < kKeyLines; ++line) __builtin_prefetch(keys + 64 * line);
        ++i;
      } else if (node->leaf && at < 0 && walk.low != 0) {
        begin(walk, walk.probe, walk.low - 1);  // nothing of this leaf lies below the key: one further left
        ++i;
      } else {
        if (at >= 0) walk.probe->found = entry_of(*node, at);
        if (next < probes.size()) {
          probes[next].found = {};
          begin(walk, &probes[next], probes[next].key);
          ++next;
          ++i;
        } else {
          walk = walks[--active];  // it has had its first round already, as this one had
        }
      }
    }
  }
}

void VersionTree::Ahead::reach(const VersionTree& tree, uint64_t key) {
  leaf_ = nullptr;
  entry_ = nullptr;
  key_ = key;
  const Node* node = tree.roots_.back().node;
  while (!node->leaf) {
    int at = keys_up_to(*node, key) - 1;
    while (at > 0 && node->version[at].died != kForever) --at;
    if (at < 0) return;
    const Node* child = child_of(node->version[at]);
    if (node->above_leaves) {
      const char* keys = reinterpret_cast<const char*>(child);
      for (size_t line = 0; line <= kKeyLines; ++line) __builtin_prefetch(keys + 64 * line);
      leaf_ = child;
      return;
    }
    node = child;
  }
}

void VersionTree::Ahead::search() {
  if (leaf_ == nullptr) return;
  const int at = keys_up_to(*leaf_, key_) - 1;
  if (at < 0) return;
  entry_ = &leaf_->version[at];
  __builtin_prefetch(entry_);
  __builtin_prefetch(reinterpret_cast<const char*>(entry_) + 23);
}

// ---- changing ----------------------------------------------------------------------------

void VersionTree::find_path(uint64_t key) {
  path_.clear();
  Node* node = roots_.back().node;
  path_.push_back({node, 0});
  while (!node->leaf) {
    int at = keys_up_to(*node, key) - 1;
    while (at > 0 && node->version[at].died != kForever) --at;
    node = child_of(node->version[at]);
    path_.push_back({node, at});
  }
}

void VersionTree::insert(uint64_t base, uint64_t bytes, uint32_t id, uint64_t now) {
  find_path(base);
  put_at_path(base, bytes, id, now);
}

bool VersionTree::insert_if_free(uint64_t base, uint64_t bytes, uint32_t id, uint64_t now) {
  find_path(base);
  const Node& leaf = *path_.back().node;
  const int after = keys_up_to(leaf, base);
  int before = after - 1;
  while (before >= 0 && leaf.version[before].died != kForever) --before;
  if (before >= 0) {
    const Entry entry = entry_of(leaf, before);
    if (entry.length == kLong || base - entry.base < entry.length) return false;
  } else if (path_.size() > 1 && path_[path_.size() - 2].node->key[path_.back().slot] != 0) {
    return false;  // the one before it lies in a leaf further left
  }
  int next = after;
  while (next < leaf.count && leaf.version[next].died != kForever) ++next;
  if (next < leaf.count) {
    if (leaf.key[next] - base < bytes) return false;
  } else {
    // The next leaf begins at the next key of the lowest level that has one.
    for (size_t depth = path_.size() - 1; depth > 0; --depth) {
      const Node& parent = *path_[depth - 1].node;
      int at = path_[depth].slot + 1;
      while (at < parent.count && parent.version[at].died != kForever) ++at;
      if (at == parent.count) continue;
      if (parent.key[at] - base < bytes) return false;
      break;
    }
  }
  put_at_path(base, bytes, id, now);
  return true;
}

void VersionTree::put_at_path(uint64_t base, uint64_t bytes, uint32_t id, uint64_t now) {
  const uint64_t length = bytes < kLong ? bytes : kLong;
  const Node::Version version{now, kForever, length << 32 | id};
  Node& leaf = *path_.back().node;
  if (leaf.count < kCapacity) {
    put(leaf, base, version);
  } else {
    const Item extra{base, version};
    restructure(path_.size() - 1, {&extra, 1}, now);
  }
}

// What begins at `base` and lives: its id and its place in the leaf that path_ leads to.
uint32_t VersionTree::find_live(uint64_t base, int& at) {
  find_path(base);
  const Node& leaf = *path_.back().node;
  at = keys_up_to(leaf, base) - 1;
  while (at >= 0 && leaf.key[at] == base && leaf.version[at].died != kForever) --at;
  return at < 0 || leaf.key[at] != base ? 0 : static_cast<uint32_t>(leaf.version[at].payload);
}

void VersionTree::end_found(int at, uint64_t now, bool is_forgotten) {
  Node& leaf = *path_.back().node;
  end_entry(leaf, at, is_forgotten ? leaf.version[at].born : now);
  if (leaf.live < kLeast && path_.size() > 1) shrink(path_.size() - 1, now);
}

void VersionTree::NodePool::renumber(const std::vector<uint32_t>& new_id) {
  for (size_t chunk = 0; chunk < chunks_.size(); ++chunk) {
    const size_t room = chunk + 1 == chunks_.size() ? room_ : 0;
    const size_t nodes = (chunk == 0 ? kFirstNodes : kHugeBytes / sizeof(Node)) - room;
    for (size_t i = 0; i < nodes; ++i) {
      Node& node = chunks_[chunk].get()[i];
      if (!node.leaf) continue;
      for (int at = 0; at < node.count; ++at) {
        uint64_t& payload = node.version[at].payload;
        payload = (payload >> 32) << 32 | new_id[static_cast<uint32_t>(payload)];
      }
    }
  }
}

std::vector<uint32_t> VersionTree::clear(uint64_t now) {
  std::vector<uint32_t> ids;
  std::vector<const Node*> waiting = {roots_.back().node};
  while (!waiting.empty()) {
    const Node* node = waiting.back();
    waiting.pop_back();
    for (int at = 0; at < node->count; ++at) {
      if (node->version[at].died != kForever) continue;
      if (node->leaf) ids.push_back(static_cast<uint32_t>(node->version[at].payload));
      else waiting.push_back(child_of(node->version[at]));
    }
  }
  if (!ids.empty()) set_root(pool_.make(true), now);
  return ids;
}

// The node at `depth` has too little: it and a neighbour become one.
void VersionTree::shrink(size_t depth, uint64_t now) {
  Node& parent = *path_[depth - 1].node;
  const int slot = path_[depth].slot;
  const auto live_before = [&](int at) {
    while (at >= 0 && parent.version[at].died != kForever) --at;
    return at;
  };
  int left = live_before(slot - 1), right = slot;
  if (left < 0) {
    left = slot;
    right = slot + 1;
    while (right < parent.count && parent.version[right].died != kForever) ++right;
    if (right >= parent.count) return;  // an only child
  }
  Node& keeper = *child_of(parent.version[left]);
  const Node& other = *child_of(parent.version[right]);
  if (keeper.count + other.live > kCapacity) {
    restructure(depth, {}, now);
    return;
  }
  for (int at = 0; at < other.count; ++at)
    if (other.version[at].died == kForever) put(keeper, other.key[at], other.version[at]);
  end_entry(parent, right, now);
  if (depth == 1) {
    if (parent.live == 1) {
      int only = live_before(parent.count - 1);
      set_root(child_of(parent.version[only]), now);
    }
  } else if (parent.live < kLeast) {
    shrink(depth - 1, now);
  }
}

// Replaces the node at `depth` by one or two that hold what is valid now and `extra`; takes a
// neighbour in if that is little.
void VersionTree::restructure(size_t depth, std::span<const Item> extra, uint64_t now) {
  Item items[2 * kCapacity + 4];
  int count = 0;
  const Node& node = *path_[depth].node;
  const bool leaf = node.leaf != 0;
  const auto take = [&](const Node& from) {
    for (int at = 0; at < from.count; ++at)
      if (from.version[at].died == kForever) items[count++] = {from.key[at], from.version[at]};
  };
  Node* parent = depth > 0 ? path_[depth - 1].node : nullptr;
  int ended[2] = {depth > 0 ? path_[depth].slot : -1, -1};  // slots in the parent
  uint64_t low = parent != nullptr ? parent->key[ended[0]] : 0;
  take(node);
  for (const Item& item : extra) items[count++] = item;
  if (count < 2 * kLeast && parent != nullptr) {
    int neighbour = ended[0] - 1;
    while (neighbour >= 0 && parent->version[neighbour].died != kForever) --neighbour;
    if (neighbour < 0) {
      neighbour = ended[0] + 1;
      while (neighbour < parent->count && parent->version[neighbour].died != kForever) ++neighbour;
      if (neighbour >= parent->count) neighbour = -1;
    }
    if (neighbour >= 0) {
      take(*child_of(parent->version[neighbour]));
      ended[1] = neighbour;
      low = std::min(low, parent->key[neighbour]);
    }
  }
  std::stable_sort(items, items + count, [](const Item& a, const Item& b) { return a.key < b.key; });

  Item made[2];
  const int parts = count > kSplit ? 2 : 1;
  for (int part = 0, at = 0; part < parts; ++part) {
    Node* fresh = pool_.make(leaf);
    fresh->above_leaves = node.above_leaves;
    const int end = part + 1 == parts ? count : count / 2;
    made[part] = {part == 0 ? low : items[at].key, {now, kForever, payload_of(fresh)}};
    for (; at < end; ++at) {
      fresh->key[fresh->count] = items[at].key;
      fresh->version[fresh->count++] = items[at].version;
    }
    fresh->live = fresh->count;
  }
  if (parent == nullptr) {
    if (parts == 1) {
      set_root(child_of(made[0].version), now);
    } else {
      Node* root = pool_.make(false);
      root->above_leaves = leaf ? 1 : 0;
      for (const Item& item : made) put(*root, item.key, item.version);
      set_root(root, now);
    }
    return;
  }
  if (ended[0] < ended[1]) std::swap(ended[0], ended[1]);  // from the back: taking one out moves those behind it
  for (int slot : ended)
    if (slot >= 0) end_entry(*parent, slot, now);
  if (parent->count + parts > kCapacity) {
    restructure(depth - 1, {made, static_cast<size_t>(parts)}, now);
    return;
  }
  for (int part = 0; part < parts; ++part) put(*parent, made[part].key, made[part].version);
  if (depth == 1) {
    if (parent->live == 1) set_root(child_of(made[0].version), now);
  } else if (parent->live < kLeast) {
    shrink(depth - 1, now);
  }
}

}  // namespace memlens::objects
