// The contract of format/ as data for Python: records, arenas, value names.
#pragma once

#include <nanobind/nanobind.h>

namespace memlens::bindings {

void add_contract(nanobind::module_& module);

}  // namespace memlens::bindings
