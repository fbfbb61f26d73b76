// SPDX-License-Identifier: Apache-2.0
// Ties the parts together: which files, which unit, which frames. Knows no DWARF encodings.
#include "module_symbols.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <unordered_map>

#include "demangle.h"
#include "dwarf_file.h"
#include "elf_image.h"
#include "elf_symbols.h"
#include "entry_names.h"
#include "helpers.h"
#include "module_files.h"
#include "split_units.h"
#include "unit_index.h"
#include "unit_locator.h"

namespace memlens::symbols {
namespace {

constexpr uint32_t kNone = IntervalMap::kNone;
// Inlining nests a few dozen deep at most; a longer chain is damage.
constexpr int kMaxInlineDepth = 512;

}  // namespace

struct ModuleSymbols::State {
  explicit State(StringTable& table) : strings(table) {}

  void open(const std::string& path, const OpenOptions& options);
  void load_symbols();
  void index_units_without_ranges();
  void index_units(std::vector<uint32_t> wanted, bool keep_function_ranges);
  uint32_t file_id(uint32_t unit, uint32_t file);
  uint32_t symbol_name(const CodeSymbol& symbol);
  uint32_t complete_name(uint64_t vaddr, uint32_t plain_name);
  void append_frames(uint64_t vaddr, uint32_t unit, std::vector<Frame>& frames);

