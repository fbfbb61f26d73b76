#include "chunk_reader.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zstd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <system_error>

#include "memlens_checksum.h"

namespace memlens::capture {
namespace {

bool header_is_sound(const ml_chunk_header& header) {
  return header.magic == ML_CHUNK_MAGIC && header.header_bytes == sizeof header &&
         header.stored_bytes <= ML_MAX_CHUNK_BYTES && header.payload_bytes <= ML_MAX_CHUNK_BYTES &&
         header.header_checksum == ml_checksum(&header, offsetof(ml_chunk_header, header_checksum));
}

uint64_t padded(uint64_t bytes) { return (bytes + 7) & ~uint64_t{7}; }

}  // namespace

ChunkReader::ChunkReader(const std::string& path) {
  fd_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd_ < 0) throw std::system_error(errno, std::generic_category(), path);
  // A pipe would block for ever, and a device has no end.
  struct stat status{};
  if (fstat(fd_, &status) != 0 || !S_ISREG(status.st_mode)) {
    ::close(fd_);
    throw std::system_error(EINVAL, std::generic_category(), path);
  }
  const auto refuse = [&](FormatError::Kind kind, uint32_t version) {
    ::close(fd_);
    throw FormatError(kind, path, version);
  };
  if (!read_at(0, &file_header_, sizeof file_header_)) refuse(FormatError::truncated, 0);
  if (file_header_.magic != ML_FILE_MAGIC) refuse(FormatError::not_memlens, 0);
  if (file_header_.format_version < ML_FORMAT_OLDEST_READABLE || file_header_.format_version > ML_FORMAT_CURRENT)
    refuse(FormatError::version_unsupported, file_header_.format_version);
  if (file_header_.checksum != ml_checksum(&file_header_, offsetof(ml_file_header, checksum)))
    refuse(FormatError::not_memlens, 0);
  scanned_to_ = file_header_.header_bytes;
  context_ = ZSTD_createDCtx();
  if (context_ == nullptr) {
    ::close(fd_);
    throw std::bad_alloc();
  }
}

ChunkReader::~ChunkReader() {
  if (fd_ >= 0) ::close(fd_);
  ZSTD_freeDCtx(context_);
}

bool ChunkReader::read_at(uint64_t offset, void* into, size_t bytes) const {
  auto* at = static_cast<unsigned char*>(into);
  while (bytes > 0) {
    const ssize_t step = pread(fd_, at, bytes, static_cast<off_t>(offset));
    if (step < 0 && errno == EINTR) continue;
    if (step <= 0) return false;
    at += step;
    offset += static_cast<uint64_t>(step);
    bytes -= static_cast<size_t>(step);
  }
  return true;
}

size_t ChunkReader::refresh() {
  struct stat status{};
  if (fstat(fd_, &status) != 0) return 0;
  const auto file_bytes = static_cast<uint64_t>(status.st_size);
  size_t added = 0;
  damage_.torn_tail_bytes = 0;
  while (scanned_to_ < file_bytes) {
    ml_chunk_header header{};
    if (file_bytes - scanned_to_ < sizeof header) {
      damage_.torn_tail_bytes = file_bytes - scanned_to_;
      break;
    }
    if (!read_at(scanned_to_, &header, sizeof header)) break;
    if (!header_is_sound(header)) {
      // Damage in the middle: chunks start at multiples of 8, look for the next sound one.
      std::vector<unsigned char> block(1u << 20);
      uint64_t found = 0;
      for (uint64_t at = scanned_to_ + 8; found == 0 && at + sizeof header <= file_bytes;) {
        // A sparse file may claim terabytes: where it has no data there is no chunk.
        const off_t data = lseek(fd_, static_cast<off_t>(at), SEEK_DATA);
        if (data < 0 && errno == ENXIO) break;
        if (data > 0) at = std::max(at, static_cast<uint64_t>(data) & ~uint64_t{7});
        const auto span = static_cast<size_t>(std::min<uint64_t>(block.size(), file_bytes - at));
        if (!read_at(at, block.data(), span)) break;
        size_t i = 0;
        for (; i + sizeof header <= span; i += 8) {
          uint32_t magic;
          memcpy(&magic, block.data() + i, sizeof magic);
          if (magic != ML_CHUNK_MAGIC) continue;
          memcpy(&header, block.data() + i, sizeof header);
          if (!header_is_sound(header)) continue;
          found = at + i;
          break;
        }
        at += i;
        if (span < block.size()) break;
      }
      if (found == 0) {
        damage_.torn_tail_bytes = file_bytes - scanned_to_;
        break;
      }
      damage_.bad_header_bytes += found - scanned_to_;
      scanned_to_ = found;
    }
    const uint64_t chunk_bytes = sizeof header + padded(header.stored_bytes);
    if (file_bytes - scanned_to_ < chunk_bytes) {
      damage_.torn_tail_bytes = file_bytes - scanned_to_;
      break;
    }
    if (header.sequence > next_sequence_) damage_.missing_chunks += header.sequence - next_sequence_;
    next_sequence_ = header.sequence + 1;
    chunks_.push_back({header, scanned_to_});
    scanned_to_ += chunk_bytes;
    ++added;
  }
  return added;
}

std::optional<std::vector<unsigned char>> ChunkReader::payload(const ChunkEntry& entry) {
  const ml_chunk_header& header = entry.header;
  const auto damaged = [&]() -> std::optional<std::vector<unsigned char>> {
    if (std::find(bad_offsets_.begin(), bad_offsets_.end(), entry.offset) == bad_offsets_.end()) {
      bad_offsets_.push_back(entry.offset);
      ++damage_.bad_payload_chunks;
    }
    return std::nullopt;
  };
  std::vector<unsigned char> stored(header.stored_bytes);
  if (!read_at(entry.offset + sizeof header, stored.data(), stored.size())) return damaged();
  if (ml_checksum(stored.data(), stored.size()) != header.payload_checksum) return damaged();
  if (header.encoding == ML_ENCODING_PLAIN)
    return header.stored_bytes == header.payload_bytes ? std::optional(std::move(stored)) : damaged();
  if (header.encoding != ML_ENCODING_ZSTD) return damaged();
  std::vector<unsigned char> decoded(header.payload_bytes);
  const size_t got = ZSTD_decompressDCtx(context_, decoded.data(), decoded.size(), stored.data(), stored.size());
  if (ZSTD_isError(got) || got != decoded.size()) return damaged();
  return decoded;
}

}  // namespace memlens::capture
