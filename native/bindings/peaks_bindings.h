#pragma once
#include <nanobind/nanobind.h>

void bind_peaks(nanobind::module_& module);
