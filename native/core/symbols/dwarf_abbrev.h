// SPDX-License-Identifier: Apache-2.0
// Abbreviation tables, compiled for speed: beside its attribute list each entry carries a short
// skip program, with neighbouring fixed-width fields merged, so that the 95% of entries a
// symboliser does not care about cost one or two additions each.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "byte_cursor.h"

namespace memlens::symbols {

// Field widths depend on the unit as well as on the form.
struct UnitFormat {
  uint16_t version = 0;
  uint8_t address_bytes = 0;
  uint8_t offset_bytes = 0;
  bool operator==(const UnitFormat&) const = default;
};

struct AttributeSpec {
  uint16_t attribute;
  uint16_t form;
  int64_t implicit_value;  // DW_FORM_implicit_const only
};

enum class SkipKind : uint8_t { fixed, leb128, c_string, block1, block2, block4, block_leb, indirect, invalid };

struct SkipStep {
  SkipKind kind;
  uint32_t n_bytes;  // SkipKind::fixed only
};

// How to pass over one field of this form.
SkipStep skip_step_of(uint64_t form, const UnitFormat& format);
void run_skip_step(ByteCursor& cursor, const SkipStep& step, const UnitFormat& format);

struct Abbreviation {
  uint16_t tag = 0;
  bool has_children = false;
  uint32_t first_spec = 0, n_specs = 0;
  uint32_t first_step = 0, n_steps = 0;
};

class AbbreviationTable {
 public:
  // Damaged tables give what could be read before the damage.
  AbbreviationTable(Bytes debug_abbrev, uint64_t offset, const UnitFormat& format, size_t max_entries = SIZE_MAX);

  const Abbreviation* find(uint64_t code) const {
    if (code - 1 < dense_.size()) return &dense_[code - 1];
    auto found = sparse_.find(code);
    return found == sparse_.end() ? nullptr : &found->second;
  }
  const AttributeSpec* specs(const Abbreviation& a) const { return specs_.data() + a.first_spec; }
  void skip_attributes(ByteCursor& cursor, const Abbreviation& a) const {
    const SkipStep* step = steps_.data() + a.first_step;
    for (uint32_t i = 0; i < a.n_steps; ++i, ++step) {
      if (step->kind == SkipKind::fixed) cursor.skip(step->n_bytes);
      else run_skip_step(cursor, *step, format_);
    }
  }

 private:
  UnitFormat format_;
  std::vector<Abbreviation> dense_;                    // codes 1..n in order: what compilers write
  std::unordered_map<uint64_t, Abbreviation> sparse_;  // anything else
  std::vector<AttributeSpec> specs_;
  std::vector<SkipStep> steps_;
};

}  // namespace memlens::symbols
