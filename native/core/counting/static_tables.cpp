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

// One function's table, step by step: each reads a part into `scratch`; numbers of rows are those that they will have in `out`.
class TableReader {
 public:
  TableReader(const StaticTables& out, StaticTables& scratch, std::vector<std::string_view>& texts, Bytes table,
              const ml_count_function& header, uint64_t first_counter, uint64_t first_site)
      : out_(out),
        s_(scratch),
        texts_(texts),
        cursor_({table.data(), table.size()}),
        header_(header),
        first_counter_(first_counter),
        first_site_(first_site) {}

  // What is wrong with the table, or nothing.
  std::optional<std::string> read();

  uint32_t name() const { return name_; }  // of texts
  uint32_t file() const { return file_; }
  uint32_t line() const { return line_; }
  uint32_t flags() const { return flags_; }

 private:
  using Problem = std::optional<std::string>;
  Problem read_head();
  Problem read_counters();
  Problem read_groups();
  Problem read_scopes();
  Problem read_blocks();
  Problem read_sites();
  Problem read_traced();
  Problem read_loops();
  Problem check_end() const;
  Problem check_scopes() const;
  Problem ended_in(const char* part) const {
    return cursor_.failed() ? Problem("ends in its " + std::string(part)) : std::nullopt;
  }

  uint32_t narrow() {
    const uint64_t value = cursor_.uleb128();
    if (value > UINT32_MAX) cursor_.fail();
    return static_cast<uint32_t>(value);
  }
  // A number of entries that the rest of the table has room for.
  uint64_t count(uint64_t fewest_bytes) {
    const uint64_t value = cursor_.uleb128();
    if (value > cursor_.remaining() / fewest_bytes) cursor_.fail();
    return cursor_.failed() ? 0 : value;
  }
  uint32_t text() {
    const uint64_t index = cursor_.uleb128();
    if (index >= texts_.size()) {
      bad_reference_ |= index != 0;  // a table without strings has only string 0
      return 0;
    }
    return static_cast<uint32_t>(index);
  }
  uint32_t group_number(uint64_t group) {
    // A table without groups: nothing in it can be counted.
    if (group >= n_groups_) {
      bad_reference_ |= group != 0;
      return kNone;
    }
    return group_base_ + static_cast<uint32_t>(group);
  }

  const StaticTables& out_;
  StaticTables& s_;
  std::vector<std::string_view>& texts_;
  ByteCursor cursor_;
  const ml_count_function& header_;
  const uint64_t first_counter_, first_site_;
  uint32_t flags_ = 0, name_ = 0, file_ = 0, line_ = 0;
  bool bad_reference_ = false;
  uint64_t n_counters_ = 0, n_groups_ = 0, n_scopes_ = 0, n_blocks_ = 0, n_sites_ = 0, n_traced_ = 0, n_loops_ = 0;
  uint32_t group_base_ = static_cast<uint32_t>(out_.first_term.size() - 1);
  uint32_t term_base_ = static_cast<uint32_t>(out_.term_counter.size());
  uint32_t function_ = static_cast<uint32_t>(out_.functions.name.size());
  uint32_t scope_base_ = static_cast<uint32_t>(out_.scopes.function.size());
  uint32_t block_base_ = static_cast<uint32_t>(out_.blocks.function.size());
  uint32_t site_base_ = static_cast<uint32_t>(out_.sites.kind.size());
  uint32_t loop_base_ = static_cast<uint32_t>(out_.loops.function.size());
};

class Decoder {
 public:
  explicit Decoder(StaticTables& out) : out_(out) {
    intern("");
    out_.first_term.push_back(0);
  }

  // Returns what is wrong with the table, or nothing. Appends only when nothing is.
  std::optional<std::string> add(Bytes table, const ml_count_function& header, uint64_t first_counter,
                                 uint64_t first_site);
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
  uint32_t global(uint32_t local) {
    if (local >= local_.size()) return 0;
    if (local_number_[local] == kNone) local_number_[local] = intern(local_[local]);
    return local_number_[local];
  }
  void append_scratch();

