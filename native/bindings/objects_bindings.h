#pragma once

#include <nanobind/nanobind.h>

namespace nb = nanobind;

void bind_objects(nb::module_& module);
