// Entries of drmemtrace, in one file or two. Oracles: nothing is read beyond a block, what is found does not depend on how a file is cut into
// blocks, every window is sound, and loads and stores are the accesses.
#include "blocks.h"
#include "importing/drmemtrace.h"

using namespace memlens::importing;

namespace {

std::string read(fuzz::View content, size_t most, size_t second) {
  ChunkSink sink(1 << 12);
  DrmemtraceImport reader(sink);
  std::string said;
  bool done = true;
  for (const fuzz::View file : {content.first(second), content.subspan(second)}) {
    if (!done) break;
    reader.begin_file();
    done = fuzz::feed_exactly([&](auto block) { return reader.feed(block); }, file, most);
    const bool some = reader.end_file();
    said += (done ? "whole " : "stopped ") + std::to_string(reader.left_bytes()) + (some ? " " : " nothing ") +
            (reader.fault() ? reader.fault()->text : "");
  }
  const auto chunks = fuzz::content_of(sink);
  fuzz::require(sink.accesses() == reader.loads() + reader.stores(), "loads and stores are the accesses");
  uint64_t of_threads = 0;
  for (const auto& thread : reader.threads()) of_threads += thread.accesses;
  fuzz::require(of_threads == sink.accesses(), "accesses are those of threads");
  return said + std::to_string(reader.gaps()) + " " + std::to_string(reader.instructions()) + chunks +
         fuzz::content_of(reader.code_counts());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  const fuzz::View content(data + 2, size - 2);
  const size_t second = data[1] < 128 ? content.size() : content.size() * (data[1] - 128u) / 128;
  fuzz::require(read(content, 0, second) == read(content, 1 + data[0] % 64, second),
                "blocks do not change what is read");
  return 0;
}
