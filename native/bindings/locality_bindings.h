#pragma once

#include <nanobind/nanobind.h>

namespace nb = nanobind;

void bind_locality(nb::module_& module);
void bind_locality_trees(nb::module_& module);