  StringTable& strings;
  std::string status, debug_note;
  std::shared_ptr<ElfImage> main, debug;
  bool symbols_from_debug = false;
  std::unique_ptr<CodeRanges> code;
  std::unique_ptr<DwarfFile> dwarf;
  std::unique_ptr<SplitUnits> split;
  ElfSymbols symbols;
  std::unordered_map<const CodeSymbol*, uint32_t> symbol_names;
  std::map<std::pair<const CodeSymbol*, uint32_t>, uint32_t> complete_names;
  std::unique_ptr<UnitLocator> locator;
  std::unique_ptr<EntryNames> names;
  std::vector<std::unique_ptr<UnitIndex>> indexes;               // by unit; null until asked for
  std::vector<std::unordered_map<uint32_t, uint32_t>> file_ids;  // by unit: file number to string id
};

void ModuleSymbols::State::open(const std::string& path, const OpenOptions& options) {
  ModuleFiles files = ModuleFiles::open(path, options);
  status = std::move(files.status);
  debug_note = std::move(files.debug_note);
  main = std::move(files.main);
  debug = std::move(files.debug);
  dwarf = std::move(files.dwarf);
  if (!status.empty()) return;
  code = std::make_unique<CodeRanges>(main->segments());
  if (dwarf) {
    names = std::make_unique<EntryNames>(strings);
    std::vector<std::string> binaries = {main->path()};
    if (debug) binaries.push_back(debug->path());
    split = std::make_unique<SplitUnits>(*dwarf, std::move(binaries), options.sysroot, options.debug_directories);
    indexes.resize(dwarf->units().size());
    file_ids.resize(dwarf->units().size());
  }
  load_symbols();
}

void ModuleSymbols::State::load_symbols() {
  if (!symbols.add(*main, true)) {
    symbols_from_debug = debug && symbols.add(*debug, true);
    if (!symbols_from_debug) {
      symbols.add_mini_debug_info(*main);
      symbols.add(*main, false);
    }
  }
  symbols.finish();
}

void ModuleSymbols::State::index_units(std::vector<uint32_t> wanted, bool keep_function_ranges) {
  std::sort(wanted.begin(), wanted.end());
  wanted.erase(std::unique(wanted.begin(), wanted.end()), wanted.end());
  std::erase_if(wanted, [&](uint32_t unit) { return indexes[unit] != nullptr; });
  std::vector<SplitUnit> split_units;
  for (uint32_t unit : wanted) split_units.push_back(split->find(dwarf->units()[unit]));
  std::atomic<size_t> next = 0;
  auto work = [&] {
    for (size_t i; (i = next.fetch_add(1)) < wanted.size();) {
      auto index = std::make_unique<UnitIndex>();
      try {
        *index = UnitIndex::build(*dwarf, dwarf->units()[wanted[i]], split_units[i], *code, keep_function_ranges);
      } catch (const std::bad_alloc&) {
        *index = UnitIndex();  // the addresses of this unit fall back to the symbol table
      }
      indexes[wanted[i]] = std::move(index);
    }
  };
  work_together(work, wanted.size());
}

void ModuleSymbols::State::index_units_without_ranges() {
  const std::vector<uint32_t> units = locator->units_without_ranges();
  if (units.empty()) return;
  index_units(units, true);
  std::vector<NestedRange> found;
  for (uint32_t unit : units)
    for (const AddressRange& r : indexes[unit]->function_ranges) found.push_back({r.begin, r.end, unit, 0});
  locator->add_found_ranges(std::move(found));
}

uint32_t ModuleSymbols::State::file_id(uint32_t unit, uint32_t file) {
  auto [slot, is_new] = file_ids[unit].try_emplace(file, 0);
  if (is_new) slot->second = strings.intern(indexes[unit]->lines.path(file));
  return slot->second;
}

uint32_t ModuleSymbols::State::symbol_name(const CodeSymbol& symbol) {
  auto [slot, is_new] = symbol_names.try_emplace(&symbol, 0);
  if (is_new) slot->second = strings.intern(demangle(symbol.mangled_name));
  return slot->second;
}

// Functions with internal linkage have no linkage name in DWARF, but their symbol has: use it when
// it names the same function. ".cold", ".part.0" and the like say how it was compiled, not what it
// is.
uint32_t ModuleSymbols::State::complete_name(uint64_t vaddr, uint32_t plain_name) {
  const CodeSymbol* symbol = symbols.find(vaddr);
  if (!symbol) return plain_name;
  auto [slot, is_new] = complete_names.try_emplace({symbol, plain_name}, plain_name);
  if (is_new && symbol->mangled_name.starts_with("_")) {
    std::string_view mangled = symbol->mangled_name;
    mangled = mangled.substr(0, mangled.find('.'));
    const std::string text = demangle(mangled);
    std::string_view plain = strings.at(plain_name);
    plain = plain.substr(0, plain.find('<'));  // DWARF and the demangler write templates differently
    if (const size_t scope = plain.rfind("::"); scope != std::string_view::npos) plain = plain.substr(scope + 2);
    if (text != mangled && text.find(plain) != std::string::npos) slot->second = strings.intern(text);
  }
  return slot->second;
}

void ModuleSymbols::State::append_frames(uint64_t vaddr, uint32_t unit, std::vector<Frame>& frames) {
  Frame frame = {};
  const UnitIndex* index = unit == kNone ? nullptr : indexes[unit].get();
  uint32_t scope = kNone;
  if (index) {
    scope = index->scope_by_address.owner_at(vaddr);
    if (const LineRow* row = index->lines.find(vaddr)) {
      frame.file = file_id(unit, row->file);
      frame.line = row->line;
      frame.column = row->column;
    }
  }
  for (int depth = 0; scope != kNone && depth < kMaxInlineDepth; ++depth) {
    const Scope& current = index->scopes[scope];
    const EntryName name = names->name_of(*index->entries, current.entry_offset);
    frame.function = name.id;
    frame.inlined = current.inlined;
    if (!current.inlined || current.parent == kNone) {
      if (!name.from_linkage_name) frame.function = complete_name(vaddr, name.id);
      break;
    }
    frames.push_back(frame);
    // The outer function was, at that moment, at the place of the call.
    frame = {0, file_id(unit, current.call_file), current.call_line, current.call_column, 0};
    scope = current.parent;
  }
  if (frame.function == 0)
    if (const CodeSymbol* symbol = symbols.find(vaddr)) frame.function = symbol_name(*symbol);
  // A line without a function is real in assembler and split units, which describe no functions.
  // Elsewhere it is the padding after a function, which belongs to none.
  const bool line_is_enough = index && index->scopes.empty() && frame.line != 0;
  if (frame.function != 0 || line_is_enough) frames.push_back(frame);
}

ModuleSymbols::ModuleSymbols() = default;
ModuleSymbols::~ModuleSymbols() = default;

std::unique_ptr<ModuleSymbols> ModuleSymbols::open(const std::string& path, const OpenOptions& options,
                                                   StringTable& strings) {
  std::unique_ptr<ModuleSymbols> module(new ModuleSymbols);
  module->state_ = std::make_unique<State>(strings);
  module->state_->open(path, options);
  return module;
}

const std::string& ModuleSymbols::status() const { return state_->status; }
const std::string& ModuleSymbols::debug_note() const { return state_->debug_note; }
std::string ModuleSymbols::build_id_hex() const { return state_->main ? state_->main->build_id_hex() : std::string(); }

std::string ModuleSymbols::split_note() const { return state_->split ? state_->split->note() : std::string(); }

DebugQuality ModuleSymbols::quality() const {
  if (!state_->status.empty()) return DebugQuality::none;
  if (state_->dwarf) return DebugQuality::dwarf;
  return state_->symbols.empty() ? DebugQuality::none : DebugQuality::symbol_table;
}

std::string ModuleSymbols::debug_file() const {
  if (quality() == DebugQuality::none) return {};
  const bool from_debug = state_->debug && (state_->dwarf || state_->symbols_from_debug);
  return from_debug ? state_->debug->path() : state_->main->path();
}

std::optional<uint64_t> ModuleSymbols::file_offset_to_vaddr(uint64_t offset) const {
  if (!state_->status.empty()) return std::nullopt;
  // Executable segments first: a page may be in the file once and in two segments.
  for (const bool executable : {true, false})
    for (const LoadSegment& s : state_->main->segments())
      if (s.executable == executable && offset >= s.file_offset && offset - s.file_offset < s.file_bytes)
        return s.vaddr + (offset - s.file_offset);
  return std::nullopt;
}

void ModuleSymbols::resolve(std::span<const uint64_t> vaddrs, std::vector<Frame>& frames,
                            std::vector<uint32_t>& first_frame) {
  State& state = *state_;
  first_frame.clear();
  first_frame.reserve(vaddrs.size() + 1);
  std::vector<uint32_t> units(vaddrs.size(), kNone);
  if (state.status.empty() && state.dwarf) {
    if (!state.locator) state.locator = std::make_unique<UnitLocator>(*state.dwarf, *state.code);
    std::vector<uint32_t> wanted;
    for (int attempt = 0; attempt < 2; ++attempt) {
      bool missed = false;
      wanted.clear();
      for (size_t i = 0; i < vaddrs.size(); ++i) {
        units[i] = state.locator->unit_at(vaddrs[i]);
        if (units[i] == kNone) missed |= state.code->contains(vaddrs[i]);
        else if (!state.indexes[units[i]]) wanted.push_back(units[i]);
      }
      if (!missed || state.locator->units_without_ranges().empty()) break;
      state.index_units_without_ranges();
    }
    state.index_units(std::move(wanted), false);
  }
  for (size_t i = 0; i < vaddrs.size(); ++i) {
    first_frame.push_back(static_cast<uint32_t>(frames.size()));
    if (state.status.empty()) state.append_frames(vaddrs[i], units[i], frames);
  }
  first_frame.push_back(static_cast<uint32_t>(frames.size()));
}

std::optional<SymbolRange> ModuleSymbols::symbol_at(uint64_t vaddr) {
  if (!state_->status.empty()) return std::nullopt;
  const CodeSymbol* symbol = state_->symbols.find(vaddr);
  if (!symbol) return std::nullopt;
  return SymbolRange{symbol->begin_vaddr, symbol->end_vaddr - symbol->begin_vaddr, state_->symbol_name(*symbol)};
}

std::pair<std::string, uint64_t> ModuleSymbols::nearest_symbol(uint64_t vaddr) const {
  constexpr uint64_t kFarthestBytes = uint64_t{1} << 20;
  if (!state_->status.empty() || !state_->code->contains(vaddr)) return {};
  const CodeSymbol* symbol = state_->symbols.nearest(vaddr);
  if (!symbol || vaddr - symbol->begin_vaddr > kFarthestBytes) return {};
  return {demangle(symbol->mangled_name), vaddr - symbol->begin_vaddr};
}

std::string read_build_id_hex(const std::string& path) {
  std::string error;
  const auto image = ElfImage::open(path, true, error);
  return image ? image->build_id_hex() : std::string();
}

}  // namespace memlens::symbols
