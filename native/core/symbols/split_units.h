// SPDX-License-Identifier: Apache-2.0
// Split DWARF: the .dwo file or .dwp package with the entries of a skeleton unit. A unit is only accepted when
// its id is the skeleton's, so stale files are never read. Files are opened when a unit is asked for.
// Threading: one thread at a time; what find() returned may be read by several.
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "dwarf_file.h"

namespace memlens::symbols {

struct SplitUnit {
  const DwarfFile* file = nullptr;  // null: the unit is not split, or its file was not found
  const DwarfUnit* unit = nullptr;
};

class SplitUnits {
 public:
  // `binaries`: the module and its debug file. Packages and files that moved with them are looked for beside them.
  SplitUnits(const DwarfFile& skeletons, std::vector<std::string> binaries, std::string sysroot,
             std::vector<std::string> debug_directories);
  SplitUnit find(const DwarfUnit& skeleton);
  // How many units' entries were not found, with the first cause and the remedy; "" if none.
  std::string note() const;

 private:
  DwarfFile* open(const std::string& path, std::string& why);
  std::vector<std::string> candidates(const UnitRoot& root) const;
  void open_packages();
  SplitUnit accept(DwarfFile* file, const std::string& path, const UnitRoot& root, std::string& why);

  const DwarfFile& skeletons_;
  std::vector<std::string> binaries_;
  std::string sysroot_;
  std::vector<std::string> debug_directories_;
  bool packages_opened_ = false;
  std::vector<std::pair<std::string, DwarfFile*>> packages_;
  std::unordered_map<std::string, std::unique_ptr<DwarfFile>> files_;  // by path; null: not usable
  std::unordered_map<const DwarfUnit*, SplitUnit> found_;              // by skeleton
  std::set<const DwarfUnit*> taken_;  // units of split files: each belongs to one skeleton
  size_t n_missing_ = 0;
  std::string first_cause_;
};

}  // namespace memlens::symbols
