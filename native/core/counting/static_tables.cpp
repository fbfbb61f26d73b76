#include "static_tables.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <optional>

#include "memlens_count.h"
#include "memlens_trace.h"
#include "symbols/byte_cursor.h"

namespace memlens::counting {
namespace {

using symbols::ByteCursor;

constexpr size_t kMostProblems = 8;
// 2^32 − 1 is kNone, and a module does not come near these.
constexpr uint64_t kMostRows = UINT64_C(1) << 31;

struct TextHash {
  using is_transparent = void;
  size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
};

class Decoder {
 public:
  explicit Decoder(StaticTables& out) : out_(out) { intern(""); out_.first_term.push_back(0); }

  // Returns what is wrong with the table, or nothing. Appends only when nothing is.
  std::optional<std::string> add(Bytes table, const ml_count_function& header, uint64_t first_counter, uint64_t first_site);
  void add_damaged(const ml_count_function& header, uint64_t first_counter);

 private:
  uint32_t intern(std::string_view text) {
    const auto found = numbers_.find(text);
    if (found != numbers_.end()) return found->second;
    texts_.emplace_back(text);
    out_.strings.emplace_back(text);
    const auto number = static_cast<uint32_t>(texts_.size() - 1);
    numbers_.emplace(texts_.back(), number);
    return number;
  }
  static uint32_t narrow(ByteCursor& cursor) {
    const uint64_t value = cursor.uleb128();
    if (value > UINT32_MAX) cursor.fail();
    return static_cast<uint32_t>(value);
  }
  // A number of entries that the rest of the table has room for.
  static uint64_t count(ByteCursor& cursor, uint64_t fewest_bytes) {
    const uint64_t value = cursor.uleb128();
    if (value > cursor.remaining() / fewest_bytes) cursor.fail();
    return cursor.failed() ? 0 : value;
  }

