// SPDX-License-Identifier: Apache-2.0
// Reads ELF headers through libelf. Every length that libelf hands out is checked against the file
// before use: profiled machines do hold half-copied libraries.
#include "elf_image.h"

#include <elfutils/libdwelf.h>
#include <fcntl.h>
#include <gelf.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace memlens::symbols {

std::string to_hex(Bytes bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  text.reserve(bytes.size() * 2);
  for (uint8_t byte : bytes) {
    text.push_back(kDigits[byte >> 4]);
    text.push_back(kDigits[byte & 15]);
  }
  return text;
}

std::unique_ptr<ElfImage> ElfImage::open(const std::string& path, bool debug_only, std::string& error) {
  elf_version(EV_CURRENT);
  std::unique_ptr<ElfImage> image(new ElfImage);
  image->path_ = path;
  image->fd_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (image->fd_ < 0) {
    error = path + ": cannot open: " + std::strerror(errno) +
            (errno == ENOENT ? "; copy the binary that was profiled to this path or set a sysroot" : "");
    return nullptr;
  }
  struct stat info = {};
  // Opening a device or a pipe as ELF could block for ever; only plain files are binaries.
  if (fstat(image->fd_, &info) != 0 || !S_ISREG(info.st_mode)) {
    error = path + ": not a regular file";
    return nullptr;
  }
  image->elf_ = elf_begin(image->fd_, ELF_C_READ_MMAP, nullptr);
  if (!image->elf_ || elf_kind(image->elf_) != ELF_K_ELF) {
    error = path + ": not an ELF file (" + std::to_string(info.st_size) + " bytes)";
    return nullptr;
  }
  if (!image->read_headers(debug_only, error)) return nullptr;
  return image;
}

ElfImage::~ElfImage() {
  if (elf_) elf_end(elf_);
  if (fd_ >= 0) close(fd_);
}

void ElfImage::close_descriptor() {
  if (fd_ < 0 || elf_cntl(elf_, ELF_C_FDREAD) != 0) return;
  close(fd_);
  fd_ = -1;
}

bool ElfImage::read_headers(bool debug_only, std::string& error) {
  GElf_Ehdr header;
  if (!gelf_getehdr(elf_, &header)) {
    error = path_ + ": truncated or damaged: the ELF header cannot be read";
    return false;
  }
  if (header.e_ident[EI_DATA] != ELFDATA2LSB) {
    error = path_ + ": big-endian ELF files are not supported";
    return false;
  }
  machine_ = header.e_machine;
  size_t file_bytes = 0;
  elf_rawfile(elf_, &file_bytes);

  size_t n_sections = 0;
  if (header.e_shoff != 0 && (elf_getshdrnum(elf_, &n_sections) != 0 || header.e_shoff > file_bytes ||
                              n_sections * header.e_shentsize > file_bytes - header.e_shoff)) {
    error = path_ + ": truncated: the section headers at offset " + std::to_string(header.e_shoff) +
            " end past the file's " + std::to_string(file_bytes) + " bytes; copy the file again";
    return false;
  }
  size_t n_program_headers = 0;
  if (elf_getphdrnum(elf_, &n_program_headers) != 0) n_program_headers = 0;
  for (size_t i = 0; i < n_program_headers; ++i) {
    GElf_Phdr program;
    if (!gelf_getphdr(elf_, static_cast<int>(i), &program)) {
      error = path_ + ": truncated: program header " + std::to_string(i) + " cannot be read";
      return false;
    }
    if (program.p_type == PT_TLS) tls_bytes_ = program.p_memsz;
    if (program.p_type != PT_LOAD) continue;
    if (!debug_only && (program.p_offset > file_bytes || program.p_filesz > file_bytes - program.p_offset)) {
      error = path_ + ": truncated: load segment " + std::to_string(i) + " ends past the file's " +
              std::to_string(file_bytes) + " bytes; copy the file again";
      return false;
    }
    segments_.push_back(
        {program.p_offset, program.p_filesz, program.p_vaddr, program.p_memsz, (program.p_flags & PF_X) != 0});
  }
  const void* id = nullptr;
  const ssize_t id_bytes = dwelf_elf_gnu_build_id(elf_, &id);
  if (id_bytes > 0) build_id_hex_ = to_hex({static_cast<const uint8_t*>(id), size_t(id_bytes)});
  return true;
}

