// Forgets objects that no sum, table or look-up of totals asks for any more: ended ones of the heap below the size of a page.
//
// The sums have them already (SiteTotals). Kept are: what lives, what is larger (pages of faults), sampled ones (their errors need them
// at the end), what a fork may have handed on to a child, what a realloc is about to continue or a kept object continues, and the largest.
#include <algorithm>
#include <numeric>

#include "object_table.h"

namespace memlens::objects {
namespace {

Layer layer_of(Kind kind) {
  switch (kind) {
    case Kind::heap: return Layer::heap;
    case Kind::memlens: return Layer::memlens;
    case Kind::variable:
    case Kind::thread_local_variable: return Layer::variable;
    case Kind::stack: return Layer::stack;
    case Kind::file: return Layer::file;
    default: return Layer::mmap;
  }
}

}  // namespace

void ObjectTable::forget() {
  const std::vector<uint8_t> keep = worth_keeping();
  std::vector<uint32_t> new_id(columns_.size() + 1, 0);
  uint32_t kept = 0;
  for (size_t row = 0; row < keep.size(); ++row)
    if (keep[row] != 0) new_id[row + 1] = ++kept;
  renumber(new_id);
  for (size_t row = 0; row < keep.size(); ++row) {
    if (keep[row] == 0) continue;
    Row& moved = columns_.rows[new_id[row + 1] - 1];
    moved = columns_.rows[row];
    moved.previous = new_id[moved.previous];
  }
  columns_.rows.resize(kept);
  // From now on what ends and is to be forgotten leaves no trace in the trees.
  if (is_forgetting_) pool_.renumber(new_id);
  else rebuild_trees();
  is_forgetting_ = true;
  forget_at_ = std::max(most_rows_, 2 * columns_.size());
}

bool ObjectTable::is_forgettable(uint32_t row, uint64_t died_ns) const {
  if (columns_.kind[row] != static_cast<uint8_t>(Kind::heap) || columns_.bytes[row] >= page_bytes_ ||
      columns_.weight_bytes[row] != 0)
    return false;
  if (forks_.empty()) return true;
  const auto found = forks_.find(columns_.process[row]);
  if (found == forks_.end()) return true;
  // A child may have inherited it.
  const auto fork = std::lower_bound(found->second.begin(), found->second.end(), columns_.born_ns[row]);
  return fork == found->second.end() || *fork > died_ns;
}

std::vector<uint8_t> ObjectTable::worth_keeping() const {
  std::vector<uint8_t> keep(columns_.size(), 1);
  std::vector<uint32_t> gone;
  for (uint32_t row = 0; row < keep.size(); ++row) {
    if (columns_.died_ns[row] == 0 || !is_forgettable(row, columns_.died_ns[row])) continue;
    keep[row] = 0;
    gone.push_back(row);
  }
  const size_t largest = std::min(largest_, gone.size());
  std::nth_element(gone.begin(), gone.begin() + static_cast<ptrdiff_t>(largest), gone.end(),
                   [&](uint32_t a, uint32_t b) {
                     return columns_.bytes[a] != columns_.bytes[b] ? columns_.bytes[a] > columns_.bytes[b] : a < b;
                   });
  for (size_t i = 0; i < largest; ++i) keep[gone[i]] = 1;
  for (const auto& [number, process] : processes_)
    for (const auto& [address, id] : process->moved) keep[id - 1] = 1;
  for (size_t row = keep.size(); row-- > 0;)  // newer ones first: a chain of reallocs is kept whole
    if (keep[row] != 0 && columns_.previous[row] != 0) keep[columns_.previous[row] - 1] = 1;
  return keep;
}

void ObjectTable::renumber(const std::vector<uint32_t>& new_id) {
  for (auto& [number, process] : processes_) {
    for (uint32_t& id : process->breaks) id = new_id[id];
    for (auto& [address, id] : process->moved) id = new_id[id];
    for (auto& [thread, id] : process->thread_stacks) id = new_id[id];
    process->tags.renumber(new_id);
    std::unordered_map<uint32_t, uint64_t> ended;
    for (const auto& [id, time_ns] : process->ended)
      if (new_id[id] != 0) ended.emplace(new_id[id], time_ns);
    process->ended.swap(ended);
  }
}

void ObjectTable::rebuild_trees() {
  for (auto& [number, process] : processes_)
    for (auto& layer : process->layers) layer.reset();
  pool_.clear();
  std::vector<uint32_t> deaths;
  for (uint32_t row = 0; row < columns_.size(); ++row)
    if (columns_.died_ns[row] != 0) deaths.push_back(row);
  std::sort(deaths.begin(), deaths.end(), [&](uint32_t a, uint32_t b) {
    return columns_.died_ns[a] != columns_.died_ns[b] ? columns_.died_ns[a] < columns_.died_ns[b] : a < b;
  });
  const auto has_tree = [&](uint32_t row) {
    const Kind kind = static_cast<Kind>(columns_.kind[row]);
    return kind != Kind::brk && kind != Kind::tag;
  };
  const auto tree_of = [&](uint32_t row) -> VersionTree& {
    return tree(process_of(columns_.process[row]), layer_of(static_cast<Kind>(columns_.kind[row])));
  };
  size_t dead = 0;
  const auto end_before = [&](uint32_t row, uint64_t now) {
    for (; dead < deaths.size() && columns_.died_ns[deaths[dead]] <= now && deaths[dead] < row; ++dead)
      if (has_tree(deaths[dead]))
        tree_of(deaths[dead]).erase(columns_.base[deaths[dead]], columns_.died_ns[deaths[dead]]);
  };
  for (uint32_t row = 0; row < columns_.size(); ++row) {
    end_before(row, columns_.born_ns[row]);
    if (!has_tree(row)) continue;
    const uint64_t bytes = std::max<uint64_t>(columns_.bytes[row], 1);
    tree_of(row).insert(columns_.base[row], bytes, row + 1, columns_.born_ns[row]);
  }
  end_before(static_cast<uint32_t>(columns_.size()), kForever);
}

}  // namespace memlens::objects
