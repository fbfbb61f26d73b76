#pragma once

#include <nanobind/nanobind.h>

namespace nb = nanobind;

void bind_replay(nb::module_& module);
