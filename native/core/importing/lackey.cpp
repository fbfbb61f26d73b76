#include "lackey.h"

#include <algorithm>

#include "number_scan.h"

namespace memlens::importing {
namespace {

constexpr const char* kExpected =
    "`I  ADDRESS,SIZE`, ` L ADDRESS,SIZE`, ` S ADDRESS,SIZE` or ` M ADDRESS,SIZE`, the address in hex, the size in bytes";
constexpr size_t kMostPids = 64;

}  // namespace

LackeyImport::LackeyImport(ChunkSink& sink, uint32_t process, bool skip_malformed)
    : process_(process), windows_(sink, process, kThread) {
  faults_.skip = skip_malformed;
}

void LackeyImport::access(uint64_t address, uint64_t bytes, unsigned operation) {
  windows_.add(now_ns_, pc_, address, static_cast<uint32_t>(bytes), operation);
  counts_.add(now_ns_, pc_, static_cast<uint32_t>(bytes), operation == ML_ENUM_access_operation_STORE);
}

// `==4711== text`, with --time-stamp=yes `==00:00:00:01.250 4711== text`, with -d `--4711:1:main text`: true when the line is one of
// valgrind's own.
bool LackeyImport::take_own_words(std::string_view line) {
  if (line.size() < 5 || (line[0] != '=' && line[0] != '-' && line[0] != '*') || line[1] != line[0]) return false;
  uint64_t pid = 0;
  const char* const end = line.data() + line.size();
  const char* first = line.data() + 2;
  const auto is_of_time = [](char c) { return (c >= '0' && c <= '9') || c == ':' || c == '.'; };
  if (const char* const after = std::find_if_not(first, end, is_of_time);
      after != first && after != end && *after == ' ')
    first = after + 1;
  const char* at = scan_decimal(first, end, pid);
  if (!at) return false;
  if (line[0] == '-' && at != end && *at == ':') return true;  // valgrind's debug log
  if (end - at < 2 || at[0] != line[0] || at[1] != line[0]) return false;
  if (pids_.size() < kMostPids && std::find(pids_.begin(), pids_.end(), pid) == pids_.end()) pids_.push_back(pid);
  const std::string_view text(at + 2, static_cast<size_t>(end - at - 2));
  constexpr std::string_view kCommand = " Command: ";
  if (command_.empty() && text.starts_with(kCommand)) command_ = text.substr(kCommand.size());
  return true;
}

bool LackeyImport::take(std::string_view line, uint64_t number) {
  const char* const end = line.data() + line.size();
  const bool is_instruction = line.size() > 3 && line[0] == 'I' && line[1] == ' ' && line[2] == ' ';
  const bool is_data =
      line.size() > 3 && line[0] == ' ' && (line[1] == 'L' || line[1] == 'S' || line[1] == 'M') && line[2] == ' ';
  if (is_instruction || is_data) [[likely]] {
    uint64_t address = 0, bytes = 0;
    const char* at = scan_hex(line.data() + 3, end, address);
    if (at && at < end && *at == ',' && (at = scan_decimal(at + 1, end, bytes)) == end && bytes > 0 &&
        bytes <= kMostBytes) [[likely]] {
      if (is_instruction) {
        pc_ = address;
        ++now_ns_;
        ++instructions_;
        return true;
      }
      if (instructions_ == 0) ++now_ns_;
      if (line[1] != 'S') {
        ++loads_;
        access(address, bytes, ML_ENUM_access_operation_LOAD);
      }
      if (line[1] != 'L') {
        ++stores_;
        access(address, bytes, ML_ENUM_access_operation_STORE);
      }
      return true;
    }
  }
  if (line.empty() || take_own_words(line)) return true;
  return faults_.add(number, line, kExpected);
}

std::vector<ImportedChunk> LackeyImport::code_counts() const {
  std::vector<ImportedChunk> chunks;
  counts_.append_to(chunks, process_, kThread);
  return chunks;
}

bool LackeyImport::feed(std::span<const unsigned char> block) {
  return lines_.feed(block, faults_, [this](std::string_view line, uint64_t number) { return take(line, number); });
}

bool LackeyImport::finish() {
  if (!lines_.finish([this](std::string_view line, uint64_t number) { return take(line, number); })) return false;
  windows_.end_window();
  return true;
}

}  // namespace memlens::importing
