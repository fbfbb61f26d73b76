// Lines of MemGaze's traces. Oracles: nothing is read beyond a block, what is found does not depend on how the file is cut into blocks,
// every window is sound.
#include "blocks.h"
#include "importing/memgaze.h"

using namespace memlens::importing;

namespace {

std::string read(fuzz::View text, size_t most, bool skip, uint64_t period) {
  ChunkSink sink(1 << 12);
  MemgazeImport reader(sink, 1, period, skip);
  for (uint64_t pc = 0x1000; pc < 0x1010; pc += 4)
    reader.set_site(pc, static_cast<uint32_t>(pc % 3), pc % 8 == 0, pc % 3 == 1);
  const bool done = fuzz::feed_exactly([&](auto block) { return reader.feed(block); }, text, most) && reader.finish();
  const auto content = fuzz::content_of(sink);
  fuzz::require(!done || sink.accesses() == reader.accesses(), "each line is an access");
  std::string said = (done ? "whole " : "stopped ") + std::to_string(reader.faults().skipped) + " " +
                     std::to_string(reader.samples()) + " " + std::to_string(reader.implied_constants()) + " " +
                     std::to_string(reader.backwards()) + content;
  for (const auto& [path, number] : reader.modules()) said += path + " " + std::to_string(number);
  for (const uint16_t cpu : reader.cpus()) said += " " + std::to_string(cpu);
  return said;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  static const uint64_t kPeriods[] = {1000, 0, 1, UINT64_MAX / 2};
  const bool skip = data[0] % 2;
  const uint64_t period = kPeriods[data[1] % 4];
  const fuzz::View text(data + 2, size - 2);
  fuzz::require(read(text, 0, skip, period) == read(text, 1 + data[0] / 2, skip, period),
                "blocks do not change what is read");
  return 0;
}
