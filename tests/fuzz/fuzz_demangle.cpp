// Names of linkers: C++, Rust v0 and legacy. Oracles: what is no mangled name stays as it is; a name grows within bounds.
#include <string_view>

#include "input.h"
#include "symbols/demangle.h"

using namespace memlens::symbols;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const fuzz::Exact bytes({data, size});
  const std::string_view name(reinterpret_cast<const char*>(bytes.bytes.get()), size);
  const std::string whole = demangle(name);
  if (size < 2 || (name[0] != '_' && name[0] != 'R'))
    fuzz::require(whole == name || name.find("_Z") != name.npos || name.find("_R") != name.npos,
                  "another name stays as it is");
  const std::string v0 = demangle_rust_v0(name), legacy = demangle_rust_legacy(name);
  for (const std::string* made : {&whole, &v0, &legacy})
    fuzz::require(made->size() <= (1u << 20) + size, "a readable name is bounded");
  return 0;
}
