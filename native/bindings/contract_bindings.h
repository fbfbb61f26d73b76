// The contract of format/ as data for Python: records, arenas, value names.
#pragma once

#include <nanobind/nanobind.h>

#include <string_view>
#include <utility>
#include <vector>

namespace memlens::bindings {

void add_contract(nanobind::module_& module);

// Numbers and names of a list of format/lists.def; none of a list that is not there.
std::vector<std::pair<int, const char*>> list_items(std::string_view list);

}  // namespace memlens::bindings
