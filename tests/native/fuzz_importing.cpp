// Arbitrary bytes to every reader of traces: nothing is read beyond a block, what is found does not depend on how the
// bytes are cut into blocks, and every window that comes out is sound.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "importing/drmemtrace.h"
#include "importing/lackey.h"
#include "importing/memgaze.h"
#include "importing/pt_packets.h"
#include "importing/ptwrite.h"
#include "trace/window_walk.h"

using namespace memlens;
using namespace memlens::importing;

namespace {

std::mt19937_64 source(23);
using Bytes = std::vector<unsigned char>;

// Exactly as long as it is said to be, so that the sanitizer sees a byte too many.
bool feed_exactly(const std::function<bool(std::span<const unsigned char>)>& feed, const Bytes& bytes, size_t most) {
  for (size_t at = 0; at < bytes.size();) {
    const size_t size = std::min(bytes.size() - at, most == 0 ? bytes.size() : 1 + source() % most);
    auto block = std::make_unique<unsigned char[]>(size);
    memcpy(block.get(), bytes.data() + at, size);
    if (!feed({block.get(), size})) return false;
    at += size;
  }
  return true;
}

// All payloads of a sink, or "damaged" when a window is not sound.
std::string content_of(ChunkSink& sink) {
  sink.flush();
  std::string all;
  trace::WindowWalker walker;
  for (const auto& chunk : sink.take()) {
    all.append(reinterpret_cast<const char*>(chunk.payload.data()), chunk.payload.size());
    walker.walk(chunk.payload, [](const trace::Part&) {}, [&](const ml_window&, uint32_t) { all = "damaged"; });
  }
  return all;
}

Bytes text(size_t lines, bool is_memgaze) {
  std::string made;
  char line[128];
  static const char* const kKinds[] = {"I ", " L", " S", " M", "==1== "};
  for (size_t i = 0; i < lines; ++i) {
    if (is_memgaze)
      snprintf(line, sizeof line, "0x%llx 0x%llx %d %d.%09d %d\n", static_cast<unsigned long long>(source() >> source() % 60),
               static_cast<unsigned long long>(source() >> source() % 60), static_cast<int>(source() % 3),
               static_cast<int>(source() % 50), static_cast<int>(source() % 1000000000), static_cast<int>(source() % 4));
    else
      snprintf(line, sizeof line, "%s %llx,%d\n", kKinds[source() % 5],
               static_cast<unsigned long long>(source() >> source() % 60), static_cast<int>(1 + source() % 64));
    made += line;
  }
  return {made.begin(), made.end()};
}

Bytes entries(size_t count) {
  Bytes made;
  const auto add = [&](uint16_t type, uint16_t size, uint64_t address) {
    const unsigned char raw[12] = {static_cast<unsigned char>(type), static_cast<unsigned char>(type >> 8),
                                   static_cast<unsigned char>(size), static_cast<unsigned char>(size >> 8)};
    made.insert(made.end(), raw, raw + 4);
    for (int i = 0; i < 8; ++i) made.push_back(static_cast<unsigned char>(address >> (8 * i)));
  };
  add(25, 0, 7);
  add(22, 4, 9);
  add(24, 4, 9);
  for (size_t i = 0; i < count; ++i)
    add(static_cast<uint16_t>(source() % 50), static_cast<uint16_t>(source() % 20), source() >> source() % 60);
  return made;
}

Bytes packets(size_t count) {
  Bytes made;
  const auto add = [&](std::initializer_list<int> head, size_t tail) {
    for (int byte : head) made.push_back(static_cast<unsigned char>(byte));
    for (size_t i = 0; i < tail; ++i) made.push_back(static_cast<unsigned char>(source()));
  };
  for (size_t i = 0; i < count; ++i) switch (source() % 14) {
      case 0: for (int j = 0; j < 8; ++j) add({0x02, 0x82}, 0); break;
      case 1: add({0x02, 0x23}, 0); break;
      case 2: add({0x19}, 7); break;
      case 3: add({0x59}, 1); break;
      case 4: add({0x02, 0x73}, 5); break;
      case 5: add({0x02, 0x32}, 8); break;
      case 6: add({0x02, 0xb2}, 8); add({0x1d | 3 << 5}, 6); break;
      case 7: add({0x02, 0x12}, 4); break;
      case 8: add({0x02, 0xf3}, 0); break;
      case 9: add({0x01}, 0); break;
      case 10: add({0x11 | 6 << 5}, 8); break;
      case 11: add({0x02, 0x63}, 1); add({0x04}, 8); break;
      case 12: add({0x00}, 0); break;
      default: add({static_cast<int>(source() & 0xff)}, source() % 3); break;
    }
  return made;
}

void damage(Bytes& bytes) {
  if (bytes.empty()) return;
  for (uint64_t i = source() % 4; i > 0; --i) bytes[source() % bytes.size()] = static_cast<unsigned char>(source());
  if (source() % 4 == 0) bytes.resize(source() % (bytes.size() + 1));
}

std::string read_lines(const Bytes& bytes, size_t most, bool is_memgaze, bool skip) {
  ChunkSink sink(1 << 12);
  if (is_memgaze) {
    MemgazeImport reader(sink, 1, 1000, skip);
    const bool done = feed_exactly([&](auto block) { return reader.feed(block); }, bytes, most) && reader.finish();
    return (done ? "whole" : "stopped") + std::to_string(reader.faults().skipped) + content_of(sink);
  }
  LackeyImport reader(sink, 1, skip);
  const bool done = feed_exactly([&](auto block) { return reader.feed(block); }, bytes, most) && reader.finish();
  return (done ? "whole" : "stopped") + std::to_string(reader.faults().skipped) + content_of(sink);
}

std::string read_entries(const Bytes& bytes, size_t most) {
  ChunkSink sink(1 << 12);
  DrmemtraceImport reader(sink);
  reader.begin_file();
  const bool done = feed_exactly([&](auto block) { return reader.feed(block); }, bytes, most);
  reader.end_file();
  return (done ? "whole" : "stopped") + std::to_string(reader.left_bytes()) + content_of(sink);
}

std::string read_packets(const Bytes& bytes, size_t most) {
  ChunkSink sink(1 << 12);
  PtClock clock{1000, 3, 1, 2, 1, 3};
  PtWriteImport reader(sink, clock);
  reader.begin_stream(0, 1, 7);
  feed_exactly([&](auto block) { return reader.feed(block); }, bytes, most);
  reader.end_stream();
  std::string said;
  for (const auto& loss : reader.take_losses()) said += std::to_string(loss.begin_ns) + "-" + std::to_string(loss.end_ns) + " ";
  const auto& counts = reader.counts();
  return said + std::to_string(counts.packets) + " " + std::to_string(counts.writes) + " " + std::to_string(counts.skipped_bytes) +
         " " + std::to_string(counts.left_bytes) + content_of(sink);
}

// Bytes that were walked, skipped and left over are all bytes.
int check_packets(const Bytes& bytes) {
  auto copy = std::make_unique<unsigned char[]>(bytes.size());
  if (!bytes.empty()) memcpy(copy.get(), bytes.data(), bytes.size());
  std::span<const unsigned char> left{copy.get(), bytes.size()};
  PtBlockState block;
  while (!left.empty()) {
    const PtPacket packet = next_packet(left, block);
    if (packet.kind == PtKind::kShort) break;
    if (packet.bytes == 0 || packet.bytes > left.size()) return 1;
    left = left.subspan(packet.bytes);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? atoi(argv[1]) : 2000;
  int failed = 0;
  const auto same = [&](const char* what, const std::string& whole, const std::string& cut) {
    if (whole == cut && whole.find("damaged") == std::string::npos) return;
    if (++failed < 5) printf("%s: %.60s | %.60s\n", what, whole.c_str(), cut.c_str());
  };
  for (int round = 0; round < rounds; ++round) {
    Bytes lines = text(source() % 60, round % 2 == 0), dr = entries(source() % 80), pt = packets(source() % 80);
    if (round % 3) damage(lines), damage(dr), damage(pt);
    const size_t most = 1 + source() % 30;
    const bool skip = source() % 2 == 0;
    same("lines", read_lines(lines, 0, round % 2 == 0, skip), read_lines(lines, most, round % 2 == 0, skip));
    same("entries", read_entries(dr, 0), read_entries(dr, most));
    same("packets", read_packets(pt, 0), read_packets(pt, most));
    failed += check_packets(pt);
    Bytes noise(source() % 300);
    for (auto& byte : noise) byte = static_cast<unsigned char>(source());
    failed += check_packets(noise);
    same("noise as packets", read_packets(noise, 0), read_packets(noise, most));
    same("noise as lines", read_lines(noise, 0, false, true), read_lines(noise, most, false, true));
  }
  printf("%d rounds, %d failures\n", rounds, failed);
  return failed == 0 ? 0 : 1;
}