  StaticTables& out_;
  std::deque<std::string> texts_;  // keys of numbers_: they must not move
  std::unordered_map<std::string_view, uint32_t, TextHash, std::equal_to<>> numbers_;
  std::vector<std::string_view> local_;
  std::vector<uint32_t> local_number_;
  StaticTables scratch_;
};

std::optional<std::string> Decoder::add(Bytes table, const ml_count_function& header, uint64_t first_counter,
                                        uint64_t first_site) {
  ByteCursor cursor({table.data(), table.size()});
  const uint64_t version = cursor.uleb128();
  if (cursor.failed()) return "is empty";
  if (version < ML_COUNT_TABLE_OLDEST || version > ML_COUNT_TABLE_VERSION)
    return "has version " + std::to_string(version) + "; this build reads " + std::to_string(ML_COUNT_TABLE_OLDEST) + " to " +
           std::to_string(ML_COUNT_TABLE_VERSION);
  const uint32_t flags = narrow(cursor);
  const uint64_t n_strings = count(cursor, 1);
  local_.clear();
  for (uint64_t i = 0; i < n_strings && !cursor.failed(); ++i) {
    const auto text = cursor.take(cursor.uleb128());
    local_.emplace_back(reinterpret_cast<const char*>(text.data()), text.size());
  }
  if (cursor.failed()) return "ends in its strings";
  local_number_.assign(local_.size(), kNone);
  bool bad_reference = false;
  const auto text = [&]() -> uint32_t {
    const uint64_t index = cursor.uleb128();
    if (index >= local_.size()) {
      bad_reference |= index != 0;  // a table without strings has only string 0
      return 0;
    }
    return static_cast<uint32_t>(index);
  };
  StaticTables& s = scratch_;
  s = StaticTables();
  const uint32_t name = text(), file = text(), line = narrow(cursor);
  const uint64_t n_counters = count(cursor, 1);
  if (cursor.failed()) return "ends in its head";
  if (n_counters != header.counters)
    return "tells of " + std::to_string(n_counters) + " counters, its entry of " + std::to_string(header.counters);
  for (uint64_t i = 0; i < n_counters; ++i) {
    const uint64_t kind = cursor.uleb128();
    s.counter_kind.push_back(kind < 255 ? static_cast<uint8_t>(kind) : 254);
  }
  const uint64_t n_groups = count(cursor, 1);
  const auto group_base = static_cast<uint32_t>(out_.first_term.size() - 1);
  const auto term_base = static_cast<uint32_t>(out_.term_counter.size());
  for (uint64_t i = 0; i < n_groups && !cursor.failed(); ++i) {
    const uint64_t n_terms = count(cursor, 2);
    for (uint64_t t = 0; t < n_terms && !cursor.failed(); ++t) {
      const uint64_t counter = cursor.uleb128();
      bad_reference |= counter >= n_counters;
      s.term_counter.push_back(static_cast<uint32_t>(first_counter + counter));
      s.term_scale.push_back(cursor.sleb128());
    }
    s.first_term.push_back(term_base + static_cast<uint32_t>(s.term_counter.size()));
  }
  if (cursor.failed()) return "ends in its groups";
  const uint64_t n_scopes = count(cursor, 6);
  const auto function = static_cast<uint32_t>(out_.functions.name.size());
  const auto scope_base = static_cast<uint32_t>(out_.scopes.function.size());
  for (uint64_t i = 0; i < n_scopes && !cursor.failed(); ++i) {
    s.scopes.name.push_back(text());
    s.scopes.file.push_back(text());
    s.scopes.line.push_back(narrow(cursor));
    const uint64_t parent = cursor.uleb128();
    bad_reference |= parent > n_scopes || parent == i + 1;
    s.scopes.parent.push_back(parent == 0 ? kNone : scope_base + static_cast<uint32_t>(parent - 1));
    s.scopes.call_line.push_back(narrow(cursor));
    s.scopes.call_column.push_back(narrow(cursor));
    s.scopes.function.push_back(function);
  }
  if (cursor.failed()) return "ends in its scopes";
  const bool mix = flags & ML_TABLE_MIX;
  const uint64_t n_blocks = count(cursor, mix ? 3 + kMixes : 3);
  const auto block_base = static_cast<uint32_t>(out_.blocks.function.size());
  const auto group_number = [&](uint64_t group) -> uint32_t {
    // A table without groups: nothing in it can be counted.
    if (group >= n_groups) {
      bad_reference |= group != 0;
      return kNone;
    }
    return group_base + static_cast<uint32_t>(group);
  };
  for (uint64_t i = 0; i < n_blocks && !cursor.failed(); ++i) {
    s.blocks.group.push_back(group_number(cursor.uleb128()));
    s.blocks.depth.push_back(narrow(cursor));
    s.blocks.line.push_back(narrow(cursor));
    for (auto& column : s.blocks.mix) column.push_back(mix ? narrow(cursor) : 0);
    s.blocks.has_mix.push_back(mix);
    s.blocks.function.push_back(function);
  }
  if (cursor.failed()) return "ends in its blocks";
  const uint64_t n_sites = count(cursor, 11);
  for (uint64_t i = 0; i < n_sites && !cursor.failed(); ++i) {
    const uint64_t kind = cursor.uleb128();
    s.sites.kind.push_back(kind < 255 ? static_cast<uint8_t>(kind) : 255);
    s.sites.flags.push_back(narrow(cursor));
    const uint64_t block = cursor.uleb128();
    bad_reference |= block >= n_blocks;
    s.sites.block.push_back(block_base + static_cast<uint32_t>(block));
    s.sites.group.push_back(group_number(cursor.uleb128()));
    s.sites.bytes.push_back(cursor.uleb128());
    const uint64_t bytes_counter = cursor.uleb128();
    bad_reference |= bytes_counter > n_counters;
    s.sites.bytes_counter.push_back(bytes_counter == 0 ? kNone : static_cast<uint32_t>(first_counter + bytes_counter - 1));
    const uint64_t scope = cursor.uleb128();
    bad_reference |= scope > n_scopes;
    s.sites.scope.push_back(scope == 0 ? kNone : scope_base + static_cast<uint32_t>(scope - 1));
    s.sites.file.push_back(text());
    s.sites.line.push_back(narrow(cursor));
    s.sites.column.push_back(narrow(cursor));
    s.sites.callee.push_back(text());
    s.sites.function.push_back(function);
  }
  if (cursor.failed()) return "ends in its sites";
  const auto site_base = static_cast<uint32_t>(out_.sites.kind.size());
  const bool has_bytes = flags & ML_TABLE_TRACE_BYTES;
  const bool has_stand_ins = flags & ML_TABLE_TRACE_STAND_INS;
  const uint64_t n_traced = flags & ML_TABLE_TRACE ? count(cursor, 5 + (has_bytes ? 1 : 0) + (has_stand_ins ? 1 : 0)) : 0;
  if (!cursor.failed() && header.trace_sites > n_traced)
    return "tells of " + std::to_string(n_traced) + " traced sites, its entry of " + std::to_string(header.trace_sites);
  for (uint64_t i = 0; i < n_traced && !cursor.failed(); ++i) {
    const uint64_t site = cursor.uleb128();
    bad_reference |= site >= n_sites;
    const auto byte = [&] { return static_cast<uint8_t>(std::min<uint64_t>(cursor.uleb128(), 255)); };
    s.traced.number.push_back(i < header.trace_sites ? static_cast<uint32_t>(first_site + i) : kNone);
    s.traced.site.push_back(site_base + static_cast<uint32_t>(site));
    s.traced.address_class.push_back(byte());
    s.traced.kind.push_back(byte());
    s.traced.step_bytes.push_back(cursor.sleb128());
    s.traced.is_written.push_back(byte() != 0);
    const bool known = site < n_sites;
    // Without a width of its own an address has that of its site; a gather's is not that of one lane.
    const uint64_t own = known && (s.sites.flags[site] & ML_SITE_GATHER) == 0 ? s.sites.bytes[site] : 0;
    s.traced.bytes.push_back(has_bytes ? cursor.uleb128() : own);
    const uint64_t stand_in = has_stand_ins ? cursor.uleb128() : 0;
    bad_reference |= stand_in > header.trace_sites;
    s.traced.stand_in.push_back(stand_in == 0 ? kNone : static_cast<uint32_t>(first_site + stand_in - 1));
  }
  if (cursor.failed()) return "ends in its traced sites";
  const uint64_t n_loops = flags & ML_TABLE_LOOPS ? count(cursor, 5) : 0;
  const auto loop_base = static_cast<uint32_t>(out_.loops.function.size());
  for (uint64_t i = 0; i < n_loops && !cursor.failed(); ++i) {
    const uint64_t parent = cursor.uleb128(), scope = cursor.uleb128();
    bad_reference |= parent > i || scope > n_scopes;
    s.loops.function.push_back(function);
    s.loops.parent.push_back(parent == 0 ? kNone : loop_base + static_cast<uint32_t>(parent - 1));
    s.loops.scope.push_back(scope == 0 ? kNone : scope_base + static_cast<uint32_t>(scope - 1));
    s.loops.file.push_back(text());
    s.loops.line.push_back(narrow(cursor));
    s.loops.column.push_back(narrow(cursor));
  }
  for (uint64_t i = 0; i < n_sites && !cursor.failed(); ++i) {
    const uint64_t loop = flags & ML_TABLE_LOOPS ? cursor.uleb128() : 0;
    bad_reference |= loop > n_loops;
    s.loop_of_site.push_back(loop == 0 ? kNone : loop_base + static_cast<uint32_t>(loop - 1));
  }
  if (cursor.failed()) return "ends in its loops";
  if (bad_reference) return "names a string, counter, group, scope, block or loop that it does not have";
  if (!cursor.at_end()) return "has " + std::to_string(cursor.remaining()) + " bytes too many";
  // A chain of scopes that leads back to itself would never end. 0 not seen, 1 on the way, 2 leads out.
  std::vector<uint8_t> state(n_scopes, 0);
  for (uint32_t i = 0; i < n_scopes; ++i) {
    const auto walk = [&](uint8_t from, uint8_t to) {
      uint32_t at = i;
      while (at != kNone && state[at] == from) {
        state[at] = to;
        at = s.scopes.parent[at] == kNone ? kNone : s.scopes.parent[at] - scope_base;
      }
      return at;
    };
    const uint32_t stopped = walk(0, 1);
    if (stopped != kNone && state[stopped] == 1) return "has inlined functions in a circle";
    walk(1, 2);
  }
  if (out_.sites.kind.size() + n_sites > kMostRows || out_.term_counter.size() + s.term_counter.size() > kMostRows)
    return "is one too many";

  const auto global = [&](uint32_t local) {
    if (local >= local_.size()) return 0u;
    if (local_number_[local] == kNone) local_number_[local] = intern(local_[local]);
    return local_number_[local];
  };
  for (auto* column : {&s.scopes.name, &s.scopes.file, &s.sites.file, &s.sites.callee, &s.loops.file})
    for (auto& value : *column) value = global(value);
  const auto append = [](auto& to, const auto& from) { to.insert(to.end(), from.begin(), from.end()); };
  out_.functions.name.push_back(global(name));
  out_.functions.file.push_back(global(file));
  out_.functions.line.push_back(line);
  out_.functions.flags.push_back(flags);
  out_.functions.counters.push_back(header.counters);
  out_.functions.first_counter.push_back(first_counter);
  out_.functions.sound.push_back(1);
  append(out_.counter_kind, s.counter_kind);
  append(out_.first_term, s.first_term);
  append(out_.term_counter, s.term_counter);
  append(out_.term_scale, s.term_scale);
  append(out_.scopes.function, s.scopes.function);
  append(out_.scopes.name, s.scopes.name);
  append(out_.scopes.file, s.scopes.file);
  append(out_.scopes.line, s.scopes.line);
  append(out_.scopes.parent, s.scopes.parent);
  append(out_.scopes.call_line, s.scopes.call_line);
  append(out_.scopes.call_column, s.scopes.call_column);
  append(out_.blocks.function, s.blocks.function);
  append(out_.blocks.group, s.blocks.group);
  append(out_.blocks.depth, s.blocks.depth);
  append(out_.blocks.line, s.blocks.line);
  for (size_t i = 0; i < kMixes; ++i) append(out_.blocks.mix[i], s.blocks.mix[i]);
  append(out_.blocks.has_mix, s.blocks.has_mix);
  append(out_.sites.kind, s.sites.kind);
  append(out_.sites.flags, s.sites.flags);
  append(out_.sites.function, s.sites.function);
  append(out_.sites.block, s.sites.block);
  append(out_.sites.group, s.sites.group);
  append(out_.sites.scope, s.sites.scope);
  append(out_.sites.file, s.sites.file);
  append(out_.sites.line, s.sites.line);
  append(out_.sites.column, s.sites.column);
  append(out_.sites.callee, s.sites.callee);
  append(out_.sites.bytes, s.sites.bytes);
  append(out_.sites.bytes_counter, s.sites.bytes_counter);
  append(out_.traced.number, s.traced.number);
  append(out_.traced.site, s.traced.site);
  append(out_.traced.address_class, s.traced.address_class);
  append(out_.traced.kind, s.traced.kind);
  append(out_.traced.is_written, s.traced.is_written);
  append(out_.traced.step_bytes, s.traced.step_bytes);
  append(out_.traced.bytes, s.traced.bytes);
  append(out_.traced.stand_in, s.traced.stand_in);
  append(out_.loops.function, s.loops.function);
  append(out_.loops.parent, s.loops.parent);
  append(out_.loops.scope, s.loops.scope);
  append(out_.loops.file, s.loops.file);
  append(out_.loops.line, s.loops.line);
  append(out_.loops.column, s.loops.column);
  append(out_.loop_of_site, s.loop_of_site);
  return std::nullopt;
}

void Decoder::add_damaged(const ml_count_function& header, uint64_t first_counter) {
  out_.functions.name.push_back(0);
  out_.functions.file.push_back(0);
  out_.functions.line.push_back(0);
  out_.functions.flags.push_back(0);
  out_.functions.counters.push_back(header.counters);
  out_.functions.first_counter.push_back(first_counter);
  out_.functions.sound.push_back(0);
  out_.counter_kind.insert(out_.counter_kind.end(), header.counters, 255);
  ++out_.damaged_functions;
}

}  // namespace

StaticTables decode_static_tables(Bytes functions, uint64_t functions_address, Bytes tables, uint64_t tables_address) {
  StaticTables out;
  Decoder decoder(out);
  const auto problem = [&](std::string text) {
    if (out.problems.size() < kMostProblems) out.problems.push_back(std::move(text));
  };
  if (functions.size() % sizeof(ml_count_function) != 0)
    problem("memlens_functions has " + std::to_string(functions.size()) + " bytes, not a multiple of " +
            std::to_string(sizeof(ml_count_function)));
  uint64_t first_counter = 0;
  const size_t n_functions = functions.size() / sizeof(ml_count_function);
  for (size_t i = 0; i < n_functions; ++i) {
    ml_count_function header;
    std::memcpy(&header, functions.data() + i * sizeof header, sizeof header);
    // A function has at most so many; more is damage, and would only fill memory.
    if (header.counters > ML_COUNT_MAX_OF_FUNCTION || first_counter + header.counters > kMostRows ||
        header.trace_sites >= ML_TRACE_FIRST_SITE || out.trace_sites + header.trace_sites > kMostRows) {
      problem("function " + std::to_string(i) + " claims " + std::to_string(header.counters) +
              " counters and " + std::to_string(header.trace_sites) + " traced sites: nothing after it can be numbered");
      out.damaged_functions += n_functions - i;
      break;
    }
    const uint64_t member = functions_address + i * sizeof header + offsetof(ml_count_function, table);
    const uint64_t at = member + static_cast<uint64_t>(header.table) - tables_address;  // modulo 2^64 on purpose
    std::optional<std::string> wrong;
    if (at > tables.size() || header.table_bytes > tables.size() - at)
      wrong = "lies outside memlens_tables";
    else
      wrong = decoder.add(tables.subspan(at, header.table_bytes), header, first_counter, out.trace_sites);
    if (wrong) {
      problem("the table of function " + std::to_string(i) + " " + *wrong);
      decoder.add_damaged(header, first_counter);
    }
    first_counter += header.counters;
    out.trace_sites += header.trace_sites;
  }
  return out;
}

}  // namespace memlens::counting
