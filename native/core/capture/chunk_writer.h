// Appends chunks to one record file.
//
// Owns the file descriptor, the sequence number and the compression context. A
// chunk is written whole or, when the disk is full, cut off again, so that the
// file always ends with a whole chunk. Knows nothing of what the records mean.
#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "memlens_format.h"

struct ZSTD_CCtx_s;

namespace memlens::capture {

struct ChunkInfo {
  uint16_t kind = 0;
  uint32_t process = 0;
  uint32_t thread = 0;
  uint32_t record_count = 0;
  uint64_t dropped = 0;
  uint64_t begin_ns = 0;
  uint64_t end_ns = 0;
  bool compress = true;
};

class ChunkWriter {
 public:
  // Creates `path`, which must not exist. Throws std::system_error.
  ChunkWriter(const std::string& path, ml_writer writer, int compression_level);
  ~ChunkWriter();
  ChunkWriter(const ChunkWriter&) = delete;
  ChunkWriter& operator=(const ChunkWriter&) = delete;

  // Appends one chunk. Returns 0, or the errno of a failed write; after the first
  // failure the writer is closed for good, drops everything and counts it: a file
  // with a hole in the middle would be worse than one that ends early.
  // `packed`: the payload, compressed already; empty: it is compressed here if `info` says so.
  int append(const ChunkInfo& info, std::span<const unsigned char> payload, std::span<const unsigned char> packed = {});

  uint64_t chunks() const { return sequence_; }
  uint64_t bytes() const { return file_bytes_; }
  uint64_t dropped_records() const { return dropped_records_; }
  int failed_errno() const { return failed_errno_; }
  void close();

 private:
  int write_all(std::span<iovec> parts);

  int fd_ = -1;
  int level_;
  int failed_errno_ = 0;
  uint64_t sequence_ = 0;
  uint64_t file_bytes_ = 0;
  uint64_t dropped_records_ = 0;
  ZSTD_CCtx_s* context_ = nullptr;
  std::vector<unsigned char> buffer_;
};

}  // namespace memlens::capture
