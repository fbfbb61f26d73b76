// Python's view of native/core/counting.
#include "counting_bindings.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <vector>

#include "arrays.h"
#include "contract_bindings.h"
#include "counting/static_tables.h"

using namespace nb::literals;

namespace {

using namespace memlens::bindings;
using memlens::counting::Bytes;
using memlens::counting::StaticTables;

nb::dict decode(const nb::bytes& functions, uint64_t functions_address, const nb::bytes& tables,
                uint64_t tables_address) {
  StaticTables found;
  {
    const Bytes first = view(functions), second = view(tables);
    nb::gil_scoped_release unlocked;
    found = memlens::counting::decode_static_tables(first, functions_address, second, tables_address);
  }
  nb::list strings;
  for (const auto& text : found.strings) {
    // Names come from other people's compilers: what is not UTF-8 is escaped, not refused.
    PyObject* decoded = PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "backslashreplace");
    if (decoded == nullptr) throw nb::python_error();
    strings.append(nb::steal(decoded));
  }
  nb::dict functions_of, scopes, blocks, sites, result;
  functions_of["name"] = owned(std::move(found.functions.name));
  functions_of["file"] = owned(std::move(found.functions.file));
  functions_of["line"] = owned(std::move(found.functions.line));
  functions_of["flags"] = owned(std::move(found.functions.flags));
  functions_of["counters"] = owned(std::move(found.functions.counters));
  functions_of["first_counter"] = owned(std::move(found.functions.first_counter));
  functions_of["sound"] = owned(std::move(found.functions.sound));
  scopes["function"] = owned(std::move(found.scopes.function));
  scopes["name"] = owned(std::move(found.scopes.name));
  scopes["file"] = owned(std::move(found.scopes.file));
  scopes["line"] = owned(std::move(found.scopes.line));
  scopes["parent"] = owned(std::move(found.scopes.parent));
  scopes["call_line"] = owned(std::move(found.scopes.call_line));
  scopes["call_column"] = owned(std::move(found.scopes.call_column));
  blocks["function"] = owned(std::move(found.blocks.function));
  blocks["group"] = owned(std::move(found.blocks.group));
  blocks["depth"] = owned(std::move(found.blocks.depth));
  blocks["line"] = owned(std::move(found.blocks.line));
  blocks["has_mix"] = owned(std::move(found.blocks.has_mix));
  for (const auto& [number, name] : list_items("block_mix"))
    blocks[name] = owned(std::move(found.blocks.mix[static_cast<size_t>(number)]));
  sites["kind"] = owned(std::move(found.sites.kind));
  sites["flags"] = owned(std::move(found.sites.flags));
  sites["function"] = owned(std::move(found.sites.function));
  sites["block"] = owned(std::move(found.sites.block));
  sites["group"] = owned(std::move(found.sites.group));
  sites["scope"] = owned(std::move(found.sites.scope));
  sites["file"] = owned(std::move(found.sites.file));
  sites["line"] = owned(std::move(found.sites.line));
  sites["column"] = owned(std::move(found.sites.column));
  sites["callee"] = owned(std::move(found.sites.callee));
  sites["bytes"] = owned(std::move(found.sites.bytes));
  sites["bytes_counter"] = owned(std::move(found.sites.bytes_counter));
  nb::dict traced;
  traced["number"] = owned(std::move(found.traced.number));
  traced["site"] = owned(std::move(found.traced.site));
  traced["class"] = owned(std::move(found.traced.address_class));
  traced["kind"] = owned(std::move(found.traced.kind));
  traced["is_written"] = owned(std::move(found.traced.is_written));
  traced["step_bytes"] = owned(std::move(found.traced.step_bytes));
  traced["bytes"] = owned(std::move(found.traced.bytes));
  traced["stand_in"] = owned(std::move(found.traced.stand_in));
  result["traced"] = traced;
  nb::dict loops;
  loops["function"] = owned(std::move(found.loops.function));
  loops["parent"] = owned(std::move(found.loops.parent));
  loops["scope"] = owned(std::move(found.loops.scope));
  loops["file"] = owned(std::move(found.loops.file));
  loops["line"] = owned(std::move(found.loops.line));
  loops["column"] = owned(std::move(found.loops.column));
  result["loops"] = loops;
  result["loop_of_site"] = owned(std::move(found.loop_of_site));
  result["trace_sites"] = found.trace_sites;
  result["strings"] = strings;
  result["functions"] = functions_of;
  result["counter_kind"] = owned(std::move(found.counter_kind));
  result["first_term"] = owned(std::move(found.first_term));
  result["term_counter"] = owned(std::move(found.term_counter));
  result["term_scale"] = owned(std::move(found.term_scale));
  result["scopes"] = scopes;
  result["blocks"] = blocks;
  result["sites"] = sites;
  nb::list problems;
  for (const auto& text : found.problems) problems.append(text);
  result["problems"] = problems;
  result["damaged_functions"] = found.damaged_functions;
  return result;
}

}  // namespace

void bind_counting(nb::module_& module) {
  module.def("decode_count_tables", &decode, "functions"_a, nb::kw_only(), "functions_address"_a, "tables"_a,
             "tables_address"_a, "Columns of a counted module's static tables, and what is wrong with them.");
}
