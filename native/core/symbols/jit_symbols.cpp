// SPDX-License-Identifier: Apache-2.0
// perf maps and the look-up; the binary format is in jitdump.cpp.
#include "jit_symbols.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <numeric>
#include <optional>

namespace memlens::symbols {
namespace {

bool is_space(char c) { return c == ' ' || c == '\t'; }

// Takes one hexadecimal field, with or without 0x, from the front of `line`.
bool take_hex(std::string_view& line, uint64_t& value) {
  while (!line.empty() && is_space(line.front())) line.remove_prefix(1);
  if (line.starts_with("0x") || line.starts_with("0X")) line.remove_prefix(2);
  value = 0;
  size_t n_digits = 0;
  for (; !line.empty() && !is_space(line.front()); line.remove_prefix(1), ++n_digits) {
    const char c = line.front();
    uint64_t digit;
    if (c >= '0' && c <= '9') digit = static_cast<uint64_t>(c - '0');
    else if (c >= 'a' && c <= 'f') digit = static_cast<uint64_t>(c - 'a') + 10;
    else if (c >= 'A' && c <= 'F') digit = static_cast<uint64_t>(c - 'A') + 10;
    else return false;
    if (value >> 60) return false;
    value = value * 16 + digit;
  }
  return n_digits > 0;
}

constexpr off_t kMostBytes = off_t{1} << 30;

std::optional<std::string> read_file(const std::string& path, std::string& status) {
  // The program gives the name: a pipe would block for ever, and a device has no end.
  struct stat info = {};
  if (stat(path.c_str(), &info) == 0 && (!S_ISREG(info.st_mode) || info.st_size > kMostBytes)) {
    status = path + (S_ISREG(info.st_mode) ? ": too long" : ": not a regular file");
    return std::nullopt;
  }
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    status = path + ": cannot open: " + (errno ? std::strerror(errno) : "unknown error") +
             "; run the program with its JIT's perf support switched on";
    return std::nullopt;
  }
  std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  if (file.bad()) {
    status = path + ": reading failed after " + std::to_string(text.size()) + " bytes";
    return std::nullopt;
  }
  return text;
}

}  // namespace

const JitLine* JitEntry::line_at(uint64_t address) const {
  if (!lines || address < begin || address >= end) return nullptr;
  auto after = std::upper_bound(lines->begin(), lines->end(), address - begin,
                                [](uint64_t o, const JitLine& l) { return o < l.offset_bytes; });
  return after == lines->begin() ? nullptr : &*std::prev(after);
}

JitSymbols JitSymbols::parse_perf_map(std::string_view text) {
  JitSymbols symbols;
  while (!text.empty()) {
    const size_t newline = text.find('\n');
    std::string_view line = text.substr(0, newline);
    text.remove_prefix(newline == std::string_view::npos ? text.size() : newline + 1);
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty()) continue;
    uint64_t begin = 0, n_bytes = 0;
    const bool has_range = take_hex(line, begin) && take_hex(line, n_bytes);
    while (!line.empty() && is_space(line.front())) line.remove_prefix(1);
    // Code without bytes names no address; a range past the top of memory is damage.
    if (!has_range || n_bytes == 0 || line.empty() || begin + n_bytes < begin) {
      ++symbols.n_malformed_;
      continue;
    }
    JitEntry entry{.begin = begin, .end = begin + n_bytes, .name = std::string(line), .lines = {}};
    symbols.entries_.push_back(std::move(entry));
  }
  symbols.finish();
  return symbols;
}

JitSymbols JitSymbols::read_perf_map(const std::string& path) {
  std::string status;
  if (const auto text = read_file(path, status)) return parse_perf_map(*text);
  JitSymbols symbols;
  symbols.status_ = status;
  return symbols;
}

JitSymbols JitSymbols::read_jitdump(const std::string& path) {
  std::string status;
  if (const auto text = read_file(path, status))
    return parse_jitdump({reinterpret_cast<const uint8_t*>(text->data()), text->size()});
  JitSymbols symbols;
  symbols.status_ = status;
  return symbols;
}

void JitSymbols::finish() {
  order_.resize(entries_.size());
  std::iota(order_.begin(), order_.end(), 0);
  std::stable_sort(order_.begin(), order_.end(),
                   [&](uint32_t a, uint32_t b) { return entries_[a].begin < entries_[b].begin; });
  std::vector<JitEntry> sorted;
  sorted.reserve(entries_.size());
  for (uint32_t position : order_) sorted.push_back(std::move(entries_[position]));
  entries_ = std::move(sorted);
  max_end_.resize(entries_.size());
  uint64_t max_end = 0;
  for (size_t i = 0; i < entries_.size(); ++i) max_end_[i] = max_end = std::max(max_end, entries_[i].end);
}

const JitEntry* JitSymbols::resolve(uint64_t address, uint64_t time_ns) const {
  auto after = std::upper_bound(entries_.begin(), entries_.end(), address,
                                [](uint64_t a, const JitEntry& e) { return a < e.begin; });
  const JitEntry* best = nullptr;
  uint32_t best_order = 0;
  for (size_t i = static_cast<size_t>(after - entries_.begin()); i-- > 0;) {
    if (max_end_[i] <= address) break;  // nothing further down reaches this address
    const JitEntry& entry = entries_[i];
    if (address >= entry.end || time_ns < entry.begin_time_ns || time_ns >= entry.end_time_ns) continue;
    const bool later = !best || entry.begin_time_ns > best->begin_time_ns ||
                       (entry.begin_time_ns == best->begin_time_ns && order_[i] > best_order);
    if (later) {
      best = &entry;
      best_order = order_[i];
    }
  }
  return best;
}

}  // namespace memlens::symbols
