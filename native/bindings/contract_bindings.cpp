// The contract of format/ as data: what C knows by including it, Python knows by asking here. No list of its own.
#include "contract_bindings.h"

#include <cstddef>
#include <cstring>

#include "memlens_count.h"
#include "memlens_emulator.h"
#include "memlens_format.h"
#include "memlens_stream.h"
#include "memlens_trace.h"

namespace nb = nanobind;

namespace {

const char* numpy_code(const char* type) {
  if (!strcmp(type, "uint8_t")) return "<u1";
  if (!strcmp(type, "uint16_t")) return "<u2";
  if (!strcmp(type, "uint32_t")) return "<u4";
  if (!strcmp(type, "uint64_t")) return "<u8";
  if (!strcmp(type, "int16_t")) return "<i2";
  if (!strcmp(type, "int32_t")) return "<i4";
  return "<i8";
}

// The record contract as data: name → kind, version, bytes, table, text, fields.
nb::dict record_layouts() {
  nb::dict layouts;
  nb::list fields;
#define ML_RECORD(name, KIND, number, version, record_bytes, table, text) \
  {                                                                       \
    nb::dict layout;                                                      \
    layout["kind"] = number;                                              \
    layout["version"] = version;                                          \
    layout["bytes"] = record_bytes;                                       \
    layout["table"] = #table;                                             \
    layout["text"] = text;                                                \
    fields = nb::list();                                                  \
    layout["fields"] = fields;                                            \
    layouts[#name] = layout;                                              \
  }
#define ML_FIELD(name, type, field, role, text) \
  fields.append(nb::make_tuple(#field, numpy_code(#type), offsetof(ml_##name, field), #role, text));
#define ML_END(name)
#include "records.def"
#undef ML_RECORD
#undef ML_FIELD
#undef ML_END
  return layouts;
}

// The structs of both arenas as data: name → bytes and members (name, type code, offset, count; count 0: no array).
nb::dict arena_layouts() {
  nb::dict layouts;
  nb::list members;
#define ML_STRUCT(name, struct_bytes, text) \
  {                                         \
    nb::dict layout;                        \
    layout["bytes"] = struct_bytes;         \
    members = nb::list();                   \
    layout["members"] = members;            \
    layouts[#name] = layout;                \
  }
#define ML_MEMBER(name, type, member, text) \
  members.append(nb::make_tuple(#member, numpy_code(#type), offsetof(ml_##name, member), 0));
#define ML_ARRAY(name, type, member, count, text)                                        \
  members.append(nb::make_tuple(#member, numpy_code(#type), offsetof(ml_##name, member), \
                                sizeof(ml_##name::member) / sizeof(type)));
#define ML_STRUCT_END(name)
#include "count_arena.def"
#include "emulator_arena.def"
#undef ML_STRUCT
#undef ML_MEMBER
#undef ML_ARRAY
#undef ML_STRUCT_END
  return layouts;
}

// Numbers that all sides of an arena use.
nb::dict arena_constants() {
  nb::dict constants;
#define CONSTANT(name) constants[#name] = static_cast<uint64_t>(name)
  CONSTANT(ML_COUNT_MAGIC);
  CONSTANT(ML_COUNT_VERSION);
  CONSTANT(ML_COUNT_ENTRIES);
  CONSTANT(ML_COUNT_DIRECTORY_BYTE);
  CONSTANT(ML_COUNT_EVENTS);
  CONSTANT(ML_COUNT_GROUPS_MAX);
  CONSTANT(ML_COUNT_PLACE_COUNTERS);
  CONSTANT(ML_COUNT_SPAN_BYTE);
  CONSTANT(ML_COUNT_WORDS_MAX);
  CONSTANT(ML_TABLE_REFUSED);
  CONSTANT(ML_COUNT_MAX_OF_FUNCTION);
  CONSTANT(ML_COUNT_PROCESS);
  CONSTANT(ML_COUNT_MODULE);
  CONSTANT(ML_COUNT_NODE);
  CONSTANT(ML_COUNT_PLACE);
  CONSTANT(ML_COUNT_GROUPS);
  CONSTANT(ML_COUNT_ENDED);
  CONSTANT(ML_COUNT_UNATTRIBUTED);
  CONSTANT(ML_SAMPLE_ALL);
  CONSTANT(ML_SAMPLE_EVERY);
  CONSTANT(ML_SAMPLE_RANDOM);
  CONSTANT(ML_SAMPLE_BUDGET);
  CONSTANT(ML_TRACE_SHARES);
  CONSTANT(ML_TRACE_SHARES_BYTE);
  CONSTANT(ML_TRACE_FIRST_SITE);
  CONSTANT(ML_ARENA_MAGIC);
  CONSTANT(ML_ARENA_VERSION);
  CONSTANT(ML_ARENA_FIRST_BYTE);
  CONSTANT(ML_ARENA_SLOTS);
  CONSTANT(ML_ARENA_COUNTERS);
  CONSTANT(ML_ARENA_REGIONS);
  CONSTANT(ML_ARENA_MEMBERS);
  CONSTANT(ML_ARENA_RUNS);
  CONSTANT(ML_BLOCK_BYTES);
  CONSTANT(ML_SLOT_WHOLE);
  CONSTANT(ML_STREAM_ENTRIES);
#undef CONSTANT
  return constants;
}

nb::dict lists() {
  nb::dict lists;
#define ML_LIST(name, text)                                                                                 \
  {                                                                                                         \
    nb::dict items;                                                                                         \
    for (const auto& [number, item] : memlens::bindings::list_items(#name)) items[nb::int_(number)] = item; \
    lists[#name] = items;                                                                                   \
  }
#define ML_ITEM(name, VALUE, number, text)
#define ML_LIST_END(name)
#include "lists.def"
#undef ML_LIST
#undef ML_ITEM
#undef ML_LIST_END
  return lists;
}

nb::dict enum_values() {
  nb::dict families;
#define ADD(family, VALUE, number, text)                                     \
  {                                                                          \
    if (!families.contains(#family)) families[#family] = nb::dict();         \
    nb::cast<nb::dict>(families[#family])[nb::int_(number)] = nb::str(text); \
  }
  ML_ENUMS(ADD)
#undef ADD
  return families;
}

}  // namespace

std::vector<std::pair<int, const char*>> memlens::bindings::list_items(std::string_view list) {
  std::vector<std::pair<int, const char*>> items;
#define ML_LIST(name, text)
#define ML_ITEM(name, VALUE, number, text) \
  if (list == #name) items.emplace_back(number, text);
#define ML_LIST_END(name)
#include "lists.def"
#undef ML_LIST
#undef ML_ITEM
#undef ML_LIST_END
  return items;
}

void memlens::bindings::add_contract(nb::module_& module) {
  module.def("record_layouts", &record_layouts);
  module.def("enum_values", &enum_values);
  module.def("lists", &lists);
  module.def("arena_layouts", &arena_layouts);
  module.def("arena_constants", &arena_constants);
}
