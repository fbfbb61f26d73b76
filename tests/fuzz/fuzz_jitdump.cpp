// jitdump files. Oracles: entries by address; what is found for an address and time holds them; lines by offset; memory in
// proportion to the file.
#include <set>

#include "input.h"
#include "symbols/jit_symbols.h"

using namespace memlens::symbols;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const fuzz::Exact bytes({data, size});
  const JitSymbols symbols = JitSymbols::parse_jitdump(bytes.view());
  uint64_t before = 0, lines = 0, text = 0;
  std::set<const void*> known;  // what entries share is there once
  for (const JitEntry& entry : symbols.entries()) {
    fuzz::require(entry.begin >= before && entry.end > entry.begin, "entries by address");
    before = entry.begin;
    text += entry.name.size();
    if (entry.lines && known.insert(entry.lines.get()).second) {
      lines += entry.lines->size();
      for (size_t i = 0; i < entry.lines->size(); ++i) {
        const JitLine& line = (*entry.lines)[i];
        if (known.insert(line.file_name.get()).second) text += line.file().size();
        fuzz::require(i == 0 || (*entry.lines)[i - 1].offset_bytes <= line.offset_bytes, "lines by offset");
      }
    }
    const JitEntry* found = symbols.resolve(entry.begin, entry.begin_time_ns);
    fuzz::require(found || entry.end_time_ns <= entry.begin_time_ns, "an entry's own address is found");
    fuzz::require(!found || (found->begin <= entry.begin && entry.begin < found->end),
                  "what is found holds the address");
    (void)entry.line_at(entry.end - 1);
  }
  fuzz::require(lines <= size && text <= (kLongestJitName / 64 + 1) * size, "memory in proportion to the file");
  return 0;
}
