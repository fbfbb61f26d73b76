#include "interval_tree.h"

#include <algorithm>
#include <bit>

#include "footprint.h"

namespace memlens::locality {

namespace {
constexpr uint64_t kFirstEntries = 1 << 10;
constexpr size_t kAhead = 16;  // accesses whose entries are asked for before they are used
constexpr uint8_t kConstant = static_cast<uint8_t>(AccessClass::kConstant);
constexpr uint8_t kStrided = static_cast<uint8_t>(AccessClass::kStrided);
}  // namespace

void IntervalFigures::add(const IntervalFigures& other) {
  accesses += other.accesses;
  constants += other.constants;
  recorded += other.recorded;
  unknown += other.unknown;
  addresses += other.addresses;
  addresses_strided += other.addresses_strided;
  addresses_irregular += other.addresses_irregular;
  blocks += other.blocks;
  reuses += other.reuses;
  distance_sum += other.distance_sum;
  distance_max = std::max(distance_max, other.distance_max);
  implied += other.implied;
  executed += other.executed;
}

IntervalTree::IntervalTree(uint64_t block_bytes, unsigned leaf_shift, unsigned keep_shift, uint64_t memory_limit_bytes)
    : leaf_shift_(leaf_shift),
      keep_shift_(std::max(keep_shift, leaf_shift)),
      block_shift_(shift_of(block_bytes)),
      limit_(memory_limit_bytes),
      reuse_(block_bytes, memory_limit_bytes) {
  if (leaf_shift > kLeafMost) throw std::invalid_argument("a leaf has at most 64 accesses");
  addresses_.entries.resize(kFirstEntries);
  blocks_.entries.resize(kFirstEntries);
  addresses_.mask = blocks_.mask = kFirstEntries - 1;
}

void IntervalTree::check_memory(uint64_t more) const {
  if (memory_bytes() + more > limit_) throw MemoryLimit(memory_bytes() + more, limit_);
}

uint64_t IntervalTree::memory_bytes() const {
  return addresses_.entries.size() * sizeof(Entry) + blocks_.entries.size() * sizeof(Block) + reuse_.memory_bytes() +
         nodes_.capacity() * sizeof(IntervalNode);
}

template <typename T>
void IntervalTree::grow(Table<T>& table, Place T::* used) {
  check_memory(table.entries.size() * 2 * sizeof(T));
  LargeVector<T> old(table.entries.size() * 2);
  old.swap(table.entries);
  table.mask = table.entries.size() - 1;
  for (const T& entry : old) {
    if ((entry.*used).sample == 0) continue;
    uint64_t at = scatter_all(entry.key) & table.mask;
    while ((table.entries[at].*used).sample != 0) at = (at + 1) & table.mask;
    table.entries[at] = entry;
  }
}

template <typename T>
T& IntervalTree::find(Table<T>& table, uint64_t key, Place T::* used) {
  if ((table.live + 1) * 4 > table.entries.size() * 3) grow(table, used);
  uint64_t at = scatter_all(key) & table.mask;
  while (true) {
    T& entry = table.entries[at];
    if ((entry.*used).sample == 0) {
      entry.key = key;
      ++table.live;
      return entry;
    }
    if (entry.key == key) return entry;
    at = (at + 1) & table.mask;
  }
}

// The smallest level whose window around here holds that place too; kLevels when there is none.
unsigned IntervalTree::first_common(Place before, Place here) {
  if (before.sample == 0) return kLevels;
  if (before.sample == here.sample) return static_cast<unsigned>(std::bit_width(here.at ^ before.at));
  return kSample + static_cast<unsigned>(std::bit_width((here.sample - 1) ^ (before.sample - 1)));
}

void IntervalTree::begin_sample() {
  ++sample_;
  at_ = 0;
  top_window_ = leaf_shift_;
  restart(leaf_shift_);
  sample_nodes_ = nodes_.size();
  recorded_of_sample_.fill(0);
  no_constants_.fill(0);
  reuse_.begin_window();
}

// One more in all levels below `end` that there are so far.
MEMLENS_INLINE void IntervalTree::raise(Counts& counts, unsigned end) const {
  for (unsigned level = leaf_shift_, last = std::min(end, top_window_ + 1); level < last; ++level) ++counts[level];
  for (unsigned level = kSample, last = std::min(end, top_interval_ + 1); level < last; ++level) ++counts[level];
}

// A reuse counts in all windows that hold both accesses, and in the sample.
MEMLENS_INLINE void IntervalTree::reuse_at(unsigned common, uint64_t distance) {
  ++now_.reuses;
  now_.distance_sum += distance;
  open_.distance_max[kSample] = std::max(open_.distance_max[kSample], distance);
  for (unsigned level = std::max(common, leaf_shift_); level <= top_window_; ++level) {
    open_.distance_sum[level] += distance;
    open_.distance_max[level] = std::max(open_.distance_max[level], distance);
  }
}

IntervalFigures IntervalTree::figures_of(unsigned level) const {
  const Totals& since = since_[level];
  IntervalFigures figures;
  figures.accesses = now_.accesses - since.accesses;
  figures.constants = now_.constants - since.constants;
  figures.recorded = now_.recorded - since.recorded;
  figures.unknown = now_.unknown - since.unknown;
  figures.addresses = open_.addresses[level];
  figures.addresses_strided = open_.strided[level];
  figures.addresses_irregular = open_.irregular[level];
  figures.blocks = open_.blocks[level];
  figures.distance_max = open_.distance_max[level];
  if (level < kSample) {
    figures.reuses = figures.recorded - figures.blocks;  // an access is its window's first to a block, or a reuse
    figures.distance_sum = open_.distance_sum[level];
  } else {
    figures.reuses = now_.reuses - since.reuses;
    figures.distance_sum = now_.distance_sum - since.distance_sum;
    figures.implied = static_cast<double>(now_.implied - since.implied);
    figures.executed = now_.executed - since.executed;
  }
  return figures;
}

void IntervalTree::restart(unsigned level) {
  since_[level] = now_;
  for (Counts* counts :
       {&open_.addresses, &open_.strided, &open_.irregular, &open_.blocks, &open_.distance_sum, &open_.distance_max})
    (*counts)[level] = 0;
}

// A first node of twice the size begins: so far it is all that `from` has.
void IntervalTree::open_above(unsigned level, unsigned from) {
  since_[level] = since_[from];
  for (Counts* counts : {&open_.addresses, &open_.strided, &open_.irregular, &open_.blocks, &open_.distance_max})
    (*counts)[level] = (*counts)[from];
  open_.distance_sum[level] = now_.distance_sum - since_[from].distance_sum;
}

// The windows that are full end.
void IntervalTree::end_windows() {
  const bool is_top = at_ == uint64_t{1} << top_window_;
  if (is_top) open_above(top_window_ + 1, kSample);
  for (unsigned level = leaf_shift_, end = static_cast<unsigned>(std::countr_zero(at_)); level <= end; ++level)
    close(level);
  if (is_top) ++top_window_;
}

void IntervalTree::add(std::span<const uint64_t> addresses, std::span<const uint8_t> classes,
                       std::span<const uint32_t> functions, std::span<const uint32_t> implied) {
  distances_.resize(addresses.size());
  reuse_.add(addresses, distances_);
  for (size_t i = 0; i < addresses.size(); ++i) {
    if (i + kAhead < addresses.size()) {
      const uint64_t next = addresses[i + kAhead];
      __builtin_prefetch(&addresses_.entries[scatter_all(next) & addresses_.mask], 1);
      __builtin_prefetch(&blocks_.entries[scatter_all(next >> block_shift_) & blocks_.mask], 1);
    }
    const uint8_t kind = classes[i] & 3u;
    const bool is_constant = kind == kConstant;
    // A window that is full ends before the next access; constants still belong to it.
    if (!is_constant && at_ != 0 && (at_ & ((uint64_t{1} << leaf_shift_) - 1)) == 0) end_windows();
    const uint64_t at = is_constant && at_ != 0 ? at_ - 1 : at_;
    if (at == std::numeric_limits<uint32_t>::max())
      throw std::invalid_argument("a sample has fewer than 2^32 accesses");
    const Place here{sample_, static_cast<uint32_t>(at)};
    Block& block = find(blocks_, addresses[i] >> block_shift_, &Block::last);
    const unsigned common = first_common(block.last, here);
    raise(open_.blocks, common);
    if (distances_[i] < kEarlier) reuse_at(common, distances_[i]);
    block.last = here;
    ++now_.recorded;
    now_.constants += (implied.empty() ? 0 : implied[i]) + uint64_t{is_constant};
    if (is_constant) continue;
    ++now_.accesses;
    now_.unknown += kind == 0;
    const unsigned irregular = kind != kStrided;
    Entry& entry = find(addresses_, addresses[i], &Entry::any);
    raise(open_.addresses, first_common(entry.any, here));
    raise(irregular ? open_.irregular : open_.strided, first_common(entry.of_class[irregular], here));
    entry.any = entry.of_class[irregular] = here;
    if (!functions.empty()) leaf_.push_back({addresses[i], functions[i], static_cast<uint8_t>(irregular)});
    ++at_;
  }
}

void IntervalTree::note(NodeKind kind, unsigned shift, const IntervalFigures& figures) {
  IntervalNode node;
  node.kind = kind;
  node.shift = static_cast<uint8_t>(shift);
  node.first_sample = sample_ - 1;
  node.figures = figures;
  if (kind == NodeKind::kWindow) node.begin = at_ == 0 ? 0 : (at_ - 1) >> shift << shift;
  if (kind == NodeKind::kInterval) {
    node.first_sample = (sample_ - 1) >> shift << shift;
    node.samples = sample_ - node.first_sample;
  }
  if (nodes_.size() == nodes_.capacity()) check_memory(nodes_.capacity() * sizeof(IntervalNode));
  nodes_.push_back(node);
}

// Functions of a leaf window: so few accesses that comparing all pairs is the quickest.
void IntervalTree::close_leaf() {
  std::stable_sort(leaf_.begin(), leaf_.end(), [](const Small& a, const Small& b) { return a.function < b.function; });
  for (size_t begin = 0; begin < leaf_.size();) {
    IntervalFigures figures;
    size_t end = begin;
    for (; end < leaf_.size() && leaf_[end].function == leaf_[begin].function; ++end) {
      bool is_new = true, is_new_in_class = true;
      for (size_t before = begin; before < end; ++before)
        if (leaf_[before].address == leaf_[end].address) {
          is_new = false;
          if (leaf_[before].is_irregular == leaf_[end].is_irregular) is_new_in_class = false;
        }
      ++figures.accesses;
      figures.addresses += is_new;
      (leaf_[end].is_irregular ? figures.addresses_irregular : figures.addresses_strided) += is_new_in_class;
    }
    figures.recorded = figures.accesses;
    functions_.sums.add(figures);
    functions_.footprint += figures.addresses;
    ++functions_.nodes;
    if (keep_shift_ == leaf_shift_) {
      note(NodeKind::kFunction, leaf_shift_, figures);
      nodes_.back().begin = at_ == 0 ? 0 : (at_ - 1) >> leaf_shift_ << leaf_shift_;
      nodes_.back().function = leaf_[begin].function;
    }
    begin = end;
  }
  leaf_.clear();
}

// Ends the open window of a size.
void IntervalTree::close(unsigned level) {
  const IntervalFigures figures = figures_of(level);
  if (level == leaf_shift_) close_leaf();
  if (figures.recorded == 0) return;
  const uint64_t whole = uint64_t{1} << level;
  if (figures.accesses == whole) {
    levels_[level].sums.add(figures);
    levels_[level].footprint += figures.footprint();
    ++levels_[level].nodes;
    recorded_of_sample_[level] += figures.recorded;
    no_constants_[level] += figures.constants == 0;
  }
  if (level >= keep_shift_ && (level == leaf_shift_ || figures.accesses > whole / 2))
    note(NodeKind::kWindow, level, figures);
  restart(level);
}

void IntervalTree::end_sample(double executed, uint64_t implied) {
  for (unsigned level = leaf_shift_; level <= top_window_; ++level) close(level);
  now_.implied += implied;
  now_.executed += executed;
  for (unsigned level = kSample + 1; level <= top_interval_; ++level)
    open_.distance_max[level] = std::max(open_.distance_max[level], open_.distance_max[kSample]);
  const uint64_t recorded = now_.recorded - since_[kSample].recorded;
  const double share = recorded == 0 ? 0 : static_cast<double>(implied) / static_cast<double>(recorded);
  // A window as large as the sample is the sample.
  size_t kept = sample_nodes_;
  for (size_t at = sample_nodes_; at < nodes_.size(); ++at) {
    IntervalNode node = nodes_[at];
    if (node.kind == NodeKind::kWindow && node.figures.recorded == recorded) continue;
    node.figures.implied = share * static_cast<double>(node.figures.recorded);
    nodes_[kept++] = node;
  }
  nodes_.resize(kept);
  for (unsigned level = leaf_shift_; level <= top_window_ && implied != 0; ++level) {
    levels_[level].sums.implied += share * static_cast<double>(recorded_of_sample_[level]);
    levels_[level].footprint += no_constants_[level];
  }
  if (sample_ == uint64_t{1} << (top_interval_ - kSample)) {
    open_above(top_interval_ + 1, top_interval_);
    ++top_interval_;
  }
  for (unsigned level = kSample; level < top_interval_; ++level) {
    const unsigned shift = level - kSample;
    if ((sample_ & ((uint64_t{1} << shift) - 1)) != 0) break;
    const IntervalFigures figures = figures_of(level);
    levels_[level].sums.add(figures);
    levels_[level].footprint += figures.footprint();
    ++levels_[level].nodes;
    note(level == kSample ? NodeKind::kSample : NodeKind::kInterval, shift, figures);
    restart(level);
  }
}

void IntervalTree::finish() {
  for (unsigned level = kSample + 1; level <= top_interval_; ++level) {
    const uint64_t whole = uint64_t{1} << (level - kSample);
    if ((sample_ & (whole - 1)) > whole / 2) note(NodeKind::kInterval, level - kSample, figures_of(level));
  }
}

std::vector<IntervalLevel> IntervalTree::levels() const {
  std::vector<IntervalLevel> found;
  if (functions_.nodes != 0) {
    found.push_back(functions_);
    found.back().kind = NodeKind::kFunction;
    found.back().shift = static_cast<uint8_t>(leaf_shift_);
  }
  for (unsigned level = leaf_shift_; level < kLevels; ++level) {
    if (levels_[level].nodes == 0) continue;
    found.push_back(levels_[level]);
    found.back().kind = level < kSample    ? NodeKind::kWindow
                        : level == kSample ? NodeKind::kSample
                                           : NodeKind::kInterval;
    found.back().shift = static_cast<uint8_t>(level < kSample ? level : level - kSample);
  }
  return found;
}

}  // namespace memlens::locality
