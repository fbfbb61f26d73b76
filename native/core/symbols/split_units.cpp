// SPDX-License-Identifier: Apache-2.0
#include "split_units.h"

#include <sys/stat.h>

#include <cstdio>

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

std::string hex(uint64_t number) {
  char text[20];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(number));
  return text;
}

}  // namespace

SplitUnits::SplitUnits(const DwarfFile& skeletons, std::vector<std::string> binaries, std::string sysroot,
                       std::vector<std::string> debug_directories)
    : skeletons_(skeletons),
      binaries_(std::move(binaries)),
      sysroot_(std::move(sysroot)),
      debug_directories_(std::move(debug_directories)) {}

DwarfFile* SplitUnits::open(const std::string& path, std::string& why) {
  auto known = files_.find(path);
  if (known == files_.end()) {
    std::unique_ptr<DwarfFile> file;
    std::shared_ptr<ElfImage> image = ElfImage::open(path, true, why);
    if (image) {
      image->close_descriptor();  // large programs have more .dwo files than a process may open
      file = DwarfFile::open_split(std::move(image), skeletons_);
    }
    known = files_.emplace(path, std::move(file)).first;
  }
  if (!known->second && why.empty()) why = path + ": no split debug information in it";
  return known->second.get();
}

void SplitUnits::open_packages() {
  packages_opened_ = true;
  std::vector<std::string> paths;
  for (const std::string& binary : binaries_) {
    paths.push_back(binary + ".dwp");
    if (binary.ends_with(".debug")) paths.push_back(binary.substr(0, binary.size() - 6) + ".dwp");
    std::string inside = binary;  // the path below a sysroot is what the debug tree mirrors
    if (inside.starts_with(sysroot_)) inside = inside.substr(sysroot_.size());
    if (!inside.starts_with("/")) inside = "/" + inside;
    for (const std::string& directory : debug_directories_) paths.push_back(sysroot_ + directory + inside + ".dwp");
  }
  for (const std::string& path : paths) {
    if (!exists(path)) continue;
    if (DwarfFile* file = open(path, first_cause_)) packages_.emplace_back(path, file);
  }
}

// Relative names are relative to the compilation directory; what moved with the program is beside it.
std::vector<std::string> SplitUnits::candidates(const UnitRoot& root) const {
  std::vector<std::string> paths;
  const std::string name(root.dwo_name), directory(root.compilation_directory);
  const bool absolute = name.starts_with("/");
  const std::string full = absolute || directory.empty() ? name : directory + "/" + name;
  if (full.starts_with("/")) {
    if (!sysroot_.empty()) paths.push_back(sysroot_ + full);
    paths.push_back(full);
  }
  for (const std::string& binary : binaries_) {
    const std::string here = directory_of(binary) + "/";
    if (!full.starts_with("/")) paths.push_back(here + full);
    if (!absolute) paths.push_back(here + name);
    paths.push_back(here + name.substr(name.rfind('/') + 1));
  }
  return paths;
}

SplitUnit SplitUnits::accept(DwarfFile* file, const std::string& path, const UnitRoot& root, std::string& why) {
  DwarfUnit* unit = file->split_unit(root.dwo_id);
  if (!unit) {
    why = path + ": no unit with id " + hex(root.dwo_id) + " in it: it belongs to another build";
    return {};
  }
  if (!taken_.insert(unit).second) {
    why = path + ": two units of the program have the id " + hex(root.dwo_id);
    return {};
  }
  unit->split.address_base = root.address_base;
  unit->split.ranges_base = root.split_ranges_base;
  unit->split.low_pc = root.low_pc;
  return {file, unit};
}

SplitUnit SplitUnits::find(const DwarfUnit& skeleton) {
  if (auto known = found_.find(&skeleton); known != found_.end()) return known->second;
  const UnitRoot root = skeletons_.read_root(skeleton);
  SplitUnit result;
  if (!root.dwo_name.empty()) {
    if (!packages_opened_) open_packages();
    std::string why;
    for (const auto& [path, package] : packages_) {
      result = accept(package, path, root, why);
      if (result.unit) break;
    }
    const std::vector<std::string> paths = result.unit ? std::vector<std::string>() : candidates(root);
    for (const std::string& path : paths) {
      if (!exists(path)) continue;
      std::string cause;
      if (DwarfFile* file = open(path, cause)) result = accept(file, path, root, cause);
      if (result.unit) break;
      why = std::move(cause);
    }
    if (!result.unit) {
      ++n_missing_;
      if (why.empty()) why = (paths.empty() ? std::string(root.dwo_name) : paths.front()) + ": not found";
      if (first_cause_.empty()) first_cause_ = std::move(why);
    }
  }
  found_.emplace(&skeleton, result);
  return result;
}

std::string SplitUnits::note() const {
  if (n_missing_ == 0) return {};
  return "split debug information of " + std::to_string(n_missing_) + (n_missing_ == 1 ? " unit" : " units") +
         " is missing (" + first_cause_ +
         "): inlined calls in them have no frames; keep the .dwo files of this build, or put a .dwp package beside the program";
}

}  // namespace memlens::symbols
