// Reads the chunks of one record file, whole or damaged, finished or growing.
//
// Framing only: the payload of a chunk is handed out decoded and verified, what
// its records mean is the caller's business. Nothing is trusted: every length is
// checked against the file and every checksum is verified before use. Not
// thread-safe; open one reader a thread.
#pragma once

#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <vector>

#include "memlens_format.h"

struct ZSTD_DCtx_s;

namespace memlens::capture {

struct ChunkEntry {
  ml_chunk_header header;
  uint64_t offset;  // of the chunk header in the file
};

// What a scan could not give, and why. All zero for a healthy finished file.
struct FileDamage {
  uint64_t torn_tail_bytes = 0;     // an unfinished chunk at the end
  uint64_t bad_header_bytes = 0;    // skipped while looking for the next good header
  uint64_t bad_payload_chunks = 0;  // checksum of the payload differs
  uint64_t missing_chunks = 0;      // gaps in the sequence numbers
};

class ChunkReader {
 public:
  // Throws std::system_error (cannot open) or FormatError (see below).
  explicit ChunkReader(const std::string& path);
  ~ChunkReader();
  ChunkReader(const ChunkReader&) = delete;
  ChunkReader& operator=(const ChunkReader&) = delete;

  const ml_file_header& file_header() const { return file_header_; }

  // Indexes chunks that were added since the last call; returns how many.
  // A partial chunk at the end is left for the next call and counted in
  // damage().torn_tail_bytes meanwhile.
  size_t refresh();

  const std::vector<ChunkEntry>& chunks() const { return chunks_; }
  const FileDamage& damage() const { return damage_; }

  // Decodes one chunk. nullopt (and damage().bad_payload_chunks) if it is damaged.
  std::optional<std::vector<unsigned char>> payload(const ChunkEntry& entry);

 private:
  bool read_at(uint64_t offset, void* into, size_t bytes) const;

  int fd_ = -1;
  ml_file_header file_header_{};
  uint64_t scanned_to_ = 0;
  uint64_t next_sequence_ = 0;
  std::vector<ChunkEntry> chunks_;
  std::vector<uint64_t> bad_offsets_;
  FileDamage damage_;
  ZSTD_DCtx_s* context_ = nullptr;
};

// The file is not one that this build can read; `kind` tells the three cases apart.
struct FormatError : std::exception {
  enum Kind { not_memlens, version_unsupported, truncated };
  FormatError(Kind k, std::string p, uint32_t v) : kind(k), path(std::move(p)), version(v) {}
  const char* what() const noexcept override { return "not a readable memlens record file"; }
  Kind kind;
  std::string path;
  uint32_t version;
};

}  // namespace memlens::capture
