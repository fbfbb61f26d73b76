#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <span>

#include "replay/code_resolver.h"

namespace nb = nanobind;

void bind_trace(nb::module_& module);
// Code and stacks of the windows of a chunk, to be named.
void add_windows(memlens::replay::CodeResolver& code, uint32_t process, std::span<const unsigned char> payload);
