// Lines of valgrind's lackey. Oracles: nothing is read beyond a block, what is found does not depend on how the file is cut into blocks,
// every window is sound, and loads and stores are the accesses.
#include "blocks.h"
#include "importing/lackey.h"

using namespace memlens::importing;

namespace {

std::string read(fuzz::View text, size_t most, bool skip) {
  ChunkSink sink(1 << 12);
  LackeyImport reader(sink, 1, skip);
  const bool done = fuzz::feed_exactly([&](auto block) { return reader.feed(block); }, text, most) && reader.finish();
  const auto content = fuzz::content_of(sink);
  fuzz::require(!done || sink.accesses() == reader.loads() + reader.stores(), "loads and stores are the accesses");
  std::string said = (done ? "whole " : "stopped ") + std::to_string(reader.faults().skipped) + " " + reader.command() +
                     content + fuzz::content_of(reader.code_counts());
  for (const uint64_t pid : reader.pids()) said += " " + std::to_string(pid);
  return said;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const bool skip = data[0] % 2;
  const fuzz::View text(data + 1, size - 1);
  fuzz::require(read(text, 0, skip) == read(text, 1 + data[0] / 2, skip), "blocks do not change what is read");
  return 0;
}
