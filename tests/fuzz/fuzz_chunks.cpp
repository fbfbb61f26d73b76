// A record file of any content. The mutator mends the checksums, so that what lies behind them is reached; it also cuts,
// repeats and drops chunks.
//
// Oracles: a payload is as long as its header says; what is read, skipped and left over is not more than the file; a file that grows gives
// what it gives when it is whole; looking again adds nothing.
#include "capture/chunk_reader.h"
#include "input.h"
#include "memlens_checksum.h"
#include "memlens_format.h"

using namespace memlens::capture;

namespace {

constexpr uint64_t kMostDecoded = 32 << 20;  // of all chunks of one input: more tells nothing new

uint64_t padded(uint64_t bytes) { return (bytes + 7) & ~uint64_t{7}; }

// Checksums of the file's and of each chunk's header, where they stand.
void mend(uint8_t* data, size_t size) {
  ml_file_header file;
  if (size < sizeof file) return;
  memcpy(&file, data, sizeof file);
  file.magic = ML_FILE_MAGIC;
  file.checksum = ml_checksum(&file, offsetof(ml_file_header, checksum));
  memcpy(data, &file, sizeof file);
  for (size_t at = file.header_bytes; at < size && size - at >= sizeof(ml_chunk_header);) {
    ml_chunk_header chunk;
    memcpy(&chunk, data + at, sizeof chunk);
    if (chunk.magic != ML_CHUNK_MAGIC) break;
    const size_t stored = std::min<size_t>(chunk.stored_bytes, size - at - sizeof chunk);
    chunk.payload_checksum = ml_checksum(data + at + sizeof chunk, stored);
    chunk.header_checksum = ml_checksum(&chunk, offsetof(ml_chunk_header, header_checksum));
    memcpy(data + at, &chunk, sizeof chunk);
    at += sizeof chunk + padded(chunk.stored_bytes);
  }
}

std::vector<std::pair<size_t, size_t>> chunks_of(const uint8_t* data, size_t size) {
  std::vector<std::pair<size_t, size_t>> found;
  for (size_t at = sizeof(ml_file_header); at < size && size - at >= sizeof(ml_chunk_header);) {
    ml_chunk_header chunk;
    memcpy(&chunk, data + at, sizeof chunk);
    const size_t bytes = std::min<uint64_t>(size - at, sizeof chunk + padded(chunk.stored_bytes));
    if (chunk.magic != ML_CHUNK_MAGIC) break;
    found.emplace_back(at, bytes);
    at += bytes;
  }
  return found;
}

std::vector<uint64_t> read_all(ChunkReader& reader) {
  std::vector<uint64_t> said;
  uint64_t decoded = 0;
  for (size_t i = 0; i < reader.chunks().size() && decoded < kMostDecoded; ++i) {
    const ChunkEntry entry = reader.chunks()[i];
    decoded += entry.header.payload_bytes;
    if (decoded > kMostDecoded) break;
    const auto payload = reader.payload(entry);
    said.push_back(payload ? ml_checksum(payload->data(), payload->size()) : 0);
    if (payload)
      fuzz::require(payload->size() == entry.header.payload_bytes, "a payload is as long as its header says");
  }
  return said;
}

}  // namespace

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t most, unsigned seed) {
  const auto chunks = chunks_of(data, size);
  if (seed % 8 == 0 && !chunks.empty()) {  // the boundaries themselves
    const auto [at, bytes] = chunks[seed / 8 % chunks.size()];
    if (seed % 3 == 0) return at;
    if (seed % 3 == 1) {
      memmove(data + at, data + at + bytes, size - at - bytes);
      return size - bytes;
    }
    if (bytes <= most - size) {
      memmove(data + at + bytes, data + at, size - at);
      return size + bytes;
    }
  }
  size = LLVMFuzzerMutate(data, size, most);
  if (seed % 16 != 1) mend(data, size);
  return size;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const fuzz::MemoryFile file({data, size});
  try {
    ChunkReader reader(file.path());
    reader.refresh();
    const auto& damage = reader.damage();
    uint64_t known = damage.torn_tail_bytes + damage.bad_header_bytes;
    for (const auto& entry : reader.chunks()) known += sizeof entry.header + padded(entry.header.stored_bytes);
    fuzz::require(known <= size, "chunks and damage are not more than the file");
    const auto whole = read_all(reader);
    fuzz::require(reader.refresh() == 0, "looking again finds nothing new");

    // The same file as it grows. Damage in the middle may look like an end, so only what is sound is compared.
    if (damage.bad_header_bytes != 0 || size < sizeof(ml_file_header) + 8) return 0;
    const size_t part = sizeof(ml_file_header) + data[size - 1] * (size - sizeof(ml_file_header)) / 256;
    const fuzz::MemoryFile growing({data, part});
    ChunkReader follower(growing.path());
    follower.refresh();
    growing.write({data, size});
    follower.refresh();
    fuzz::require(follower.chunks().size() == reader.chunks().size(), "a growing file gives all chunks");
    fuzz::require(read_all(follower) == whole, "a growing file gives the same payloads");
  } catch (const FormatError&) {
  }
  return 0;
}
