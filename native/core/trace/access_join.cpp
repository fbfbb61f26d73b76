#include "access_join.h"

#include <algorithm>
#include <cmath>

namespace memlens::trace {
namespace {
constexpr size_t kRecent = 1024;
}

AccessJoin::AccessJoin(const objects::ObjectTable& objects, const replay::CodeIndex& codes,
                       std::vector<uint32_t> group_of_object, std::vector<uint32_t> function_of_code)
    : objects_(objects),
      code_index_(codes),
      group_of_object_(std::move(group_of_object)),
      function_of_code_(std::move(function_of_code)),
      recent_(kRecent) {
  group_of_object_.resize(objects.columns().size() + 1);
  if (function_of_code_.empty()) function_of_code_.push_back(0);
  const auto& kinds = objects.columns().kind;
  for (size_t row = 0; row < kinds.size(); ++row)
    if (kinds[row] == static_cast<uint8_t>(objects::Kind::tag)) has_tags_ = true;
}

void AccessJoin::set_units(std::vector<uint64_t> executed, std::vector<uint32_t> parts) {
  unit_executed_ = std::move(executed);
  unit_parts_ = std::move(parts);
  unit_parts_.resize(unit_executed_.size(), 1);
}

void AccessJoin::set_sites(SiteFacts facts, std::vector<SiteRange> ranges) {
  site_facts_ = std::move(facts);
  const size_t count = std::min({site_facts_.code.size(), site_facts_.bytes.size(), site_facts_.operation.size()});
  for (SiteRange& range : ranges) {
    range.end = static_cast<uint32_t>(std::min<size_t>(range.end, count));
    range.first = std::min(range.first, range.end);
  }
  site_ranges_ = std::move(ranges);
}

AccessJoin::Unit* AccessJoin::begin_record(uint32_t row, std::span<const uint32_t> units) {
  const uint32_t number = row < units.size() ? units[row] : UINT32_MAX;
  if (number >= unit_executed_.size()) return nullptr;
  const auto [at, is_new] = open_.try_emplace(number);
  if (is_new) at->second.parts_left = unit_parts_[number];
  ++windows_;
  return &at->second;
}

void AccessJoin::end_record(const ml_window& window, uint32_t number, Unit& unit, bool is_sound) {
  if (is_sound) {
    unit.covered += uint64_t{window.recorded} + window.implied_constant;
  } else {
    ++totals_.damaged_windows;
    ++unit.damaged_parts;
  }
  if (unit.parts_left > 0) --unit.parts_left;
  if (unit.parts_left > 0) return;
  flush(number, unit);
  open_.erase(number);
}

const SiteRange* AccessJoin::sites_of(uint32_t row, std::span<const uint32_t> images) const {
  const uint32_t image = row < images.size() ? images[row] : UINT32_MAX;
  return image < site_ranges_.size() ? &site_ranges_[image] : nullptr;
}

void AccessJoin::add(uint32_t process, std::span<const unsigned char> payload, std::span<const uint32_t> units,
                     std::span<const uint32_t> images) {
  uint32_t row = 0;
  replay::each_variable_record<ml_window>(payload, [&](const ml_window& window, std::span<const unsigned char> stream) {
    if (Unit* const unit = begin_record(row, units)) {
      const SiteRange* const sites = sites_of(row, images);
      const bool is_sound =
          walker_.walk_window(window, row, stream, [&](const Part& part) { take(process, *unit, part, sites); });
      end_record(window, units[row], *unit, is_sound);
    }
    ++row;
  });
}

void AccessJoin::add_decoded(uint32_t process, std::span<const ml_window> windows, std::span<const uint8_t> damaged,
                             std::span<const Packed> batches, std::span<const uint32_t> units,
                             std::span<const uint32_t> images) {
  constexpr size_t kPart = 4096;
  std::vector<uint64_t> code(kPart), address(kPart);
  std::vector<uint32_t> bytes(kPart);
  std::vector<uint8_t> operation(kPart);
  size_t batch = 0, run = 0, at = 0;  // the next accesses
  for (uint32_t row = 0; row < windows.size(); ++row) {
    const bool is_sound = row >= damaged.size() || damaged[row] == 0;
    Unit* const unit = begin_record(row, units);
    const SiteRange* const sites = sites_of(row, images);
    for (;;) {
      while (batch < batches.size() && run == batches[batch].runs().size()) ++batch, run = at = 0;
      if (batch == batches.size() || batches[batch].runs()[run].row != row) break;
      const Packed& from = batches[batch];
      const Run& mine = from.runs()[run++];
      // Some of a damaged window may have been decoded before the damage was found.
      for (size_t done = 0; unit != nullptr && is_sound && done < mine.count;) {
        const size_t count = std::min<size_t>(mine.count - done, kPart);
        from.expand(at + done, count, code.data(), bytes.data(), operation.data());
        std::copy_n(from.addresses() + at + done, count, address.data());
        take(
            process, *unit,
            {&windows[row], row, mine.first + done, count, code.data(), address.data(), bytes.data(), operation.data()},
            sites);
        done += count;
      }
      at += mine.count;
    }
    if (unit != nullptr) end_record(windows[row], units[row], *unit, is_sound);
  }
}

void AccessJoin::take(uint32_t process, Unit& unit, const Part& part, const SiteRange* sites) {
  size_t count = part.count;
  const bool is_site = part.window->encoding != ML_ENUM_stream_encoding_PC_DELTA;
  // A site becomes its entry in the facts, which tell what the stream leaves out; kNoSite where there is none.
  constexpr uint64_t kNoSite = UINT32_MAX;
  for (size_t i = 0; is_site && i < count; ++i) {
    const uint64_t entry = sites != nullptr ? part.code[i] - sites->number : kNoSite;
    const uint64_t number = sites != nullptr && entry < sites->end - sites->first ? sites->first + entry : kNoSite;
    part.code[i] = number;
    if (number == kNoSite) {
      ++totals_.without_code;
      part.operation[i] = ML_ENUM_access_operation_LOAD;
    } else {
      part.operation[i] = site_facts_.operation[number];
      if (part.bytes[i] == 0) part.bytes[i] = site_facts_.bytes[number];
    }
  }
  times_.resize(count);
  for (size_t i = 0; i < count; ++i) times_[i] = part.time_ns(i);
  // Constants that a trace records so that others are known to have run are no accesses here: most constants are not recorded at all.
  if (is_site) {
    size_t kept = 0;
    for (size_t i = 0; i < count; ++i) {
      if (part.operation[i] == 0) continue;
      part.code[kept] = part.code[i];
      part.address[kept] = part.address[i];
      part.bytes[kept] = part.bytes[i];
      part.operation[kept] = part.operation[i];
      times_[kept++] = times_[i];
    }
    count = kept;
    times_.resize(count);
  }
  unit.recorded += count;
  ids_.resize(count);
  asked_.clear();
  asked_addresses_.clear();
  asked_times_.clear();
  for (size_t i = 0; i < count; ++i) {
    const Recent& recent = recent_[part.code[i] % kRecent];
    // Objects of the heap come before all others but tags and do not overlap: the same range is the same object.
    if (recent.pc == part.code[i] && recent.window == windows_ && part.address[i] - recent.base < recent.bytes &&
        times_[i] < recent.until_ns) {
      ids_[i] = recent.id;
      continue;
    }
    asked_.push_back(static_cast<uint32_t>(i));
    asked_addresses_.push_back(part.address[i]);
    asked_times_.push_back(times_[i]);
  }
  found_.resize(asked_.size());
  objects_.find({{&process, 1}, asked_addresses_, asked_times_}, objects::kLayers, found_, 1);
  for (size_t i = 0; i < asked_.size(); ++i) ids_[asked_[i]] = found_[i];
  if (has_tags_) {
    objects_.find_tags({{&process, 1}, asked_addresses_, asked_times_}, found_);
    for (size_t i = 0; i < asked_.size(); ++i)
      if (found_[i] != 0) ids_[asked_[i]] = found_[i];
  }

  const objects::Columns& columns = objects_.columns();
  for (size_t i = 0; i < count; ++i) {
    const uint64_t pc = part.code[i], address = part.address[i];
    const uint32_t bytes = part.bytes[i];
    Recent& recent = recent_[pc % kRecent];
    if (recent.pc != pc || recent.window != windows_) {
      recent = Recent{.pc = pc, .window = windows_};
      const uint32_t code = !is_site        ? code_index_.find(process, pc, part.window->begin_ns)
                            : pc == kNoSite ? replay::CodeIndex::kNone
                                            : site_facts_.code[pc];
      recent.code = code == replay::CodeIndex::kNone ? static_cast<uint32_t>(function_of_code_.size() - 1) : code;
    }
    const uint32_t id = ids_[i];
    if (id != recent.id || !recent.has_counts) {
      const uint32_t group = id < group_of_object_.size() ? group_of_object_[id] : group_of_object_[0];
      recent.has_counts = recent.has_counts && group == recent.group;
      recent.group = group;
      recent.id = id;
      recent.bytes = 0;
      if (id != 0 && !has_tags_ && columns.kind[id - 1] == static_cast<uint8_t>(objects::Kind::heap) &&
          columns.process[id - 1] == process) {
        recent.base = columns.base[id - 1];
        recent.bytes = columns.bytes[id - 1];
        recent.until_ns = columns.died_ns[id - 1] != 0 ? columns.died_ns[id - 1] : UINT64_MAX;
      }
    }
    if (!recent.has_counts) {
      const uint64_t key = uint64_t{recent.group} << 32 | recent.code;
      const auto [at, is_new] = unit.index.try_emplace(key, static_cast<uint32_t>(unit.counts.size()));
      if (is_new) unit.counts.push_back({.key = key});
      recent.counts = at->second;
      recent.has_counts = true;
    }
    Counts& counts = unit.counts[recent.counts];
    const uint8_t operation = part.operation[i];
    ++counts.accesses;
    if (operation & 1) {  // load, atomic
      ++counts.loads;
      counts.load_bytes += bytes;
    }
    if (operation & 2) {  // store, atomic
      ++counts.stores;
      counts.store_bytes += bytes;
    }
    counts.split += bytes > 0 && address % kLineBytes + bytes > kLineBytes;
    const unsigned direction = operation >> 1 & 1;
    if (bytes > 0 && bytes <= kNarrowBytes) {
      const uint64_t last = recent.last_address[direction];
      ++counts.narrow;
      counts.narrow_sequential +=
          recent.last_bytes[direction] == bytes && (address == last + bytes || address + bytes == last);
    }
    recent.last_address[direction] = address;
    recent.last_bytes[direction] = bytes;
  }
}

template <typename Row, typename Key>
Row& AccessJoin::row_of(std::vector<Row>& rows, std::unordered_map<Key, uint32_t>& index, Key key) {
  const auto [at, is_new] = index.try_emplace(key, static_cast<uint32_t>(rows.size()));
  if (is_new) rows.emplace_back();
  return rows[at->second];
}

void AccessJoin::flush(uint32_t number, Unit& unit) {
  const uint64_t executed = std::max(unit_executed_[number], unit.covered);
  if (unit.covered == 0) {
    if (unit.damaged_parts > 0) totals_.damaged_executed += executed;
    return;
  }
  const double e = static_cast<double>(executed), weight = e / static_cast<double>(unit.covered);
  ++totals_.units;
  totals_.recorded += unit.recorded;
  totals_.covered += unit.covered;
  totals_.executed += executed;
  totals_.executed_squares += e * e;

  // Sums of the unit by each key first: an estimate's squares are those of whole units.
  std::unordered_map<uint64_t, Counts> pairs;
  std::unordered_map<uint32_t, Counts> groups, functions, codes;
  const auto merge = [](Counts& to, const Counts& from) {
    to.loads += from.loads;
    to.stores += from.stores;
    to.load_bytes += from.load_bytes;
    to.store_bytes += from.store_bytes;
    to.accesses += from.accesses;
    to.split += from.split;
    to.narrow += from.narrow;
    to.narrow_sequential += from.narrow_sequential;
  };
  for (const Counts& counts : unit.counts) {
    const uint32_t group = static_cast<uint32_t>(counts.key >> 32), code = static_cast<uint32_t>(counts.key);
    const uint32_t function = function_of_code_[std::min<size_t>(code, function_of_code_.size() - 1)];
    if (group == kLeftOut || function == kLeftOut) continue;
    merge(pairs[uint64_t{group} << 32 | function], counts);
    merge(groups[group], counts);
    merge(functions[function], counts);
    merge(codes[code], counts);
  }
  const auto add = [&](Traffic& row, const Counts& counts) {
    row.recorded += counts.accesses;
    ++row.units;
    const auto note = [&](Estimate& estimate, uint64_t x) { estimate.add(weight * static_cast<double>(x), e); };
    note(row.loads, counts.loads);
    note(row.stores, counts.stores);
    note(row.load_bytes, counts.load_bytes);
    note(row.store_bytes, counts.store_bytes);
    note(row.accesses, counts.accesses);
    note(row.bytes, counts.load_bytes + counts.store_bytes);
  };
  for (const auto& [key, counts] : pairs) {
    Traffic& row = row_of(pairs_, pair_index_, key);
    row.group = static_cast<uint32_t>(key >> 32);
    row.function = static_cast<uint32_t>(key);
    add(row, counts);
  }
  for (const auto& [key, counts] : groups) {
    Traffic& row = row_of(groups_, group_index_, key);
    row.group = key;
    add(row, counts);
  }
  for (const auto& [key, counts] : functions) {
    Traffic& row = row_of(functions_, function_index_, key);
    row.function = key;
    add(row, counts);
  }
  for (const auto& [key, counts] : codes) {
    CodeTraffic& row = row_of(codes_, code_rows_, key);
    row.code = key;
    row.recorded += counts.accesses;
    ++row.units;
    const auto note = [&](Estimate& estimate, uint64_t x) { estimate.add(weight * static_cast<double>(x), e); };
    note(row.accesses, counts.accesses);
    note(row.bytes, counts.load_bytes + counts.store_bytes);
    note(row.split, counts.split);
    note(row.narrow, counts.narrow);
    note(row.narrow_sequential, counts.narrow_sequential);
  }
}

void AccessJoin::finish() {
  for (auto& [number, unit] : open_) flush(number, unit);
  open_.clear();
}

double AccessJoin::standard_error(const Estimate& estimate) const {
  const double executed = static_cast<double>(totals_.executed), covered = static_cast<double>(totals_.covered);
  if (totals_.executed == 0 || totals_.covered >= totals_.executed) return 0;
  if (totals_.units < 2) return NAN;  // one window says nothing about the next
  const double ratio = estimate.sum / executed, m = static_cast<double>(totals_.units);
  const double squares =
      estimate.sum_squares - 2 * ratio * estimate.sum_by_executed + ratio * ratio * totals_.executed_squares;
  return std::sqrt(std::max(0.0, (1 - covered / executed) * m / (m - 1) * squares));
}

}  // namespace memlens::trace
