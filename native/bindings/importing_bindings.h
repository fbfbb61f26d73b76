// Registers what native/core/importing offers.
#pragma once

#include <nanobind/nanobind.h>

void bind_importing(nanobind::module_& module);
