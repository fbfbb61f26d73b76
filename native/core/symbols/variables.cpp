// SPDX-License-Identifier: Apache-2.0
// Merges what the linker and the compiler say of a module's variables. The compiler knows names and
// types, the linker what was kept, where, and how large it is.
#include "variables.h"

#include <elf.h>

#include <algorithm>
#include <new>

#include "demangle.h"
#include "elf_symbols.h"
#include "module_files.h"

namespace memlens::symbols {
namespace {

// Real modules have up to some hundred thousand. More is damage.
constexpr size_t kMaxVariables = 1 << 22;
constexpr uint64_t kMaxTextBytes = uint64_t{1} << 30;

struct DataSymbol {
  uint64_t vaddr;
  uint64_t bytes;
  bool is_tls;
  uint8_t rank;  // smaller is better among symbols at one address
  std::string name;
};

struct Candidate {
  FoundVariable found;
  bool in_alternate;
};

// "counter.0", "table.lto_priv.3": the compiler's suffixes of local symbols.
std::string_view without_suffix(std::string_view name) {
  const size_t dot = name.find('.', 1);
  return dot == std::string_view::npos ? name : name.substr(0, dot);
}

// The scope that a symbol's name knows and the debug information lost: Clang 14 and others leave
// the statics of inlined functions in an entry without a name. "" when the symbol says no more
// either.
std::string scoped_by_symbol(std::string_view symbol, const std::string& plain) {
  if (symbol.starts_with("_")) {
    std::string text = demangle(without_suffix(symbol));
    const std::string suffix = "::" + plain;
    if (!text.ends_with(suffix)) return {};
    text.resize(text.size() - suffix.size());
    // "ns::function(int, char)" without its parameters, as the debug information would say it.
    if (text.ends_with(" const")) text.resize(text.size() - 6);
    int depth = 0;
    for (size_t i = text.size(); i-- > 0;) {
      if (text[i] == ')') ++depth;
      if (text[i] == '(') --depth;
      if (depth == 0) {
        if (text[i] == '(') text.resize(i);
        break;
      }
    }
    return text + suffix;
  }
  // C: "function.variable", perhaps with a number behind it.
  const size_t at = symbol.find("." + plain);
  if (at == std::string_view::npos || at == 0) return {};
  const std::string_view rest = symbol.substr(at + 1 + plain.size());
  if (!rest.empty() && rest.front() != '.') return {};
  return std::string(symbol.substr(0, at)) + "::" + plain;
}

}  // namespace

struct ModuleVariables::State {
  void open(const std::string& path, const OpenOptions& options);
  void read_symbols();
  void collect_candidates();
  void merge();
  Variable from_dwarf(const DebugEntry& entry);
  bool in_module(const StaticLocation& location) const;
  bool same_name(const DebugEntry& entry, const DataSymbol& symbol) const;
  void add(Variable variable);

