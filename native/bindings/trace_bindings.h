#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <span>

#include "replay/fault_classifier.h"

namespace nb = nanobind;

void bind_trace(nb::module_& module);
// Code and stacks of the windows of a chunk, for the replay to name.
void add_windows(memlens::replay::FaultClassifier& replay, uint32_t process, std::span<const unsigned char> payload);
