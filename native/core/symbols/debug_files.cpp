// SPDX-License-Identifier: Apache-2.0
#include "debug_files.h"

#include <sys/stat.h>

#include <array>
#include <cstdio>
#include <functional>

namespace memlens::symbols {
namespace {

std::string directory_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

bool exists(const std::string& path) {
  struct stat info;
  return stat(path.c_str(), &info) == 0 && S_ISREG(info.st_mode);
}

// Debug directories with the sysroot's first: a sysroot describes another machine.
std::vector<std::string> directories_of(const DebugSearch& search) {
  std::vector<std::string> directories;
  if (!search.sysroot.empty())
    for (const std::string& directory : search.debug_directories)
      directories.push_back(search.sysroot + "/" + directory);
  directories.insert(directories.end(), search.debug_directories.begin(), search.debug_directories.end());
  return directories;
}

std::string build_id_path(const std::string& directory, const std::string& id_hex) {
  return directory + "/.build-id/" + id_hex.substr(0, 2) + "/" + id_hex.substr(2) + ".debug";
}

// CRC-32 of a whole file, as .gnu_debuglink defines it.
bool file_crc32(const std::string& path, uint32_t& crc) {
  static const std::array<uint32_t, 256> table = [] {
    std::array<uint32_t, 256> t{};
    for (uint32_t i = 0; i < 256; ++i) {
      uint32_t c = i;
      for (int k = 0; k < 8; ++k) c = (c & 1) ? 0xEDB88320u ^ (c >> 1) : c >> 1;
      t[i] = c;
    }
    return t;
  }();
  std::unique_ptr<FILE, int (*)(FILE*)> file(std::fopen(path.c_str(), "rbe"), std::fclose);
  if (!file) return false;
  uint32_t state = ~0u;
  std::vector<uint8_t> buffer(1 << 16);
  while (size_t n_read = std::fread(buffer.data(), 1, buffer.size(), file.get()))
    for (size_t i = 0; i < n_read; ++i) state = table[(state ^ buffer[i]) & 255] ^ (state >> 8);
  crc = ~state;
  return true;
}

}  // namespace

std::unique_ptr<ElfImage> find_debug_file(ElfImage& main, const DebugSearch& search, std::string& why) {
  const std::string& id = main.build_id_hex();
  auto try_file = [&](const std::string& path, const uint32_t* expected_crc) -> std::unique_ptr<ElfImage> {
    if (!exists(path)) return nullptr;
    std::string error;
    auto image = ElfImage::open(path, true, error);
    if (!image) {
      why = error;
      return nullptr;
    }
    if (!id.empty() && image->build_id_hex() == id) return image;
    if (!id.empty() && !image->build_id_hex().empty()) {
      why = path + ": build-id " + image->build_id_hex() + " is not the binary's " + id;
      return nullptr;
    }
    uint32_t crc = 0;
    if (expected_crc && file_crc32(path, crc) && crc == *expected_crc) return image;
    why = path + ": neither build-id nor checksum says that it belongs to " + main.path();
    return nullptr;
  };

  const std::vector<std::string> directories = directories_of(search);
  if (id.size() > 2)
    for (const std::string& directory : directories)
      if (auto image = try_file(build_id_path(directory, id), nullptr)) return image;

  const Bytes link = main.section(".gnu_debuglink");
  ByteCursor cursor(link);
  const std::string name(cursor.c_string());
  if (cursor.failed() || name.empty() || name.find('/') != std::string::npos) return nullptr;
  cursor.seek((cursor.offset() + 3) & ~uint64_t{3});
  const uint32_t crc = cursor.u32();
  if (cursor.failed()) return nullptr;
  const std::string here = directory_of(main.path());
  std::vector<std::string> candidates = {here + "/" + name, here + "/.debug/" + name};
  std::string inside = here;  // the path below a sysroot is what the debug tree mirrors
  if (!search.sysroot.empty() && inside.starts_with(search.sysroot))
    inside = "/" + inside.substr(search.sysroot.size());
  for (const std::string& directory : directories) {
    candidates.push_back(directory + "/" + inside + "/" + name);
    candidates.push_back(directory + "/" + name);
  }
  for (const std::string& candidate : candidates)
    if (candidate != main.path())
      if (auto image = try_file(candidate, &crc)) return image;
  return nullptr;
}

std::unique_ptr<ElfImage> find_alternate_file(ElfImage& debug, const DebugSearch& search) {
  ByteCursor cursor(debug.section(".gnu_debugaltlink"));
  const std::string name(cursor.c_string());
  if (cursor.failed() || name.empty() || cursor.remaining() == 0) return nullptr;
  const Bytes link = debug.section(".gnu_debugaltlink");
  const std::string id = to_hex(link.subspan(cursor.offset()));

  std::vector<std::string> candidates;
  if (name.front() == '/') {
    if (!search.sysroot.empty()) candidates.push_back(search.sysroot + name);
    candidates.push_back(name);
  } else {
    candidates.push_back(directory_of(debug.path()) + "/" + name);
  }
  for (const std::string& directory : directories_of(search)) {
    if (id.size() > 2) candidates.push_back(build_id_path(directory, id));
    if (const size_t dwz = name.rfind("/.dwz/"); dwz != std::string::npos)
      candidates.push_back(directory + name.substr(dwz));
  }
  for (const std::string& candidate : candidates) {
    std::string error;
    if (!exists(candidate)) continue;
    auto image = ElfImage::open(candidate, true, error);
    if (image && image->build_id_hex() == id) return image;
  }
  return nullptr;
}

}  // namespace memlens::symbols
