#include "memgaze_tree.h"

#include <algorithm>
#include <array>
#include <bit>
#include <map>
#include <memory>
#include <stdexcept>

namespace memlens::locality {

namespace {

constexpr size_t kLeaf = 8;
constexpr unsigned kConstant = 0, kClasses = 5;
constexpr uint32_t kLowest = 3;

struct Access {
  uint64_t address;
  uint64_t constants;
  uint32_t sample;
  uint8_t kind;
};

struct Address {
  uint64_t address;
  std::array<uint32_t, kClasses> by_class;  // the constants of an address count only in the last leaf, see `join`
};

struct Node {
  std::vector<Address> addresses;  // ascending
  uint64_t accesses = 0, constants = 0;
  // What the table takes of the node, in the order in which its printer walks: itself, left, right.
  struct Row {
    uint64_t size, constants;
    double footprint, strided, irregular, unknown;
    bool is_in_sample;
  };
  std::vector<Row> rows;
};

// Constants go with the next access that is none. Those at the end of a sample go with its last one if the next sample
// begins with a constant; of several constants at a sample's begin only the last one is kept.
std::vector<Access> without_constants(std::span<const uint64_t> addresses, std::span<const uint8_t> classes,
                                      std::span<const uint32_t> implied, std::span<const uint64_t> samples) {
  std::vector<Access> trace;
  uint64_t number = 0, pending = 0;
  uint32_t sample = 0;
  bool has_last = false;
  for (size_t i = 0; i < addresses.size(); ++i) {
    if (classes[i] >= kClasses) throw std::invalid_argument("a class is 0 to 4");
    if (classes[i] == kConstant) {
      if (number != 0 && number != samples[i]) {
        if (has_last) trace.back().constants += pending;
        has_last = false;
        pending = 0;
      }
      pending += uint64_t{implied[i]} + 1;
      continue;
    }
    if (number != 0 && number != samples[i]) ++sample;
    number = samples[i];
    trace.push_back({addresses[i], implied[i] + pending, sample, classes[i]});
    pending = 0;
    has_last = true;
  }
  return trace;
}

void describe(Node& node) {
  Node::Row row{
      node.accesses + node.constants, node.constants, static_cast<double>(node.addresses.size()), 0, 0, 0, false};
  double* const shares[kClasses] = {nullptr, &row.strided, &row.irregular, &row.unknown, nullptr};
  for (const Address& address : node.addresses) {
    double total = 0;
    for (const uint32_t count : address.by_class) total += count;
    for (unsigned kind = 0; kind < kClasses; ++kind)
      if (shares[kind] != nullptr && address.by_class[kind] != 0) *shares[kind] += address.by_class[kind] / total;
  }
  node.rows.insert(node.rows.begin(), row);
}

std::unique_ptr<Node> leaf_of(std::span<const Access> accesses) {
  auto leaf = std::make_unique<Node>();
  for (const Access& access : accesses) {
    auto at = std::lower_bound(leaf->addresses.begin(), leaf->addresses.end(), access.address,
                               [](const Address& entry, uint64_t address) { return entry.address < address; });
    if (at == leaf->addresses.end() || at->address != access.address)
      at = leaf->addresses.insert(at, {access.address, {}});
    ++at->by_class[access.kind];
    at->by_class[kConstant] += static_cast<uint32_t>(access.constants);
    leaf->constants += access.constants;
    ++leaf->accesses;
  }
  describe(*leaf);
  return leaf;
}

// A node of two, or of one. The left side is counted anew from its accesses, without what goes with them: constants
// dilute the classes of an address only along the right edge.
std::unique_ptr<Node> join(std::unique_ptr<Node> left, std::unique_ptr<Node> right) {
  auto node = std::make_unique<Node>();
  node->accesses = left->accesses;
  node->constants = left->constants;
  for (Address& address : left->addresses) address.by_class[kConstant] = 0;
  if (right == nullptr) {
    node->addresses.swap(left->addresses);
    node->rows.swap(left->rows);
    describe(*node);
    return node;
  }
  node->accesses += right->accesses;
  node->constants += right->constants;
  node->addresses.reserve(left->addresses.size() + right->addresses.size());
  auto a = left->addresses.begin(), b = right->addresses.begin();
  while (a != left->addresses.end() || b != right->addresses.end()) {
    if (b == right->addresses.end() || (a != left->addresses.end() && a->address < b->address)) {
      node->addresses.push_back(*a++);
    } else if (a == left->addresses.end() || b->address < a->address) {
      node->addresses.push_back(*b++);
    } else {
      Address both = *a++;
      for (unsigned kind = 0; kind < kClasses; ++kind) both.by_class[kind] += b->by_class[kind];
      ++b;
      node->addresses.push_back(both);
    }
  }
  node->rows.swap(left->rows);
  node->rows.insert(node->rows.end(), right->rows.begin(), right->rows.end());
  describe(*node);
  return node;
}

std::unique_ptr<Node> tree_of(std::vector<std::unique_ptr<Node>> nodes) {
  while (nodes.size() > 1) {
    std::vector<std::unique_ptr<Node>> above;
    for (size_t at = 0; at < nodes.size(); at += 2)
      above.push_back(join(std::move(nodes[at]), at + 1 < nodes.size() ? std::move(nodes[at + 1]) : nullptr));
    nodes = std::move(above);
  }
  return nodes.empty() ? nullptr : std::move(nodes.front());
}

uint32_t level_of(uint64_t size) { return size <= 8 ? kLowest : static_cast<uint32_t>(std::bit_width(size - 1)); }

}  // namespace

MemgazeTable memgaze_table(std::span<const uint64_t> addresses, std::span<const uint8_t> classes,
                           std::span<const uint32_t> implied, std::span<const uint64_t> samples, uint64_t period) {
  if (classes.size() != addresses.size() || implied.size() != addresses.size() || samples.size() != addresses.size())
    throw std::invalid_argument("columns of different lengths");
  const std::vector<Access> trace = without_constants(addresses, classes, implied, samples);
  MemgazeTable table;
  std::vector<std::unique_ptr<Node>> forest;
  for (size_t begin = 0; begin < trace.size();) {
    std::vector<std::unique_ptr<Node>> leaves;
    size_t end = begin;
    while (end < trace.size() && trace[end].sample == trace[begin].sample) {
      const size_t first = end;
      while (end < trace.size() && end - first < kLeaf && trace[end].sample == trace[begin].sample) ++end;
      leaves.push_back(leaf_of({trace.data() + first, end - first}));
    }
    forest.push_back(tree_of(std::move(leaves)));
    // Below the sample's own node everything is in a sample.
    for (size_t at = 1; at < forest.back()->rows.size(); ++at) forest.back()->rows[at].is_in_sample = true;
    begin = end;
  }
  table.samples = forest.size();
  table.accesses = trace.size();
  for (const Access& access : trace) table.loads += 1 + access.constants;
  if (table.samples > 1)
    table.multiplier = std::max(1.0, static_cast<double>(table.samples - 1) * static_cast<double>(period) /
                                         static_cast<double>(table.loads));
  const std::unique_ptr<Node> root = tree_of(std::move(forest));
  std::map<uint32_t, MemgazeLevel> levels;
  if (root != nullptr)
    for (const Node::Row& row : root->rows) {
      MemgazeLevel& level = levels[level_of(row.size)];
      level.level = level_of(row.size);
      ++level.nodes;
      level.is_scaled = !row.is_in_sample;
      level.window += static_cast<double>(row.size);
      level.footprint += row.footprint;
      level.strided += row.strided;
      level.irregular += row.irregular;
      level.unknown += row.unknown;
      level.constants += static_cast<double>(row.constants);
    }
  for (const auto& [number, level] : levels) table.levels.push_back(level);
  return table;
}

}  // namespace memlens::locality
