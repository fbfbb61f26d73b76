// SPDX-License-Identifier: Apache-2.0
#include "unit_index.h"

#include <dwarf.h>

#include <algorithm>

namespace memlens::symbols {
namespace {

// Deeper nesting than this is damage; compilers stay below a few hundred.
constexpr size_t kMaxNesting = 4096;

class EntryWalker {
 public:
  EntryWalker(const DwarfFile& dwarf, const DwarfUnit& unit, const UnitRoot& root, const CodeRanges& code,
              UnitIndex& index)
      : dwarf_(dwarf),
        unit_(unit),
        root_(root),
        code_(code),
        index_(index),
        table_(dwarf.abbreviations(unit)),
        // A damaged file may have every entry refer to one huge list: bound the total.
        n_ranges_left_(std::max<uint64_t>(1 << 20, unit.end_offset - unit.offset)) {}

  void walk(bool keep_function_ranges) {
    ByteCursor cursor(dwarf_.info().first(unit_.end_offset), unit_.first_entry_offset);
    std::vector<uint32_t> parents;  // the scope each open entry's children belong to
    uint32_t scope = IntervalMap::kNone;
    while (!cursor.failed() && !cursor.at_end()) {
      const uint64_t offset = cursor.offset();
      const uint64_t code = cursor.uleb128();
      if (code == 0) {
        if (parents.empty()) break;
        scope = parents.back();
        parents.pop_back();
        if (parents.empty()) break;
        continue;
      }
      const Abbreviation* entry = table_->find(code);
      if (!entry) break;
      uint32_t inner = scope;
      if (entry->tag == DW_TAG_subprogram || entry->tag == DW_TAG_inlined_subroutine)
        inner = add_scope(cursor, *entry, offset, scope, keep_function_ranges);
      else table_->skip_attributes(cursor, *entry);
      if (entry->has_children) {
        if (parents.size() >= kMaxNesting) break;
        parents.push_back(scope);
        scope = inner;
      } else if (parents.empty()) {
        break;  // a root without children
      }
    }
    index_.scope_by_address = IntervalMap::flatten(std::move(nested_));
  }

 private:
  // Returns the scope that the entry's children belong to.
  uint32_t add_scope(ByteCursor& cursor, const Abbreviation& entry, uint64_t offset, uint32_t parent,
                     bool keep_function_ranges) {
    FormValue low, high, ranges;
    Scope scope{offset, IntervalMap::kNone, 0, 0, 0, entry.tag == DW_TAG_inlined_subroutine};
    const AttributeSpec* specs = table_->specs(entry);
    for (uint32_t i = 0; i < entry.n_specs; ++i) {
      switch (specs[i].attribute) {
        case DW_AT_low_pc: low = dwarf_.read_form(cursor, specs[i], unit_.format); break;
        case DW_AT_high_pc: high = dwarf_.read_form(cursor, specs[i], unit_.format); break;
        case DW_AT_ranges: ranges = dwarf_.read_form(cursor, specs[i], unit_.format); break;
        case DW_AT_call_file: scope.call_file = constant(cursor, specs[i]); break;
        case DW_AT_call_line: scope.call_line = constant(cursor, specs[i]); break;
        case DW_AT_call_column:
          scope.call_column = static_cast<uint16_t>(std::min(constant(cursor, specs[i]), 0xffffu));
          break;
        default: run_skip_step(cursor, skip_step_of(specs[i].form, unit_.format), unit_.format);
      }
    }
    if (cursor.failed() || (!low.present() && !ranges.present())) return IntervalMap::kNone;
    // Inlined calls of a function the linker dropped are dropped with it.
    if (scope.inlined && parent == IntervalMap::kNone) return IntervalMap::kNone;

    found_.clear();
    dwarf_.append_ranges(low, high, ranges, unit_, root_, n_ranges_left_, found_);
    n_ranges_left_ -= found_.size();
    std::erase_if(found_, [&](const AddressRange& r) { return !code_.contains(r.begin); });
    if (found_.empty()) {
      // GCC writes inlined entries whose code was optimised away; their children still have code.
      return scope.inlined ? parent : IntervalMap::kNone;
    }
    uint32_t depth = 0;
    if (scope.inlined) {
      scope.parent = parent;
      depth = depths_[parent] + 1;
    } else if (parent != IntervalMap::kNone) {
      depth = depths_[parent] + 1;  // a nested function: inner by address, but not called from here
    }
    const auto id = static_cast<uint32_t>(index_.scopes.size());
    index_.scopes.push_back(scope);
    depths_.push_back(depth);
    for (const AddressRange& r : found_) {
      nested_.push_back({r.begin, r.end, id, depth});
      if (keep_function_ranges && !scope.inlined) index_.function_ranges.push_back(r);
    }
    return id;
  }

  uint32_t constant(ByteCursor& cursor, const AttributeSpec& spec) {
    return static_cast<uint32_t>(dwarf_.read_form(cursor, spec, unit_.format).number);
  }

  const DwarfFile& dwarf_;
  const DwarfUnit& unit_;
  const UnitRoot& root_;
  const CodeRanges& code_;
  UnitIndex& index_;
  std::shared_ptr<const AbbreviationTable> table_;
  uint64_t n_ranges_left_;
  std::vector<AddressRange> found_;
  std::vector<NestedRange> nested_;
  std::vector<uint32_t> depths_;
};

}  // namespace

UnitIndex UnitIndex::build(const DwarfFile& dwarf, const DwarfUnit& unit, const SplitUnit& split,
                           const CodeRanges& code, bool keep_function_ranges) {
  UnitIndex index;
  index.root = dwarf.read_root(unit);
  index.entries = split.file ? split.file : &dwarf;
  const DwarfUnit& entries_unit = split.file ? *split.unit : unit;
  const UnitRoot entries_root = split.file ? split.file->read_root(*split.unit) : index.root;
  EntryWalker(*index.entries, entries_unit, entries_root, code, index).walk(keep_function_ranges);
  index.lines = LineTable(dwarf, unit, index.root, code);
  return index;
}

}  // namespace memlens::symbols
