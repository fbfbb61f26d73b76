// SPDX-License-Identifier: Apache-2.0
// Layouts: sizes, fields, holes, alignments, and how small a structure could be.
#include <dwarf.h>

#include <algorithm>

#include "type_table.h"

namespace memlens::symbols {
namespace {

// Typedefs of typedefs, arrays of arrays, structures in structures: real ones stay below twenty.
constexpr int kMaxDepth = 64;
constexpr size_t kMaxFields = 1 << 16;
constexpr size_t kMaxDimensions = 32;
constexpr size_t kMaxCached = 1 << 20;
constexpr uint64_t kMaxNaturalAlignment = 16;
// Larger than any object; keeps sums of offsets and sizes from overflowing.
constexpr uint64_t kMaxBytes = uint64_t{1} << 48;

uint64_t power_of_two_below(uint64_t n) {
  uint64_t power = 1;
  while (power <= n / 2) power *= 2;
  return power;
}

uint64_t rounded_up(uint64_t n, uint64_t alignment) { return (n + alignment - 1) / alignment * alignment; }

bool is_number(const FormValue& value) {
  switch (value.form) {
    case DW_FORM_data1:
    case DW_FORM_data2:
    case DW_FORM_data4:
    case DW_FORM_data8:
    case DW_FORM_udata:
    case DW_FORM_sdata:
    case DW_FORM_implicit_const: return true;
    default: return false;  // an expression or a reference to a variable: known at run time only
  }
}

int64_t default_lower_bound(uint64_t language) {
  switch (language) {
    case DW_LANG_Fortran77:
    case DW_LANG_Fortran90:
    case DW_LANG_Fortran95:
    case 0x22:  // DW_LANG_Fortran03
    case 0x23:  // DW_LANG_Fortran08
    case 0x2d:  // DW_LANG_Fortran18
      return 1;
    default: return 0;
  }
}

struct BitRange {
  uint64_t begin, end;
};

BitRange bits_of(const TypeField& field) {
  const uint64_t begin = field.offset * 8 + field.bit_offset;
  return {begin, begin + (field.bit_size != 0 ? field.bit_size : field.bytes * 8)};
}

// Only whole bytes count: a byte that a bit-field uses in part cannot be used by anybody else.
void find_holes(TypeInfo& type) {
  std::vector<BitRange> ranges;
  for (const TypeField& field : type.fields) ranges.push_back(bits_of(field));
  std::sort(ranges.begin(), ranges.end(), [](const BitRange& a, const BitRange& b) { return a.begin < b.begin; });
  uint64_t end_byte = 0;
  for (const BitRange& range : ranges) {
    const uint64_t begin_byte = std::min(range.begin / 8, type.bytes);
    if (begin_byte > end_byte) {
      type.holes.push_back({end_byte, begin_byte - end_byte});
      type.padding_bytes += begin_byte - end_byte;
    }
    end_byte = std::max(end_byte, (range.end + 7) / 8);
  }
  if (end_byte < type.bytes) type.tail_padding_bytes = type.bytes - end_byte;
  type.padding_bytes += type.tail_padding_bytes;
}

// Sizes are multiples of alignments, so taking the fields by falling alignment leaves no hole
// between them. Base classes and the virtual-function pointer stay where the ABI puts them;
// neighbouring bit-fields move as one.
uint64_t packed_size(const TypeInfo& type) {
  struct Part {
    uint64_t bytes, alignment;
  };
  std::vector<Part> parts;
  uint64_t end = 0, first_free = UINT64_MAX;
  for (const TypeField& field : type.fields) {
    if (field.is_fixed) end = std::max(end, field.offset + field.bytes);
    else first_free = std::min(first_free, field.offset);
  }
  // A derived class's field may lie in the tail padding of its base.
  if (first_free < end) end = first_free;
  for (size_t i = 0; i < type.fields.size(); ++i) {
    const TypeField& field = type.fields[i];
    if (field.is_fixed) continue;
    Part part{field.bytes, field.alignment};
    if (field.bit_size != 0) {
      uint64_t group_end = field.offset + field.bytes;
      for (; i + 1 < type.fields.size() && type.fields[i + 1].bit_size != 0 && type.fields[i + 1].offset <= group_end;
           ++i) {
        group_end = std::max(group_end, type.fields[i + 1].offset + type.fields[i + 1].bytes);
        part.alignment = std::max(part.alignment, type.fields[i + 1].alignment);
      }
      part.bytes = group_end - field.offset;
    }
    parts.push_back(part);
  }
  std::stable_sort(parts.begin(), parts.end(), [](const Part& a, const Part& b) {
    if (a.alignment != b.alignment) return a.alignment > b.alignment;
    // Bit-field groups may end anywhere: last among their like, so that small fields follow.
    return a.bytes % a.alignment == 0 && b.bytes % b.alignment != 0;
  });
  // Base classes, bit-fields and fields with an alignment of their own may end anywhere: what is
  // less aligned can fill the gap before the next. (The very best filling is a knapsack problem.)
  std::vector<bool> placed(parts.size());
  int n_looks_left = 1 << 20;  // real gaps are few; damage could make every part one
  for (size_t i = 0; i < parts.size(); ++i) {
    if (placed[i]) continue;
    const uint64_t at = rounded_up(end, parts[i].alignment);
    for (size_t k = i + 1; k < parts.size() && end < at && n_looks_left > 0; ++k, --n_looks_left) {
      const uint64_t filler_end = rounded_up(end, parts[k].alignment) + parts[k].bytes;
      if (placed[k] || parts[k].bytes == 0 || filler_end > at) continue;
      end = filler_end;
      placed[k] = true;
    }
    end = at + parts[i].bytes;
  }
  return std::min(type.bytes, std::max<uint64_t>(rounded_up(end, type.alignment), type.alignment));
}

}  // namespace

// Looks through typedefs and qualifiers, and from declarations to definitions.
std::optional<DebugEntry> TypeTable::stripped(EntryId id) {
  auto entry = entries_.read(id);
  for (int depth = 0; entry && depth < kMaxDepth; ++depth) {
    switch (entry->tag) {
      case DW_TAG_typedef:
      case DW_TAG_const_type:
      case DW_TAG_volatile_type:
      case DW_TAG_restrict_type:
      case DW_TAG_atomic_type: entry = entries_.read(entries_.target(*entry, entry->type)); continue;
      case DW_TAG_structure_type:
      case DW_TAG_class_type:
      case DW_TAG_union_type:
      case DW_TAG_enumeration_type:
        if (entry->origin.form == DW_FORM_ref_sig8) {  // stands for the type in a type unit
          entry = entries_.read(entries_.target(*entry, entry->origin));
          continue;
        }
        if (!entry->declaration) return entry;
        if (auto definition = definition_of(*entry)) return definition;
        return entry;
      default: return entry;
    }
  }
  return std::nullopt;
}

std::shared_ptr<const TypeInfo> TypeTable::describe(EntryId id) {
  const auto entry = stripped(id);
  const TypeInfo* found = entry ? layout(entry->id, 0) : nullptr;
  if (!found) return nullptr;
  auto result = std::make_shared<TypeInfo>(*found);
  result->name = name(id);
  for (TypeField& field : result->fields) field.type_name = name(field.type);
  return result;
}

uint64_t TypeTable::bytes(EntryId id) { return size_of(id, 0); }

uint64_t TypeTable::size_of(EntryId id, int depth) {
  const auto entry = depth > kMaxDepth ? std::nullopt : stripped(id);
  if (!entry) return 0;
  if (is_number(entry->byte_size)) return std::min(entry->byte_size.number, kMaxBytes);
  const TypeInfo* found = layout(entry->id, depth + 1);
  return found ? found->bytes : 0;
}

uint64_t TypeTable::alignment_of(EntryId id, int depth) {
  const auto entry = depth > kMaxDepth ? std::nullopt : stripped(id);
  const TypeInfo* found = entry ? layout(entry->id, depth + 1) : nullptr;
  return found ? found->alignment : 1;
}

// `id` is a stripped type. The layout is kept before it is complete: a structure that, by damage,
// contains itself sees its own first state instead of recursing.
const TypeInfo* TypeTable::layout(EntryId id, int depth) {
  if (auto found = layouts_.find(id); found != layouts_.end()) return found->second.get();
  const auto entry = depth > kMaxDepth ? std::nullopt : entries_.read(id);
  if (!entry) return nullptr;
  // Only between questions: the layouts of an unfinished one are in use.
  if (depth == 0 && layouts_.size() >= kMaxCached) layouts_.clear();
  TypeInfo& type = *layouts_.emplace(id, std::make_unique<TypeInfo>()).first->second;
  type.id = id;
  if (is_number(entry->byte_size)) type.bytes = std::min(entry->byte_size.number, kMaxBytes);
  const uint64_t address_bytes = entry->unit->format.address_bytes;
  switch (entry->tag) {
    case DW_TAG_base_type:
    case DW_TAG_unspecified_type:
      type.kind = TypeKind::base;
      type.alignment = type.bytes;
      if (entry->encoding.number == DW_ATE_complex_float) type.alignment = type.bytes / 2;
      break;
    case DW_TAG_enumeration_type:
      type.kind = TypeKind::enumeration;
      if (type.bytes == 0) type.bytes = size_of(entries_.target(*entry, entry->type), depth + 1);
      type.alignment = type.bytes;
      break;
    case DW_TAG_pointer_type:
    case DW_TAG_reference_type:
    case DW_TAG_rvalue_reference_type:
      type.kind = TypeKind::pointer;
      if (type.bytes == 0) type.bytes = address_bytes;
      type.alignment = type.bytes;
      type.element = entries_.target(*entry, entry->type);
      break;
    case DW_TAG_ptr_to_member_type: {
      type.kind = TypeKind::pointer;
      const auto target = stripped(entries_.target(*entry, entry->type));
      // The Itanium ABI: a pair for functions, an offset for data.
      if (type.bytes == 0) type.bytes = address_bytes * (target && target->tag == DW_TAG_subroutine_type ? 2 : 1);
      type.alignment = address_bytes;
      break;
    }
    case DW_TAG_array_type:
      type.kind = TypeKind::array;
      read_array(*entry, type, depth);
      break;
    case DW_TAG_structure_type:
      type.kind = TypeKind::structure;
      read_structure(*entry, type, depth);
      break;
    case DW_TAG_class_type:
      type.kind = TypeKind::class_;
      read_structure(*entry, type, depth);
      break;
    case DW_TAG_union_type:
      type.kind = TypeKind::union_;
      read_structure(*entry, type, depth);
      break;
    case DW_TAG_subroutine_type: type.kind = TypeKind::function; break;
    default:
      if (type.bytes == 0 && entry->type.present()) {
        const EntryId target = entries_.target(*entry, entry->type);
        type.bytes = size_of(target, depth + 1);
        type.alignment = alignment_of(target, depth + 1);
      }
  }
  const bool is_vector = type.kind == TypeKind::array && entry->is_vector;
  if (type.kind == TypeKind::base || type.kind == TypeKind::enumeration || type.kind == TypeKind::pointer)
    type.alignment = std::clamp<uint64_t>(type.alignment, 1, kMaxNaturalAlignment);
  if (is_vector) type.alignment = std::clamp<uint64_t>(type.bytes, 1, 4096);
  type.alignment = power_of_two_below(std::max<uint64_t>(type.alignment, 1));
  return &type;
}

void TypeTable::read_array(const DebugEntry& entry, TypeInfo& type, int depth) {
  type.element = entries_.target(entry, entry.type);
  type.element_bytes = is_number(entry.byte_stride) ? entry.byte_stride.number : size_of(type.element, depth + 1);
  type.element_bytes = std::min(type.element_bytes, kMaxBytes);
  type.alignment = alignment_of(type.element, depth + 1);
  const int64_t lower_default = default_lower_bound(entry.scan->root.language);
  type.column_major = lower_default == 1;
  entries_.visit_children(entry, [&](const DebugEntry& child) {
    if (child.tag != DW_TAG_subrange_type && child.tag != DW_TAG_enumeration_type) return true;
    if (type.counts.size() >= kMaxDimensions) {
      type.truncated = true;
      return false;
    }
    const int64_t lower = is_number(child.lower_bound) ? static_cast<int64_t>(child.lower_bound.number) : lower_default;
    uint64_t count = 0;
    if (is_number(child.count)) count = child.count.number;
    else if (is_number(child.upper_bound)) count = child.upper_bound.number - static_cast<uint64_t>(lower) + 1;
    if (count > kMaxBytes) count = 0;
    type.counts.push_back(count);
    type.lower_bounds.push_back(lower);
    return true;
  });
  if (type.bytes != 0) return;
  uint64_t total = type.counts.empty() ? 0 : type.element_bytes;
  for (const uint64_t count : type.counts) total = count != 0 && total > kMaxBytes / count ? 0 : total * count;
  type.bytes = total;
}

bool TypeTable::read_field(const DebugEntry& member, TypeField& field, int depth) {
  field.type = entries_.target(member, member.type);
  field.bytes = size_of(field.type, depth + 1);
  field.is_base_class = member.tag == DW_TAG_inheritance;
  const std::string_view name = entries_.text(member, member.name);
  field.name = name;
  // GCC marks it artificial, and both name it so.
  field.is_fixed = field.is_base_class || name.starts_with("_vptr");
  field.alignment = alignment_of(field.type, depth + 1);
  if (is_number(member.alignment))
    field.alignment =
        std::max(field.alignment, power_of_two_below(std::clamp<uint64_t>(member.alignment.number, 1, kMaxBytes)));
  uint64_t offset = 0;
  if (!member.location_block.empty()) {
    ByteCursor cursor(member.location_block);
    // DWARF 2 and 3 add to the structure's address; anything longer is a virtual base.
    if (cursor.u8() != DW_OP_plus_uconst) return false;
    offset = cursor.uleb128();
    if (cursor.failed() || !cursor.at_end()) return false;
  } else if (is_number(member.member_location)) {
    offset = member.member_location.number;
  }
  if (offset > kMaxBytes) return false;
  field.offset = offset;
  if (!is_number(member.bit_size)) {
    while (field.offset % field.alignment != 0) field.alignment /= 2;  // packed
    return true;
  }
  uint64_t begin_bit = offset * 8;
  if (is_number(member.data_bit_offset)) {
    begin_bit += member.data_bit_offset.number;
  } else if (is_number(member.bit_offset)) {
    // DWARF 2 and 3 count from the highest bit of the storage unit.
    const uint64_t unit_bytes = is_number(member.byte_size) ? member.byte_size.number : field.bytes;
    begin_bit += unit_bytes * 8 - member.bit_offset.number - member.bit_size.number;
  }
  const uint64_t n_bits = member.bit_size.number;
  if (begin_bit > kMaxBytes * 8 || n_bits > 4096) return false;
  field.offset = begin_bit / 8;
  field.bit_offset = static_cast<uint32_t>(begin_bit % 8);
  field.bit_size = static_cast<uint32_t>(n_bits);
  field.bytes = (field.bit_offset + n_bits + 7) / 8;
  return true;
}

void TypeTable::read_structure(const DebugEntry& entry, TypeInfo& type, int depth) {
  type.layout_known = !entry.declaration;
  uint64_t alignment = 1;
  std::vector<TypeField> fields;
  entries_.visit_children(entry, [&](const DebugEntry& child) {
    if (child.tag == DW_TAG_variant_part) type.layout_known = false;  // Rust enumerations
    const bool is_field =
        child.tag == DW_TAG_inheritance || (child.tag == DW_TAG_member && !child.declaration && !child.external);
    if (!is_field) return true;
    if (fields.size() >= kMaxFields) {
      type.truncated = true;
      return false;
    }
    TypeField field = {};
    if (!read_field(child, field, depth)) {
      type.layout_known = false;
      return true;
    }
    const auto base = stripped(field.type);
    // Clang describes a class only where its constructor is: its size may be in no file we have.
    if (base && base->declaration) type.layout_known = false;
    // An empty base takes no room although its own size is 1.
    if (field.is_base_class) {
      const TypeInfo* base_type = base ? layout(base->id, depth + 1) : nullptr;
      if (base_type && base_type->fields.empty() && base_type->layout_known && base_type->bytes == 1) field.bytes = 0;
    }
    // Bit-fields align their structure only through their declared type, which x86 and ARM do.
    alignment = std::max(alignment, field.alignment);
    fields.push_back(std::move(field));
    return true;
  });
  type.fields = std::move(fields);
  if (is_number(entry.alignment))
    alignment = std::max(alignment, power_of_two_below(std::clamp<uint64_t>(entry.alignment.number, 1, kMaxBytes)));
  while (alignment > 1 && type.bytes % alignment != 0) alignment /= 2;  // packed
  type.alignment = alignment;
  for (TypeField& field : type.fields) field.alignment = std::min(field.alignment, alignment);
  type.packed_bytes = type.bytes;
  if (!type.layout_known || type.truncated) return;
  if (type.kind == TypeKind::union_) {
    uint64_t end = 0;
    for (const TypeField& field : type.fields) end = std::max(end, field.offset + field.bytes);
    if (end < type.bytes) type.padding_bytes = type.tail_padding_bytes = type.bytes - end;
    return;
  }
  find_holes(type);
  type.packed_bytes = packed_size(type);
}

}  // namespace memlens::symbols
