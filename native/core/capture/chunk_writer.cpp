#include "chunk_writer.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <zstd.h>

#include <cerrno>
#include <cstring>
#include <new>
#include <system_error>

#include "memlens_checksum.h"

namespace memlens::capture {
namespace {

uint64_t clock_ns(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000u + static_cast<uint64_t>(now.tv_nsec);
}

}  // namespace

ChunkWriter::ChunkWriter(const std::string& path, ml_writer writer, int compression_level) : level_(compression_level) {
  fd_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_APPEND, 0600);
  if (fd_ < 0) throw std::system_error(errno, std::generic_category(), path);
  if (fchmod(fd_, 0600) != 0) errno = 0;  // against a umask that takes our own permission; best effort
  context_ = ZSTD_createCCtx();
  if (context_ == nullptr) {
    ::close(fd_);
    throw std::bad_alloc();
  }
  ml_file_header header{};
  header.magic = ML_FILE_MAGIC;
  header.format_version = ML_FORMAT_CURRENT;
  header.header_bytes = sizeof header;
  header.created_monotonic_ns = clock_ns(CLOCK_MONOTONIC);
  header.created_unix_ns = clock_ns(CLOCK_REALTIME);
  header.pid = static_cast<uint32_t>(getpid());
  header.writer = writer;
  header.checksum = ml_checksum(&header, offsetof(ml_file_header, checksum));
  iovec whole{&header, sizeof header};
  failed_errno_ = write_all({&whole, 1});
  if (failed_errno_ != 0) {
    const int error = failed_errno_;
    close();
    ZSTD_freeCCtx(context_);
    context_ = nullptr;
    throw std::system_error(error, std::generic_category(), path);
  }
}

ChunkWriter::~ChunkWriter() {
  close();
  ZSTD_freeCCtx(context_);
}

void ChunkWriter::close() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

int ChunkWriter::write_all(std::span<iovec> parts) {
  uint64_t written = 0;
  while (!parts.empty()) {
    const ssize_t step = ::writev(fd_, parts.data(), static_cast<int>(parts.size()));
    if (step < 0 && errno == EINTR) continue;
    if (step <= 0) {
      const int error = step < 0 ? errno : EIO;
      // Cut the torn chunk off; if even that fails the reader finds the torn end by itself.
      if (ftruncate(fd_, static_cast<off_t>(file_bytes_)) != 0) return error;
      return error;
    }
    written += static_cast<uint64_t>(step);
    size_t left = static_cast<size_t>(step);
    while (!parts.empty() && left >= parts.front().iov_len) {
      left -= parts.front().iov_len;
      parts = parts.subspan(1);
    }
    if (left != 0) {
      parts.front().iov_base = static_cast<char*>(parts.front().iov_base) + left;
      parts.front().iov_len -= left;
    }
  }
  file_bytes_ += written;
  return 0;
}

int ChunkWriter::append(const ChunkInfo& info, std::span<const unsigned char> payload,
                        std::span<const unsigned char> packed) {
  if (failed_errno_ != 0 || fd_ < 0) {
    dropped_records_ += info.record_count;
    return failed_errno_ != 0 ? failed_errno_ : EBADF;
  }
  if (payload.size() > ML_MAX_CHUNK_BYTES) return EMSGSIZE;

  ml_chunk_header header{};
  header.magic = ML_CHUNK_MAGIC;
  header.header_bytes = sizeof header;
  header.kind = info.kind;
  switch (info.kind) {
#define ML_RECORD(name, KIND, number, version, bytes, table, text) \
  case number: header.record_version = version; break;
#define ML_FIELD(name, type, field, role, text)
#define ML_END(name)
#include "records.def"
#undef ML_RECORD
#undef ML_FIELD
#undef ML_END
    default: header.record_version = 1; break;
  }
  header.payload_bytes = static_cast<uint32_t>(payload.size());
  header.record_count = info.record_count;
  header.process = info.process;
  header.thread = info.thread;
  header.sequence = sequence_;
  header.dropped = info.dropped;
  header.begin_ns = info.begin_ns;
  header.end_ns = info.end_ns;

  if (packed.empty() && level_ > 0 && info.compress && payload.size() >= 256) {
    buffer_.resize(ZSTD_compressBound(payload.size()));
    const size_t bytes =
        ZSTD_compressCCtx(context_, buffer_.data(), buffer_.size(), payload.data(), payload.size(), level_);
    if (!ZSTD_isError(bytes) && bytes < payload.size()) packed = {buffer_.data(), bytes};
  }
  const std::span<const unsigned char> body = packed.empty() ? payload : packed;
  header.encoding = packed.empty() ? ML_ENCODING_PLAIN : ML_ENCODING_ZSTD;
  header.stored_bytes = static_cast<uint32_t>(body.size());
  header.payload_checksum = ml_checksum(body.data(), body.size());
  header.header_checksum = ml_checksum(&header, offsetof(ml_chunk_header, header_checksum));
  unsigned char padding[8] = {};
  iovec parts[] = {{&header, sizeof header},
                   {const_cast<unsigned char*>(body.data()), body.size()},
                   {padding, (8 - body.size() % 8) % 8}};
  failed_errno_ = write_all(parts);
  if (failed_errno_ != 0) {
    dropped_records_ += info.record_count;
    close();
    return failed_errno_;
  }
  ++sequence_;
  return 0;
}

}  // namespace memlens::capture