  std::string status, debug_note;
  std::shared_ptr<ElfImage> main, debug;
  std::unique_ptr<DwarfFile> dwarf;
  std::unique_ptr<DebugEntries> entries;
  std::unique_ptr<TypeTable> types;
  bool has_static_symbols = false;
  bool truncated = false;
  uint64_t n_text_bytes = 0;
  std::vector<DataSymbol> symbols;
  std::vector<Candidate> candidates;
  std::vector<Variable> variables;
};

void ModuleVariables::State::open(const std::string& path, const OpenOptions& options) {
  ModuleFiles files = ModuleFiles::open(path, options);
  status = std::move(files.status);
  debug_note = std::move(files.debug_note);
  main = std::move(files.main);
  if (!status.empty()) return;
  debug = std::move(files.debug);
  dwarf = std::move(files.dwarf);
  try {
    read_symbols();
    if (dwarf) {
      entries = std::make_unique<DebugEntries>(*dwarf);
      types = std::make_unique<TypeTable>(*entries);
      collect_candidates();
    }
    merge();
  } catch (const std::bad_alloc&) {
    status = main->path() + ": not enough memory for its variables";
    variables.clear();
  }
  symbols = {};
  candidates = {};
}

void ModuleVariables::State::read_symbols() {
  auto add_symbol = [&](const ElfSymbolRecord& record) {
    if (record.type != STT_OBJECT && record.type != STT_TLS) return;
    if (record.size_bytes == 0 || symbols.size() >= kMaxVariables) return;
    std::string_view name = record.name;
    // "environ@@GLIBC_2.2.5": the version is not part of the name.
    if (const size_t version = name.find('@'); version != std::string_view::npos && version > 0)
      name = name.substr(0, version);
    const uint8_t rank = record.binding == STB_GLOBAL ? 0 : record.binding == STB_WEAK ? 1 : 2;
    const bool is_tls = record.type == STT_TLS;
    if (!in_module({record.vaddr, is_tls})) return;
    symbols.push_back({record.vaddr, record.size_bytes, is_tls, rank, std::string(name)});
  };
  has_static_symbols = main->visit_data_symbols(true, add_symbol);
  if (!has_static_symbols) {
    has_static_symbols = debug && debug->visit_data_symbols(true, add_symbol);
    if (!has_static_symbols) visit_mini_debug_info(*main, add_symbol);
  }
  main->visit_data_symbols(false, add_symbol);
  std::sort(symbols.begin(), symbols.end(), [](const DataSymbol& a, const DataSymbol& b) {
    if (a.is_tls != b.is_tls) return a.is_tls < b.is_tls;
    if (a.vaddr != b.vaddr) return a.vaddr < b.vaddr;
    if (a.rank != b.rank) return a.rank < b.rank;
    if (a.bytes != b.bytes) return a.bytes > b.bytes;
    return a.name < b.name;  // stable between runs
  });
}

// Linkers leave variables they dropped at address 0, 1 or all-ones.
bool ModuleVariables::State::in_module(const StaticLocation& location) const {
  if (location.is_tls) return location.address < main->tls_bytes();
  if (location.address == 0) return false;
  for (const LoadSegment& s : main->segments())
    if (location.address >= s.vaddr && location.address - s.vaddr < s.memory_bytes) return true;
  return false;
}

void ModuleVariables::State::collect_candidates() {
  for (const bool in_alternate : {false, true})
    for (const UnitScan& scan : in_alternate ? entries->alternate_scans() : entries->scans())
      for (const FoundVariable& found : scan.variables) {
        // Addresses in a dwz file belong to no module; offsets of thread-local variables may.
        if ((in_alternate && !found.location.is_tls) || !in_module(found.location)) continue;
        if (candidates.size() >= kMaxVariables) {
          truncated = true;
          break;
        }
        candidates.push_back({found, in_alternate});
      }
  std::stable_sort(candidates.begin(), candidates.end(), [](const Candidate& a, const Candidate& b) {
    const StaticLocation &x = a.found.location, &y = b.found.location;
    return x.is_tls != y.is_tls ? x.is_tls < y.is_tls : x.address < y.address;
  });
}

bool ModuleVariables::State::same_name(const DebugEntry& entry, const DataSymbol& symbol) const {
  if (entries->text(entry, entry.linkage_name) == symbol.name) return true;
  const auto named = entries->named_entry(entry);
  if (!named) return false;
  if (entries->text(*named, named->linkage_name) == symbol.name) return true;
  const std::string_view plain = entries->text(*named, named->name);
  if (plain.empty()) return false;
  const std::string_view base = without_suffix(symbol.name);
  if (plain == base || symbol.name.ends_with("." + std::string(plain))) return true;
  if (!base.starts_with("_")) return false;
  const std::string demangled = demangle(base);
  return demangled == plain || demangled.ends_with("::" + std::string(plain));
}

Variable ModuleVariables::State::from_dwarf(const DebugEntry& entry) {
  Variable variable;
  variable.source = VariableSource::dwarf;
  variable.name = entries->qualified_name(entry);
  // What the definition does not say, its declaration does.
  DebugEntry current = entry;
  for (int n_hops = 0; n_hops < 16; ++n_hops) {
    if (variable.type == 0) variable.type = entries->target(current, current.type);
    if (variable.linkage_name.empty()) variable.linkage_name = entries->text(current, current.linkage_name);
    if (variable.line == 0 && current.declaration_line.present())
      variable.line = static_cast<uint32_t>(current.declaration_line.number);
    if (variable.file.empty()) variable.file = entries->declaration_file(current);
    if (!current.origin.present()) break;
    const auto next = entries->read(entries->target(current, current.origin));
    if (!next) break;
    // A definition's type may complete its declaration's (`extern int table[];`), never the
    // other way round.
    current = *next;
  }
  variable.type_name = types->name(variable.type);
  variable.type_bytes = types->bytes(variable.type);
  return variable;
}

void ModuleVariables::State::add(Variable variable) {
  n_text_bytes +=
      variable.name.size() + variable.linkage_name.size() + variable.file.size() + variable.type_name.size();
  if (n_text_bytes > kMaxTextBytes) {
    truncated = true;
    return;
  }
  if (variable.bytes != 0) variables.push_back(std::move(variable));
}

void ModuleVariables::State::merge() {
  size_t s = 0, c = 0;
  auto key = [](bool is_tls, uint64_t address) { return std::pair(is_tls, address); };
  while (s < symbols.size() || c < candidates.size()) {
    auto at = key(true, UINT64_MAX);
    if (s < symbols.size()) at = key(symbols[s].is_tls, symbols[s].vaddr);
    if (c < candidates.size()) {
      const StaticLocation& location = candidates[c].found.location;
      if (s == symbols.size() || key(location.is_tls, location.address) < at)
        at = key(location.is_tls, location.address);
    }
    const size_t first_symbol = s, first_candidate = c;
    while (s < symbols.size() && key(symbols[s].is_tls, symbols[s].vaddr) == at) ++s;
    while (c < candidates.size() &&
           key(candidates[c].found.location.is_tls, candidates[c].found.location.address) == at)
      ++c;
    const bool has_symbol = s > first_symbol;
    // A dropped thread-local variable looks like one at offset 0. With a complete symbol table a
    // real one has a symbol.
    if (!has_symbol && at.first && has_static_symbols) continue;

    // Inline variables come once a unit. Of different ones (folded, or dropped) the one that the
    // linker names so; a few looks are enough.
    std::optional<DebugEntry> chosen;
    const DataSymbol* symbol = has_symbol ? &symbols[first_symbol] : nullptr;
    bool in_common_block = false;
    int n_looks = 0;
    for (size_t i = first_candidate; i < c && n_looks < 64; ++i, ++n_looks) {
      const auto entry = entries->read(entry_id(candidates[i].found.entry_offset, candidates[i].in_alternate));
      if (!entry) continue;
      // A dwz file is several modules': only a symbol of the name makes it this one's.
      if (!chosen && !candidates[i].in_alternate) {
        chosen = entry;
        in_common_block = candidates[i].found.in_common_block;
      }
      const DataSymbol* match = nullptr;
      for (size_t k = first_symbol; k < std::min(s, first_symbol + 16) && !match; ++k)
        if (same_name(*entry, symbols[k])) match = &symbols[k];
      if (!match) continue;
      chosen = entry;
      in_common_block = candidates[i].found.in_common_block;
      symbol = match;
      break;
    }
    Variable variable;
    if (chosen) variable = from_dwarf(*chosen);
    if (variable.name.empty() && !symbol) continue;
    variable.bytes = variable.type_bytes;
    if (symbol) {
      variable.source = chosen ? VariableSource::both : VariableSource::elf;
      // The symbol of a COMMON block is as large as all its variables.
      if (!in_common_block || variable.bytes == 0) variable.bytes = symbol->bytes;
      if (!in_common_block) variable.linkage_name = symbol->name;
      if (variable.name.empty()) variable.name = demangle(symbol->name);
      if (chosen && variable.name.find("::") == std::string::npos)
        if (std::string scoped = scoped_by_symbol(symbol->name, variable.name); !scoped.empty())
          variable.name = std::move(scoped);
    }
    variable.is_tls = at.first;
    variable.vaddr = at.second;
    add(std::move(variable));
  }
}

ModuleVariables::ModuleVariables() : state_(std::make_unique<State>()) {}
ModuleVariables::~ModuleVariables() = default;

std::unique_ptr<ModuleVariables> ModuleVariables::open(const std::string& path, const OpenOptions& options) {
  std::unique_ptr<ModuleVariables> module(new ModuleVariables);
  module->state_->open(path, options);
  return module;
}

const std::string& ModuleVariables::status() const { return state_->status; }
const std::string& ModuleVariables::debug_note() const { return state_->debug_note; }
std::string ModuleVariables::build_id_hex() const {
  return state_->main ? state_->main->build_id_hex() : std::string();
}
bool ModuleVariables::has_debug_info() const { return state_->entries != nullptr; }
bool ModuleVariables::truncated() const {
  return state_->truncated || (state_->entries && state_->entries->truncated());
}
const std::vector<LoadSegment>& ModuleVariables::segments() const {
  static const std::vector<LoadSegment> kNone;
  return state_->main ? state_->main->segments() : kNone;
}
uint64_t ModuleVariables::tls_bytes() const { return state_->main ? state_->main->tls_bytes() : 0; }
const std::vector<Variable>& ModuleVariables::variables() const { return state_->variables; }

std::shared_ptr<const TypeInfo> ModuleVariables::describe_type(EntryId id) {
  return state_->types ? state_->types->describe(id) : nullptr;
}

std::shared_ptr<const TypeInfo> ModuleVariables::describe_type(std::string_view name) {
  if (!state_->types) return nullptr;
  return state_->types->describe(state_->types->find(name));
}

Place ModuleVariables::field_at(EntryId type, uint64_t offset, bool as_array) {
  return state_->types ? state_->types->field_at(type, offset, as_array) : Place();
}

}  // namespace memlens::symbols
