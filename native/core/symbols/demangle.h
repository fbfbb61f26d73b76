// SPDX-License-Identifier: Apache-2.0
// Readable names from linker names: C++ (Itanium ABI), Rust v0 and Rust legacy.
#pragma once

#include <string>
#include <string_view>

namespace memlens::symbols {

// The input unchanged when it is not mangled, or not validly. Never throws for any input.
std::string demangle(std::string_view mangled);

// The parts, each "" when the name is not of its scheme. `demangle` tries them in the right order.
std::string demangle_rust_v0(std::string_view mangled);      // _R...
std::string demangle_rust_legacy(std::string_view mangled);  // _ZN...17h<16 hex digits>E

}  // namespace memlens::symbols
