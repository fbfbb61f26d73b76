// SPDX-License-Identifier: Apache-2.0
// Identifiers with letters outside ASCII, as Rust v0 names carry them.
#pragma once

#include <string>
#include <string_view>

namespace memlens::symbols {

// Appends the decoded identifier as UTF-8; false, with `out` partly written, when it is not valid.
bool append_punycode(std::string_view ascii, std::string_view encoded, std::string& out);

}  // namespace memlens::symbols
