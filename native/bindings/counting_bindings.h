// Python's view of native/core/counting.
#pragma once

#include <nanobind/nanobind.h>

namespace nb = nanobind;

void bind_counting(nb::module_& module);
