#include "stream.h"

#include <algorithm>
#include <stdexcept>

namespace memlens::locality {

Stream::Stream(const StreamOptions& options)
    : options_(options), reuse_(options.block_bytes, options.memory_limit_bytes) {
  for (uint32_t i = 0; i < options.views; ++i)
    views_.push_back({{}, Footprint(options.has_windows, options.memory_limit_bytes), {}});
  if (options.heat_columns > 0)
    heat_ = std::make_unique<HeatMap>(options.begin_ns, options.end_ns, options.heat_columns, options.heat_rows);
}

uint64_t Stream::memory_bytes() const {
  uint64_t sum = reuse_.memory_bytes();
  for (const View& view : views_) sum += view.footprint.memory_bytes();
  return sum;
}

void Stream::add_constants(const ConstantColumns& columns) {
  const size_t count = columns.windows.size();
  if (columns.groups.size() != views_.size())
    throw std::invalid_argument("there is one column of groups for each view");
  if (columns.counts.size() != count || columns.weights.size() != count)
    throw std::invalid_argument("the columns have one length");
  for (const auto& groups : columns.groups)
    if (groups.size() != count) throw std::invalid_argument("the columns have one length");
  constants_.erase(constants_.begin(), constants_.begin() + static_cast<ptrdiff_t>(next_constant_));
  constant_groups_.erase(constant_groups_.begin(),
                         constant_groups_.begin() + static_cast<ptrdiff_t>(next_constant_ * views_.size()));
  next_constant_ = 0;
  for (size_t i = 0; i < count; ++i) {
    constants_.push_back({columns.windows[i], columns.counts[i], columns.weights[i]});
    for (const auto& groups : columns.groups) constant_groups_.push_back(groups[i]);
  }
}

void Stream::take_constants(uint32_t window) {
  for (; next_constant_ < constants_.size() && constants_[next_constant_].window == window; ++next_constant_) {
    const Constants& one = constants_[next_constant_];
    for (size_t number = 0; number < views_.size(); ++number) {
      const uint32_t group = constant_groups_[next_constant_ * views_.size() + number];
      if (group == kNoGroup) continue;
      View& view = views_[number];
      view.footprint.add_implied_constants(group, one.count);
      if (view.executed.size() <= group) view.executed.resize(size_t{group} + 1);
      view.executed[group] += one.weight * static_cast<double>(one.count);
    }
  }
}

// Windows that have no access but constants.
void Stream::end_windows_of_constants(uint32_t before) {
  while (next_constant_ < constants_.size() && constants_[next_constant_].window < before) {
    window_ = constants_[next_constant_].window;
    ++windows_;
    end_window();
  }
}

void Stream::end_window() {
  take_constants(window_);
  for (View& view : views_) {
    view.reuse.end_window();
    view.footprint.end_window();
  }
  is_open_ = false;
}

void Stream::add(const StreamColumns& columns) {
  const size_t count = columns.addresses.size();
  for (const size_t length : {columns.bytes.size(), columns.windows.size(), columns.classes.size(),
                              columns.weights.size(), columns.times_ns.size()})
    if (length != 0 && length != count) throw std::invalid_argument("the columns have one length");
  if (columns.groups.size() != views_.size())
    throw std::invalid_argument("there is one column of groups for each view");
  if (heat_ != nullptr && columns.times_ns.size() != count) throw std::invalid_argument("a heat map needs times");
  for (size_t from = 0; from < count;) {
    size_t end = count;
    const uint32_t window = columns.windows.empty() ? 0 : columns.windows[from];
    if (!columns.windows.empty()) {
      end = from + 1;
      while (end < count && columns.windows[end] == window) ++end;
    }
    if (is_open_ && window != window_) end_window();
    if (!is_open_) {
      end_windows_of_constants(window);
      if (options_.has_windows) reuse_.begin_window();
      window_ = window;
      is_open_ = true;
      ++windows_;
    }
    part(columns, from, end - from);
    from = end;
  }
  if (memory_bytes() > options_.memory_limit_bytes) throw MemoryLimit(memory_bytes(), options_.memory_limit_bytes);
}

void Stream::part(const StreamColumns& columns, size_t from, size_t count) {
  const auto cut = [&](const auto& column) { return column.empty() ? column : column.subspan(from, count); };
  distances_.resize(count);
  intervals_.resize(count);
  reuse_.add(cut(columns.addresses), distances_, intervals_);
  curve_.add(distances_);
  if (heat_ != nullptr) heat_->add(cut(columns.addresses), cut(columns.times_ns), distances_);
  const std::span<const double> weights = cut(columns.weights);
  for (size_t number = 0; number < views_.size(); ++number) {
    View& view = views_[number];
    const std::span<const uint32_t> groups = cut(columns.groups[number]);
    view.reuse.add(distances_, intervals_, groups);
    view.footprint.add(cut(columns.addresses), cut(columns.bytes), cut(columns.classes), groups);
    if (view.executed.size() < view.reuse.rows().size()) view.executed.resize(view.reuse.rows().size());
    for (size_t i = 0; i < count; ++i)
      view.executed[groups.empty() ? 0 : groups[i]] += weights.empty() ? 1 : weights[i];
  }
}

void Stream::finish() {
  if (is_open_) end_window();
  end_windows_of_constants(kNoGroup);
}

void Stream::merge(const Stream& other) {
  if (other.views_.size() != views_.size()) throw std::invalid_argument("streams of the same views are merged");
  for (size_t number = 0; number < views_.size(); ++number) {
    views_[number].reuse.merge(other.views_[number].reuse);
    views_[number].footprint.merge(other.views_[number].footprint);
    const std::vector<double>& from = other.views_[number].executed;
    std::vector<double>& to = views_[number].executed;
    if (to.size() < from.size()) to.resize(from.size());
    for (size_t i = 0; i < from.size(); ++i) to[i] += from[i];
  }
  curve_.merge(other.curve_);
  if (heat_ != nullptr && other.heat_ != nullptr) heat_->merge(*other.heat_);
  windows_ += other.windows_;
}

}  // namespace memlens::locality
