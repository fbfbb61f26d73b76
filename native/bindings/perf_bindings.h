// Python's view of native/perf: perf.data files.
#pragma once

#include <nanobind/nanobind.h>

namespace memlens::bindings {

void bind_perf(nanobind::module_& module);

}  // namespace memlens::bindings