  StaticTables& out_;
  std::deque<std::string> texts_;  // keys of numbers_: they must not move
  std::unordered_map<std::string_view, uint32_t, TextHash, std::equal_to<>> numbers_;
  std::vector<std::string_view> local_;
  std::vector<uint32_t> local_number_;
  StaticTables scratch_;
};

std::optional<std::string> TableReader::read() {
  for (const auto step :
       {&TableReader::read_head, &TableReader::read_counters, &TableReader::read_groups, &TableReader::read_scopes,
        &TableReader::read_blocks, &TableReader::read_sites, &TableReader::read_traced, &TableReader::read_loops})
    if (auto problem = (this->*step)()) return problem;
  if (auto problem = check_end()) return problem;
  if (auto problem = check_scopes()) return problem;
  if (out_.sites.kind.size() + n_sites_ > kMostRows || out_.term_counter.size() + s_.term_counter.size() > kMostRows)
    return "is one too many";
  return std::nullopt;
}

TableReader::Problem TableReader::read_head() {
  const uint64_t version = cursor_.uleb128();
  if (cursor_.failed()) return "is empty";
  if (version < ML_COUNT_TABLE_OLDEST || version > ML_COUNT_TABLE_VERSION)
    return "has version " + std::to_string(version) + "; this build reads " + std::to_string(ML_COUNT_TABLE_OLDEST) +
           " to " + std::to_string(ML_COUNT_TABLE_VERSION);
  flags_ = narrow();
  const uint64_t n_strings = count(1);
  texts_.clear();
  for (uint64_t i = 0; i < n_strings && !cursor_.failed(); ++i) {
    const auto text = cursor_.take(cursor_.uleb128());
    texts_.emplace_back(reinterpret_cast<const char*>(text.data()), text.size());
  }
  if (cursor_.failed()) return "ends in its strings";
  name_ = text();
  file_ = text();
  line_ = narrow();
  return std::nullopt;
}

TableReader::Problem TableReader::read_counters() {
  n_counters_ = count(1);
  if (cursor_.failed()) return "ends in its head";
  if (n_counters_ != header_.counters)
    return "tells of " + std::to_string(n_counters_) + " counters, its entry of " + std::to_string(header_.counters);
  for (uint64_t i = 0; i < n_counters_; ++i) {
    const uint64_t kind = cursor_.uleb128();
    s_.counter_kind.push_back(kind < 255 ? static_cast<uint8_t>(kind) : 254);
  }
  return std::nullopt;
}

TableReader::Problem TableReader::read_groups() {
  n_groups_ = count(1);
  for (uint64_t i = 0; i < n_groups_ && !cursor_.failed(); ++i) {
    const uint64_t n_terms = count(2);
    for (uint64_t t = 0; t < n_terms && !cursor_.failed(); ++t) {
      const uint64_t counter = cursor_.uleb128();
      bad_reference_ |= counter >= n_counters_;
      s_.term_counter.push_back(static_cast<uint32_t>(first_counter_ + counter));
      s_.term_scale.push_back(cursor_.sleb128());
    }
    s_.first_term.push_back(term_base_ + static_cast<uint32_t>(s_.term_counter.size()));
  }
  return ended_in("groups");
}

TableReader::Problem TableReader::read_scopes() {
  n_scopes_ = count(6);
  for (uint64_t i = 0; i < n_scopes_ && !cursor_.failed(); ++i) {
    s_.scopes.name.push_back(text());
    s_.scopes.file.push_back(text());
    s_.scopes.line.push_back(narrow());
    const uint64_t parent = cursor_.uleb128();
    bad_reference_ |= parent > n_scopes_ || parent == i + 1;
    s_.scopes.parent.push_back(parent == 0 ? kNone : scope_base_ + static_cast<uint32_t>(parent - 1));
    s_.scopes.call_line.push_back(narrow());
    s_.scopes.call_column.push_back(narrow());
    s_.scopes.function.push_back(function_);
  }
  return ended_in("scopes");
}

