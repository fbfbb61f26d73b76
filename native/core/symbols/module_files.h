// SPDX-License-Identifier: Apache-2.0
// The files that describe one module: the module itself, its separate debug file and the dwz
// alternate. Owns which file is used for what; reads no names.
#pragma once

#include <memory>
#include <string>

#include "dwarf_file.h"
#include "elf_image.h"
#include "open_options.h"

namespace memlens::symbols {

struct ModuleFiles {
  std::string status;                     // "" when fine, else cause and remedy; then there is no dwarf
  std::string debug_note;                 // why a debug file that exists was not used; "" if none
  std::shared_ptr<ElfImage> main, debug;  // debug: null when there is none or none is needed
  std::unique_ptr<DwarfFile> dwarf;       // null: no .debug_info anywhere; knows its alternate

  // Never throws for a bad file.
  static ModuleFiles open(const std::string& path, const OpenOptions& options);
};

}  // namespace memlens::symbols
