// SPDX-License-Identifier: Apache-2.0
// One ELF file opened read-only: its load segments, build id, symbols and (decompressed) sections.
// Owns the libelf handle; knows nothing of DWARF or of where other files are.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "byte_cursor.h"

struct Elf;

namespace memlens::symbols {

struct LoadSegment {
  uint64_t file_offset;
  uint64_t file_bytes;
  uint64_t vaddr;
  uint64_t memory_bytes;
  bool executable;
};

struct ElfSymbolRecord {
  std::string_view name;  // valid as long as the image
  uint64_t vaddr;
  uint64_t size_bytes;
  uint8_t type;     // STT_*
  uint8_t binding;  // STB_*
  uint64_t section_end_vaddr;
};

class ElfImage {
 public:
  // Null with a reason in `error` when the file is missing, not ELF, of a kind we do not read, or
  // shorter than its headers say. `debug_only` accepts a file whose segments hold no bytes.
  static std::unique_ptr<ElfImage> open(const std::string& path, bool debug_only, std::string& error);
  ~ElfImage();
  ElfImage(const ElfImage&) = delete;
  ElfImage& operator=(const ElfImage&) = delete;

  // Sections can be read as before; symbols too.
  void close_descriptor();

  const std::string& path() const { return path_; }
  const std::string& build_id_hex() const { return build_id_hex_; }
  const std::vector<LoadSegment>& segments() const { return segments_; }
  uint16_t machine() const { return machine_; }
  uint64_t tls_bytes() const { return tls_bytes_; }  // of one thread's block; 0 = no PT_TLS

  // Empty when absent, without file contents, or not decompressible. `.debug_x` also finds
  // `.zdebug_x`. `nth`: objects with type units have several sections of one name.
  Bytes section(std::string_view name, size_t nth = 0);
  // Visits defined symbols of `.symtab` (static_table) or `.dynsym` that lie in executable
  // sections. False when there is no such table.
  bool visit_code_symbols(bool static_table, const std::function<void(const ElfSymbolRecord&)>& visit);
  // The same for defined variables (STT_OBJECT) and thread-local ones (STT_TLS, whose vaddr is the
  // offset in the block).
  bool visit_data_symbols(bool static_table, const std::function<void(const ElfSymbolRecord&)>& visit);

 private:
  ElfImage() = default;
  bool read_headers(bool debug_only, std::string& error);
  bool visit_symbols(bool static_table, bool code, const std::function<void(const ElfSymbolRecord&)>& visit);

  std::string path_;
  int fd_ = -1;
  Elf* elf_ = nullptr;
  uint16_t machine_ = 0;
  uint64_t tls_bytes_ = 0;
  std::string build_id_hex_;
  std::vector<LoadSegment> segments_;
};

std::string to_hex(Bytes bytes);

}  // namespace memlens::symbols