TableReader::Problem TableReader::read_blocks() {
  const bool mix = flags_ & ML_TABLE_MIX;
  n_blocks_ = count(mix ? 3 + kMixes : 3);
  for (uint64_t i = 0; i < n_blocks_ && !cursor_.failed(); ++i) {
    s_.blocks.group.push_back(group_number(cursor_.uleb128()));
    s_.blocks.depth.push_back(narrow());
    s_.blocks.line.push_back(narrow());
    for (auto& column : s_.blocks.mix) column.push_back(mix ? narrow() : 0);
    s_.blocks.has_mix.push_back(mix);
    s_.blocks.function.push_back(function_);
  }
  return ended_in("blocks");
}

TableReader::Problem TableReader::read_sites() {
  n_sites_ = count(11);
  for (uint64_t i = 0; i < n_sites_ && !cursor_.failed(); ++i) {
    const uint64_t kind = cursor_.uleb128();
    s_.sites.kind.push_back(kind < 255 ? static_cast<uint8_t>(kind) : 255);
    s_.sites.flags.push_back(narrow());
    const uint64_t block = cursor_.uleb128();
    bad_reference_ |= block >= n_blocks_;
    s_.sites.block.push_back(block_base_ + static_cast<uint32_t>(block));
    s_.sites.group.push_back(group_number(cursor_.uleb128()));
    s_.sites.bytes.push_back(cursor_.uleb128());
    const uint64_t bytes_counter = cursor_.uleb128();
    bad_reference_ |= bytes_counter > n_counters_;
    s_.sites.bytes_counter.push_back(bytes_counter == 0 ? kNone
                                                        : static_cast<uint32_t>(first_counter_ + bytes_counter - 1));
    const uint64_t scope = cursor_.uleb128();
    bad_reference_ |= scope > n_scopes_;
    s_.sites.scope.push_back(scope == 0 ? kNone : scope_base_ + static_cast<uint32_t>(scope - 1));
    s_.sites.file.push_back(text());
    s_.sites.line.push_back(narrow());
    s_.sites.column.push_back(narrow());
    s_.sites.callee.push_back(text());
    s_.sites.function.push_back(function_);
  }
  return ended_in("sites");
}

TableReader::Problem TableReader::read_traced() {
  const bool has_bytes = flags_ & ML_TABLE_TRACE_BYTES;
  const bool has_stand_ins = flags_ & ML_TABLE_TRACE_STAND_INS;
  n_traced_ = flags_ & ML_TABLE_TRACE ? count(5 + (has_bytes ? 1 : 0) + (has_stand_ins ? 1 : 0)) : 0;
  if (!cursor_.failed() && header_.trace_sites > n_traced_)
    return "tells of " + std::to_string(n_traced_) + " traced sites, its entry of " +
           std::to_string(header_.trace_sites);
  for (uint64_t i = 0; i < n_traced_ && !cursor_.failed(); ++i) {
    const uint64_t site = cursor_.uleb128();
    bad_reference_ |= site >= n_sites_;
    const auto byte = [&] { return static_cast<uint8_t>(std::min<uint64_t>(cursor_.uleb128(), 255)); };
    s_.traced.number.push_back(i < header_.trace_sites ? static_cast<uint32_t>(first_site_ + i) : kNone);
    s_.traced.site.push_back(site_base_ + static_cast<uint32_t>(site));
    s_.traced.address_class.push_back(byte());
    s_.traced.kind.push_back(byte());
    s_.traced.step_bytes.push_back(cursor_.sleb128());
    s_.traced.is_written.push_back(byte() != 0);
    const bool known = site < n_sites_;
    // Without a width of its own an address has that of its site; a gather's is not that of one lane.
    const uint64_t own = known && (s_.sites.flags[site] & ML_SITE_GATHER) == 0 ? s_.sites.bytes[site] : 0;
    s_.traced.bytes.push_back(has_bytes ? cursor_.uleb128() : own);
    const uint64_t stand_in = has_stand_ins ? cursor_.uleb128() : 0;
    bad_reference_ |= stand_in > header_.trace_sites;
    s_.traced.stand_in.push_back(stand_in == 0 ? kNone : static_cast<uint32_t>(first_site_ + stand_in - 1));
  }
  return ended_in("traced sites");
}