namespace {

// Debug information shrinks to a third or a sixth. libelf allocates what a compressed section claims, up to 1032 times what it has:
// a file of a megabyte could take a gigabyte for each of its sections.
constexpr uint64_t kMostRatio = 100, kAlwaysBytes = uint64_t{16} << 20;

bool is_worth_unpacking(Elf_Scn* scn, const GElf_Shdr& header, bool old_compressed) {
  uint64_t claimed = 0;
  if (old_compressed) {  // "ZLIB", then the size in 8 bytes, the highest first
    const Elf_Data* data = elf_rawdata(scn, nullptr);
    if (!data || !data->d_buf || data->d_size < 12) return false;
    for (int i = 4; i < 12; ++i) claimed = claimed << 8 | static_cast<const uint8_t*>(data->d_buf)[i];
  } else if (header.sh_flags & SHF_COMPRESSED) {
    GElf_Chdr compression;
    if (!gelf_getchdr(scn, &compression)) return false;
    claimed = compression.ch_size;
  }
  return claimed <= kAlwaysBytes || claimed / kMostRatio <= header.sh_size;
}

}  // namespace

Bytes ElfImage::section(std::string_view name, size_t nth) {
  size_t names_index = 0;
  if (elf_getshdrstrndx(elf_, &names_index) != 0) return {};
  const std::string gnu_compressed = name.starts_with(".debug_") ? ".z" + std::string(name.substr(1)) : std::string();
  for (Elf_Scn* scn = elf_nextscn(elf_, nullptr); scn; scn = elf_nextscn(elf_, scn)) {
    GElf_Shdr header;
    if (!gelf_getshdr(scn, &header) || header.sh_type == SHT_NOBITS) continue;
    const char* text = elf_strptr(elf_, names_index, header.sh_name);
    if (!text) continue;
    const bool old_compressed = !gnu_compressed.empty() && gnu_compressed == text;
    if (!old_compressed && name != text) continue;
    if (nth-- > 0) continue;
    if (!is_worth_unpacking(scn, header, old_compressed)) return {};
    if (old_compressed && elf_compress_gnu(scn, 0, 0) < 0) return {};
    if ((header.sh_flags & SHF_COMPRESSED) && elf_compress(scn, 0, 0) < 0) return {};
    const Elf_Data* data = elf_rawdata(scn, nullptr);
    // After decompression libelf keeps the contents as converted, not raw, data.
    if (old_compressed || (header.sh_flags & SHF_COMPRESSED)) data = elf_getdata(scn, nullptr);
    if (!data || !data->d_buf) return {};
    return {static_cast<const uint8_t*>(data->d_buf), data->d_size};
  }
  return {};
}

bool ElfImage::visit_code_symbols(bool static_table, const std::function<void(const ElfSymbolRecord&)>& visit) {
  return visit_symbols(static_table, true, visit);
}

bool ElfImage::visit_data_symbols(bool static_table, const std::function<void(const ElfSymbolRecord&)>& visit) {
  return visit_symbols(static_table, false, visit);
}

bool ElfImage::visit_symbols(bool static_table, bool code, const std::function<void(const ElfSymbolRecord&)>& visit) {
  struct Section {
    bool wanted = false;
    uint64_t end_vaddr = 0;
  };
  std::vector<Section> sections;
  Elf_Scn* table = nullptr;
  GElf_Shdr table_header = {};
  for (Elf_Scn* scn = elf_nextscn(elf_, nullptr); scn; scn = elf_nextscn(elf_, scn)) {
    GElf_Shdr header;
    if (!gelf_getshdr(scn, &header)) continue;
    const size_t index = elf_ndxscn(scn);
    if (index >= sections.size()) sections.resize(index + 1);
    if (header.sh_flags & (code ? SHF_EXECINSTR : SHF_ALLOC)) sections[index] = {true, header.sh_addr + header.sh_size};
    if (!table && header.sh_type == (static_table ? SHT_SYMTAB : SHT_DYNSYM)) {
      table = scn;
      table_header = header;
    }
  }
  Elf_Data* data = table ? elf_getdata(table, nullptr) : nullptr;
  if (!data || !data->d_buf || table_header.sh_entsize == 0) return false;
  const size_t n_symbols = data->d_size / table_header.sh_entsize;
  for (size_t i = 1; i < n_symbols; ++i) {
    GElf_Sym symbol;
    if (!gelf_getsym(data, static_cast<int>(i), &symbol)) break;
    const uint8_t type = GELF_ST_TYPE(symbol.st_info);
    const bool wanted =
        code ? type == STT_FUNC || type == STT_GNU_IFUNC || type == STT_NOTYPE : type == STT_OBJECT || type == STT_TLS;
    if (!wanted || symbol.st_shndx >= sections.size() || !sections[symbol.st_shndx].wanted) continue;
    const char* name = elf_strptr(elf_, table_header.sh_link, symbol.st_name);
    if (!name || !*name) continue;
    visit({name, symbol.st_value, symbol.st_size, type, uint8_t(GELF_ST_BIND(symbol.st_info)),
           sections[symbol.st_shndx].end_vaddr});
  }
  return n_symbols > 1;
}

}  // namespace memlens::symbols
