// Python's view of native/core/symbols/variables.h: variables as columns, types as dictionaries.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <string>
#include <vector>

#include "os_text.h"
#include "symbols/variables.h"

namespace nb = nanobind;
using namespace nb::literals;
namespace sym = memlens::symbols;

namespace {

template <typename T, typename Get>
auto numbers(const std::vector<const sym::Variable*>& list, Get get) {
  auto* owned = new std::vector<T>;
  nb::capsule owner(owned, [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
  owned->reserve(list.size());
  for (const auto* variable : list) owned->push_back(static_cast<T>(get(*variable)));
  return nb::ndarray<nb::numpy, T, nb::ndim<1>>(owned->data(), {owned->size()}, owner);
}

template <typename Get>
nb::list texts(const std::vector<const sym::Variable*>& list, Get get) {
  nb::list result;
  for (const auto* variable : list) result.append(shown_text(get(*variable)));
  return result;
}

nb::object type_dict(const std::shared_ptr<const sym::TypeInfo>& type) {
  if (!type) return nb::none();
  nb::dict result;
  result["id"] = type->id;
  result["kind"] = sym::type_kind_name(type->kind);
  result["name"] = shown_text(type->name);
  result["bytes"] = type->bytes;
  result["alignment"] = type->alignment;
  nb::list fields;
  for (const auto& field : type->fields) {
    nb::dict entry;
    entry["name"] = shown_text(field.name);
    entry["offset"] = field.offset;
    entry["bytes"] = field.bytes;
    entry["type"] = shown_text(field.type_name);
    entry["type_id"] = field.type;
    entry["bit_offset"] = field.bit_offset;
    entry["bit_size"] = field.bit_size;
    entry["alignment"] = field.alignment;
    entry["is_base_class"] = field.is_base_class;
    fields.append(entry);
  }
  result["fields"] = fields;
  result["layout_known"] = type->layout_known;
  nb::list holes;
  for (const auto& hole : type->holes) holes.append(nb::make_tuple(hole.offset, hole.bytes));
  result["holes"] = holes;
  result["tail_padding_bytes"] = type->tail_padding_bytes;
  result["padding_bytes"] = type->padding_bytes;
  result["packed_bytes"] = type->packed_bytes;
  result["element_id"] = type->element;
  result["element_bytes"] = type->element_bytes;
  result["counts"] = type->counts;
  result["truncated"] = type->truncated;
  return result;
}

class Variables {
 public:
  Variables(const OsText& path, const std::string& build_id, const std::vector<OsText>& debug_directories) {
    sym::OpenOptions options;
    options.expected_build_id_hex = build_id;
    if (!debug_directories.empty()) options.debug_directories.clear();
    for (const OsText& directory : debug_directories) options.debug_directories.push_back(directory.bytes);
    nb::gil_scoped_release unlocked;
    module_ = sym::ModuleVariables::open(path.bytes, options);
  }
  nb::str status() const { return shown_text(module_->status()); }
  std::string build_id() const { return module_->build_id_hex(); }
  nb::str debug_note() const { return shown_text(module_->debug_note()); }
  bool has_debug_info() const { return module_->has_debug_info(); }
  bool truncated() const { return module_->truncated(); }
  uint64_t tls_bytes() const { return module_->tls_bytes(); }

  nb::list segments() const {
    nb::list result;
    for (const auto& s : module_->segments())
      result.append(nb::make_tuple(s.file_offset, s.file_bytes, s.vaddr, s.memory_bytes, s.executable));
    return result;
  }

  nb::dict variables(uint64_t min_bytes) const {
    std::vector<const sym::Variable*> list;
    for (const auto& variable : module_->variables())
      if (variable.bytes >= min_bytes) list.push_back(&variable);
    nb::dict columns;
    columns["vaddr"] = numbers<uint64_t>(list, [](const auto& v) { return v.vaddr; });
    columns["bytes"] = numbers<uint64_t>(list, [](const auto& v) { return v.bytes; });
    columns["type_bytes"] = numbers<uint64_t>(list, [](const auto& v) { return v.type_bytes; });
    columns["is_tls"] = numbers<uint8_t>(list, [](const auto& v) { return v.is_tls; });
    columns["line"] = numbers<uint32_t>(list, [](const auto& v) { return v.line; });
    columns["type_id"] = numbers<uint64_t>(list, [](const auto& v) { return v.type; });
    columns["name"] = texts(list, [](const auto& v) { return v.name; });
    columns["linkage_name"] = texts(list, [](const auto& v) { return v.linkage_name; });
    columns["file"] = texts(list, [](const auto& v) { return v.file; });
    columns["type"] = texts(list, [](const auto& v) { return v.type_name; });
    nb::list sources;
    static constexpr const char* kSources[] = {"elf", "dwarf", "both"};
    for (const auto* variable : list) sources.append(kSources[static_cast<size_t>(variable->source)]);
    columns["source"] = sources;
    return columns;
  }

  nb::object type(uint64_t id) { return type_dict(module_->describe_type(id)); }
  nb::object type_named(const std::string& name) { return type_dict(module_->describe_type(std::string_view(name))); }

  nb::object field_at(uint64_t type, uint64_t offset, bool as_array) {
    const sym::Place place = module_->field_at(type, offset, as_array);
    if (!place.found) return nb::none();
    nb::dict result;
    result["path"] = shown_text(place.path);
    result["type"] = shown_text(place.type_name);
    result["type_id"] = place.type;
    result["offset"] = place.offset_in_place;
    result["stride_bytes"] = place.stride_bytes;
    result["padding"] = place.padding;
    return result;
  }

 private:
  std::unique_ptr<sym::ModuleVariables> module_;
};

}  // namespace

void bind_variables(nb::module_& module) {
  nb::class_<Variables>(module, "ModuleVariables")
      .def(nb::init<const OsText&, const std::string&, const std::vector<OsText>&>(), "path"_a, nb::kw_only(),
           "build_id"_a = "", "debug_directories"_a = std::vector<OsText>{})
      .def_prop_ro("status", &Variables::status, "\"\" when fine, else cause and remedy.")
      .def_prop_ro("build_id", &Variables::build_id)
      .def_prop_ro("debug_note", &Variables::debug_note)
      .def_prop_ro("has_debug_info", &Variables::has_debug_info)
      .def_prop_ro("truncated", &Variables::truncated, "Limits against damaged files were reached.")
      .def_prop_ro("tls_bytes", &Variables::tls_bytes)
      .def("segments", &Variables::segments,
           "Load segments: (file offset, file bytes, vaddr, memory bytes, executable).")
      .def("variables", &Variables::variables, nb::kw_only(), "min_bytes"_a = 0, "Columns, by (is_tls, vaddr).")
      .def("type", &Variables::type, "id"_a, "One type, typedefs looked through; None if there is none.")
      .def("type_named", &Variables::type_named, "name"_a,
           "A structure, class, union or typedef: \"particle\", \"struct particle\", \"ns::particle\".")
      .def("field_at", &Variables::field_at, "type_id"_a, "offset"_a, nb::kw_only(), "as_array"_a = false,
           "What lies at an offset: path, type, stride of the innermost array; None outside the type.");
}
