// A record file of our own writer, then damaged: flips, cuts, insertions, moved and repeated parts.
//
// Oracles: what the writer wrote is all there; after damage nothing that differs from what was written is handed out, and the reader ends.
#include <set>

#include "capture/chunk_reader.h"
#include "capture/chunk_writer.h"
#include "input.h"

using namespace memlens::capture;

namespace {

struct Written {
  fuzz::Bytes content;
  std::set<std::vector<unsigned char>> payloads;
};

// One original for all inputs: damage is what differs.
const Written& original() {
  static const Written made = [] {
    Written written;
    const std::string path = "/dev/shm/memlens-fuzz-" + std::to_string(getpid());
    unlink(path.c_str());
    uint32_t state = 20260101;
    {
      ChunkWriter writer(path, ML_WRITER_RECORDER, 1);
      for (int i = 0; i < 12; ++i) {
        std::vector<unsigned char> payload((state = state * 1664525 + 1013904223) % 700);
        for (auto& byte : payload)
          byte = static_cast<unsigned char>(i % 2 ? (state = state * 1664525 + 1013904223) >> 24 : i);
        written.payloads.insert(payload);
        ChunkInfo info;
        info.kind = static_cast<uint16_t>(16 + i % 3);
        info.record_count = 1;
        fuzz::require(writer.append(info, payload) == 0, "a chunk is written");
      }
    }
    FILE* file = fopen(path.c_str(), "rb");
    fuzz::require(file != nullptr, "the file that was written opens");
    for (int byte; (byte = fgetc(file)) != EOF;) written.content.push_back(static_cast<unsigned char>(byte));
    fclose(file);
    ChunkReader reader(path);
    fuzz::require(reader.refresh() == 12, "all chunks that were written are there");
    for (const auto& entry : reader.chunks()) {
      const auto payload = reader.payload(entry);
      fuzz::require(payload && written.payloads.count(*payload), "what was written is read");
    }
    unlink(path.c_str());
    return written;
  }();
  return made;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const Written& written = original();
  fuzz::Input input(data, size);
  fuzz::Bytes bytes = written.content;
  for (int edits = 0; edits < 64 && !input.empty(); ++edits) {
    const uint8_t what = input.byte();
    const size_t at = input.below(bytes.size()), length = std::min<size_t>(1 + input.byte(), bytes.size() - at);
    const auto from = bytes.begin() + static_cast<std::ptrdiff_t>(at);
    switch (what % 6) {
      case 0: bytes[at] = input.byte(); break;
      case 1: bytes[at] ^= static_cast<unsigned char>(1 << what / 6 % 8); break;
      case 2: bytes.resize(at + 1); break;
      case 3: bytes.insert(from, length, input.byte()); break;
      case 4: bytes.erase(from, from + static_cast<std::ptrdiff_t>(length)); break;
      default: {  // a part of it again, somewhere else
        const fuzz::Bytes part(from, from + static_cast<std::ptrdiff_t>(length));
        const size_t to = input.below(bytes.size() + 1) / 8 * 8;
        bytes.insert(bytes.begin() + static_cast<std::ptrdiff_t>(to), part.begin(), part.end());
      }
    }
    if (bytes.empty()) bytes.push_back(0);
  }
  const fuzz::MemoryFile file(bytes);
  try {
    ChunkReader reader(file.path());
    reader.refresh();
    for (size_t i = 0; i < reader.chunks().size(); ++i) {
      const auto payload = reader.payload(reader.chunks()[i]);
      fuzz::require(!payload || written.payloads.count(*payload),
                    "nothing that differs from what was written is handed out");
    }
  } catch (const FormatError&) {
  }
  return 0;
}
