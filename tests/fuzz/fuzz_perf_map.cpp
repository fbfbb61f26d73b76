// perf-PID.map files. Oracles: entries by address, each line is an entry or counted as malformed; what is found for an address holds it, and
// is the last line of those that do.
#include "input.h"
#include "symbols/jit_symbols.h"

using namespace memlens::symbols;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const fuzz::Exact bytes({data, size});
  const std::string_view text(reinterpret_cast<const char*>(bytes.bytes.get()), size);
  const JitSymbols symbols = JitSymbols::parse_perf_map(text);
  size_t lines = 0;
  for (size_t at = 0; at < text.size(); ++lines) {
    const size_t end = std::min(text.find('\n', at), text.size());
    if (end == at || (end == at + 1 && text[at] == '\r')) --lines;
    at = end + 1;
  }
  fuzz::require(symbols.entries().size() + symbols.n_malformed() == lines, "each line is an entry or malformed");
  uint64_t before = 0;
  for (const JitEntry& entry : symbols.entries()) {
    fuzz::require(entry.begin >= before && entry.end > entry.begin, "entries by address");
    before = entry.begin;
    for (const uint64_t address : {entry.begin, entry.end - 1, entry.end}) {
      const JitEntry* found = symbols.resolve(address, 0);
      if (address != entry.end) fuzz::require(found != nullptr, "an entry's own address is found");
      fuzz::require(!found || (found->begin <= address && address < found->end), "what is found holds the address");
    }
  }
  return 0;
}