TableReader::Problem TableReader::read_loops() {
  n_loops_ = flags_ & ML_TABLE_LOOPS ? count(5) : 0;
  for (uint64_t i = 0; i < n_loops_ && !cursor_.failed(); ++i) {
    const uint64_t parent = cursor_.uleb128(), scope = cursor_.uleb128();
    bad_reference_ |= parent > i || scope > n_scopes_;
    s_.loops.function.push_back(function_);
    s_.loops.parent.push_back(parent == 0 ? kNone : loop_base_ + static_cast<uint32_t>(parent - 1));
    s_.loops.scope.push_back(scope == 0 ? kNone : scope_base_ + static_cast<uint32_t>(scope - 1));
    s_.loops.file.push_back(text());
    s_.loops.line.push_back(narrow());
    s_.loops.column.push_back(narrow());
  }
  for (uint64_t i = 0; i < n_sites_ && !cursor_.failed(); ++i) {
    const uint64_t loop = flags_ & ML_TABLE_LOOPS ? cursor_.uleb128() : 0;
    bad_reference_ |= loop > n_loops_;
    s_.loop_of_site.push_back(loop == 0 ? kNone : loop_base_ + static_cast<uint32_t>(loop - 1));
  }
  return ended_in("loops");
}

TableReader::Problem TableReader::check_end() const {
  if (bad_reference_) return "names a string, counter, group, scope, block or loop that it does not have";
  if (!cursor_.at_end()) return "has " + std::to_string(cursor_.remaining()) + " bytes too many";
  return std::nullopt;
}

// A chain of scopes that leads back to itself would never end.
TableReader::Problem TableReader::check_scopes() const {
  std::vector<uint8_t> state(n_scopes_, 0);  // 0 not seen, 1 on the way, 2 leads out
  for (uint32_t i = 0; i < n_scopes_; ++i) {
    const auto walk = [&](uint8_t from, uint8_t to) {
      uint32_t at = i;
      while (at != kNone && state[at] == from) {
        state[at] = to;
        at = s_.scopes.parent[at] == kNone ? kNone : s_.scopes.parent[at] - scope_base_;
      }
      return at;
    };
    const uint32_t stopped = walk(0, 1);
    if (stopped != kNone && state[stopped] == 1) return "has inlined functions in a circle";
    walk(1, 2);
  }
  return std::nullopt;
}

std::optional<std::string> Decoder::add(Bytes table, const ml_count_function& header, uint64_t first_counter,
                                        uint64_t first_site) {
  scratch_ = StaticTables();
  TableReader reader(out_, scratch_, local_, table, header, first_counter, first_site);
  if (auto problem = reader.read()) return problem;
  local_number_.assign(local_.size(), kNone);
  StaticTables& s = scratch_;
  for (auto* column : {&s.scopes.name, &s.scopes.file, &s.sites.file, &s.sites.callee, &s.loops.file})
    for (auto& value : *column) value = global(value);
  out_.functions.name.push_back(global(reader.name()));
  out_.functions.file.push_back(global(reader.file()));
  out_.functions.line.push_back(reader.line());
  out_.functions.flags.push_back(reader.flags());
  out_.functions.counters.push_back(header.counters);
  out_.functions.first_counter.push_back(first_counter);
  out_.functions.sound.push_back(1);
  append_scratch();
  return std::nullopt;
}

void Decoder::append_scratch() {
  const StaticTables& s = scratch_;
  const auto append = [](auto& to, const auto& from) { to.insert(to.end(), from.begin(), from.end()); };
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
      problem("function " + std::to_string(i) + " claims " + std::to_string(header.counters) + " counters and " +
              std::to_string(header.trace_sites) + " traced sites: nothing after it can be numbered");
      out.damaged_functions += n_functions - i;
      break;
    }
    const uint64_t member = functions_address + i * sizeof header + offsetof(ml_count_function, table);
    const uint64_t at = member + static_cast<uint64_t>(header.table) - tables_address;  // modulo 2^64 on purpose
    std::optional<std::string> wrong;
    if (at > tables.size() || header.table_bytes > tables.size() - at) wrong = "lies outside memlens_tables";
    else wrong = decoder.add(tables.subspan(at, header.table_bytes), header, first_counter, out.trace_sites);
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
