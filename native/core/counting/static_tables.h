// What the counters of one module mean: decodes its sections memlens_functions and memlens_tables (format/memlens_count.h).
//
// Numbers in a table belong to its function; columns here are numbered through the module: counters as the runtime
// numbers them, groups, scopes, blocks and sites one function after the other. A damaged table costs its
// own function, which is reported; nothing outside the two sections is read.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "memlens_lists.h"

namespace memlens::counting {

using Bytes = std::span<const unsigned char>;
constexpr uint32_t kNone = UINT32_MAX;
constexpr size_t kMixes = ML_MIX_FLOAT_RESULTS + 1;

struct StaticTables {
  // Every distinct text once; other columns hold its number. Number 0 is "".
  std::vector<std::string> strings;

  struct Functions {
    std::vector<uint32_t> name, file, line, flags, counters;
    std::vector<uint64_t> first_counter;
    std::vector<uint8_t> sound;  // 0: its table is damaged, and nothing below belongs to it
  } functions;
  std::vector<uint8_t> counter_kind;  // one a counter of the module, 255 of damaged tables
  // Terms of group g: [first_term[g], first_term[g + 1]).
  std::vector<uint32_t> first_term, term_counter;
  std::vector<int64_t> term_scale;
  struct Scopes {
    std::vector<uint32_t> function, name, file, line, parent, call_line, call_column;  // parent: scope or kNone
  } scopes;
  struct Blocks {
    std::vector<uint32_t> function, group, depth, line;
    std::vector<uint32_t> mix[kMixes];
    std::vector<uint8_t> has_mix;
  } blocks;
  struct Sites {
    std::vector<uint8_t> kind;
    std::vector<uint32_t> flags, function, block, group, scope, file, line, column, callee;  // scope: or kNone
    std::vector<uint64_t> bytes;
    std::vector<uint32_t> bytes_counter;  // in the module, or kNone
  } sites;

  // Addresses of sites as a trace records them; those of `number` kNone are constants, which are implied.
  struct Traced {
    std::vector<uint32_t> number;  // in the module, from 0
    std::vector<uint32_t> site;
    std::vector<uint8_t> address_class, kind, is_written;
    std::vector<int64_t> step_bytes;
    std::vector<uint64_t> bytes;  // of one access, 0 = the stream tells
    // of an implied one: `number` of the recorded one that is executed with it, or kNone
    std::vector<uint32_t> stand_in;
  } traced;
  // Loops of traced functions, as the source has them. Those around a loop come before it.
  struct Loops {
    std::vector<uint32_t> function, parent, scope, file, line, column;  // parent, scope: or kNone
  } loops;
  std::vector<uint32_t> loop_of_site;  // the innermost one; kNone = in none, or not told

  uint64_t trace_sites = 0;  // numbers given, those of damaged functions too

  // What is wrong, a sentence each; at most a few are kept.
  std::vector<std::string> problems;
  uint64_t damaged_functions = 0;
};

StaticTables decode_static_tables(Bytes functions, uint64_t functions_address, Bytes tables, uint64_t tables_address);

}  // namespace memlens::counting
