// Packets of Intel's Processor Trace, and what ptwrite wrote. A head says the clock, context switches and where the stream breaks.
//
// Oracles: a packet has bytes and no more than are left; nothing is read beyond a block; what is found does not depend on how the stream is
// cut into blocks; every window is sound; every write is an access or of no known thread; losses end after they begin.
#include "blocks.h"
#include "importing/pt_packets.h"
#include "importing/ptwrite.h"

using namespace memlens::importing;

namespace {

void check_packets(fuzz::View stream) {
  const fuzz::Exact copy(stream);
  fuzz::View left = copy.view();
  PtBlockState block;
  while (!left.empty()) {
    const PtPacket packet = next_packet(left, block);
    if (packet.kind == PtKind::kShort) break;
    fuzz::require(packet.bytes > 0 && packet.bytes <= left.size(), "a packet has bytes that there are");
    left = left.subspan(packet.bytes);
  }
}

std::string read(fuzz::View all, size_t most) {
  fuzz::Input input(all);
  const uint8_t how = input.byte();
  PtClock clock{1000, 3, 1, 2, 1, 3};
  if (how % 4 == 1) clock = {};
  if (how % 4 == 2)
    clock = {input.number(),
             static_cast<uint32_t>(input.number()),
             static_cast<uint16_t>(input.byte() % 64),
             static_cast<uint32_t>(input.number()),
             static_cast<uint32_t>(input.number()),
             static_cast<uint8_t>(input.byte() % 16)};
  ChunkSink sink(1 << 12);
  PtWriteImport reader(sink, clock);
  std::string said;
  for (uint8_t streams = 1 + how / 64; streams > 0; --streams) {
    const bool of_cpu = how & 4;
    reader.begin_stream(of_cpu ? streams : UINT32_MAX, of_cpu ? 0 : 1, of_cpu ? 0 : 7);
    uint64_t time = 0;
    for (uint8_t switches = input.byte() % 8; switches > 0; --switches) {
      time += input.number();
      reader.add_switch(time, input.byte() % 3, input.byte());
    }
    for (uint8_t pieces = 1 + (how & 8 ? input.byte() % 4 : 0); pieces > 0; --pieces) {
      const fuzz::View piece = pieces > 1 || streams > 1 ? input.take(input.byte()) : input.rest();
      check_packets(piece);
      fuzz::feed_exactly([&](auto block) { return reader.feed(block); }, piece, most);
      if (pieces > 1) reader.break_stream(how & 16);
    }
    reader.end_stream();
    for (const auto& loss : reader.take_losses()) {
      fuzz::require(loss.begin_ns <= loss.end_ns, "a loss ends after it begins");
      said += std::to_string(loss.begin_ns) + "-" + std::to_string(loss.end_ns) + " ";
    }
  }
  const auto content = fuzz::content_of(sink);
  const auto& counts = reader.counts();
  fuzz::require(counts.writes == sink.accesses() + counts.unknown_thread,
                "every write is an access or of no known thread");
  return said + std::to_string(counts.packets) + " " + std::to_string(counts.writes) + " " +
         std::to_string(counts.skipped_bytes) + " " + std::to_string(counts.left_bytes) + content;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  check_packets({data, size});
  fuzz::require(read({data, size}, 0) == read({data, size}, 1 + (size ? data[size - 1] % 32 : 0)),
                "blocks do not change what is read");
  return 0;
}
