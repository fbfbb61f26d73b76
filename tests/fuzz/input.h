// What the fuzz targets share: the fuzzer's bytes as numbers, bytes as a file, and what a target says when a property fails.
//
// A target is a function of its input alone. Where the input is a program of operations it is read by `Input`, which gives
// zeros once the bytes have been used up, so that every input is a valid program and a shorter one means less.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace fuzz {

using Bytes = std::vector<unsigned char>;
using View = std::span<const unsigned char>;

inline void require(bool holds, const char* what) {
  if (holds) [[likely]]
    return;
  fprintf(stderr, "property failed: %s\n", what);
  abort();
}

class Input {
 public:
  Input(const uint8_t* data, size_t size) : left_(data, size) {}
  explicit Input(View bytes) : left_(bytes) {}

  bool empty() const { return left_.empty(); }
  size_t size() const { return left_.size(); }

  uint8_t byte() {
    if (left_.empty()) return 0;
    const uint8_t value = left_[0];
    left_ = left_.subspan(1);
    return value;
  }
  uint64_t fixed(size_t bytes) {
    uint64_t value = 0;
    for (size_t i = 0; i < bytes; ++i) value |= uint64_t{byte()} << (8 * i);
    return value;
  }
  // Below `end`, by as many bytes as are needed.
  uint64_t below(uint64_t end) {
    if (end <= 1) return 0;
    return fixed(end <= 1u << 8 ? 1 : end <= 1u << 16 ? 2 : end <= 1ull << 32 ? 4 : 8) % end;
  }
  bool one_in(uint64_t count) { return below(count) == count - 1; }
  // Any number; small ones take few bytes.
  uint64_t number() {
    const uint8_t head = byte();
    if (head < 0xf0) return head;
    return head < 0xf8 ? fixed(head - 0xf0 + 1) : ~fixed(head - 0xf8 + 1);
  }
  View take(size_t bytes) {
    const View taken = left_.first(std::min(bytes, left_.size()));
    left_ = left_.subspan(taken.size());
    return taken;
  }
  View rest() { return take(left_.size()); }

 private:
  View left_;
};

// Exactly as long as it is said to be, so that the sanitizer sees a byte too many.
struct Exact {
  explicit Exact(View bytes) : bytes(std::make_unique<unsigned char[]>(bytes.size())), size(bytes.size()) {
    if (size) memcpy(this->bytes.get(), bytes.data(), size);
  }
  View view() const { return {bytes.get(), size}; }
  std::unique_ptr<unsigned char[]> bytes;
  size_t size;
};

template <typename Record>
void append(Bytes& to, const Record& record) {
  const auto* raw = reinterpret_cast<const unsigned char*>(&record);
  to.insert(to.end(), raw, raw + sizeof record);
}

// A file without a disk.
class MemoryFile {
 public:
  MemoryFile() : fd_(memfd_create("fuzz", MFD_CLOEXEC)) {
    require(fd_ >= 0, "a memory file");
    path_ = "/proc/self/fd/" + std::to_string(fd_);
  }
  explicit MemoryFile(View content) : MemoryFile() { write(content); }
  ~MemoryFile() { close(fd_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  // Its whole content.
  void write(View content) const {
    require(ftruncate(fd_, static_cast<off_t>(content.size())) == 0, "room in memory");
    for (size_t at = 0; at < content.size();) {
      const ssize_t step = pwrite(fd_, content.data() + at, content.size() - at, static_cast<off_t>(at));
      require(step > 0, "room in memory");
      at += static_cast<size_t>(step);
    }
  }
  const std::string& path() const { return path_; }

 private:
  int fd_;
  std::string path_;
};

}  // namespace fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t most);
