#include "drmemtrace.h"

#include <algorithm>
#include <cstring>

namespace memlens::importing {
namespace {

enum Type : uint16_t {
  kRead = 0,
  kWrite = 1,
  kPrefetchFirst = 2,
  kPrefetchLast = 9,
  kInstruction = 10,
  kReturn = 16,
  kBundle = 17,
  kInstructionFlush = 18,
  kDataFlushEnd = 21,
  kThread = 22,
  kThreadExit = 23,
  kPid = 24,
  kHeader = 25,
  kFooter = 26,
  kHardwarePrefetch = 27,
  kMarker = 28,
  kNoFetch = 29,
  kSysenter = 31,
  kTypedPrefetchFirst = 32,
  kTypedPrefetchLast = 46,
  kEncoding = 47,
  kTakenJump = 48,
  kUntakenJump = 49,
};
enum Marker : uint16_t { kTimestamp = 2, kCpu = 3, kFileType = 9, kVersion = 12, kWindowId = 14 };

constexpr uint64_t kMicrosecondsTo1970 = 11'644'473'600'000'000u;  // from 1601
constexpr uint64_t kNoCpu = ~uint64_t{0};

bool is_instruction(uint16_t type) {
  return (type >= kInstruction && type <= kReturn) || (type >= kNoFetch && type <= kSysenter) || type == kTakenJump ||
         type == kUntakenJump;
}

bool is_prefetch(uint16_t type) {
  return (type >= kPrefetchFirst && type <= kPrefetchLast) || type == kHardwarePrefetch ||
         (type >= kTypedPrefetchFirst && type <= kTypedPrefetchLast);
}

}  // namespace

void DrmemtraceImport::begin_file() {
  rest_.clear();
  entries_ = 0;
  left_bytes_ = 0;
  has_footer_ = false;
  thread_ = nullptr;
  pid_ = tid_ = pc_ = next_pc_ = 0;
}

bool DrmemtraceImport::refuse(std::string text) {
  fault_ = Fault{entries_ * kEntryBytes, std::move(text)};
  return false;
}

bool DrmemtraceImport::feed(std::span<const unsigned char> block) {
  const unsigned char* at = block.data();
  const unsigned char* const end = at + block.size();
  const auto take_one = [this](const unsigned char* from) {
    Entry entry{};
    memcpy(&entry.type, from, 2);
    memcpy(&entry.size, from + 2, 2);
    memcpy(&entry.address, from + 4, 8);
    if (!take(entry)) return false;
    ++entries_;
    return true;
  };
  if (!rest_.empty()) {
    const size_t more = std::min<size_t>(kEntryBytes - rest_.size(), block.size());
    rest_.insert(rest_.end(), at, at + more);
    at += more;
    if (rest_.size() < kEntryBytes) return true;
    const bool is_read = take_one(rest_.data());
    rest_.clear();
    if (!is_read) return false;
  }
  for (; static_cast<size_t>(end - at) >= kEntryBytes; at += kEntryBytes)
    if (!take_one(at)) return false;
  rest_.assign(at, end);
  return true;
}

bool DrmemtraceImport::take(const Entry& entry) {
  if (entries_ == 0) {
    if (entry.type != kHeader)
      return refuse("a drmemtrace file begins with a header entry (type 25); this one begins with type " +
                    std::to_string(entry.type));
    if (entry.address >> 32 != 0 && (entry.address & 0xffffffff) <= kNewestVersion)
      return refuse("its entries have 8 bytes: a trace of a 32-bit program");
    if (entry.address < kOldestVersion || entry.address > kNewestVersion)
      return refuse("its format version is " + std::to_string(entry.address) + "; versions " +
                    std::to_string(kOldestVersion) + " to " + std::to_string(kNewestVersion) + " can be read");
    version_ = std::max(version_, entry.address);
    return true;
  }
  has_footer_ = false;
  if (entry.type == kRead || entry.type == kWrite) return take_access(entry);
  if (is_instruction(entry.type)) {
    // Without a length it only tells where the next accesses come from.
    pc_ = entry.address;
    next_pc_ = pc_ + entry.size;
    if (entry.size != 0 && entry.type != kNoFetch) {
      ++instructions_;
      if (thread_ != nullptr) ++thread_->now_ns;
    }
    return true;
  }
  switch (entry.type) {
    case kBundle: take_bundle(entry); return true;
    case kThread:
      tid_ = entry.address;
      pid_ = pid_of_thread_.contains(tid_) ? pid_of_thread_[tid_] : 0;
      leave_thread();
      return true;
    case kPid:
      pid_ = pid_of_thread_[tid_] = entry.address;
      leave_thread();
      return true;
    case kMarker: return take_marker(entry);
    case kFooter: has_footer_ = true; return true;
    case kThreadExit:
    case kEncoding:
    case kHeader: return true;
    default: break;
  }
  if (is_prefetch(entry.type)) {
    ++prefetches_;
    return true;
  }
  if (entry.type >= kInstructionFlush && entry.type <= kDataFlushEnd) {
    flushes_ += entry.type != 19 && entry.type != kDataFlushEnd;
    return true;
  }
  return refuse("an entry of type " + std::to_string(entry.type) + " is none of a drmemtrace (types 0 to 49)");
}

// The state of the current thread; false when no thread was named.
bool DrmemtraceImport::use_thread() {
  if (thread_ != nullptr) return true;
  if (tid_ == 0 && pid_ == 0) return false;
  const auto [process, is_new] = processes_.try_emplace(pid_, next_process_);
  if (is_new) ++next_process_;
  const auto key = std::make_pair(pid_, tid_);
  auto found = threads_.find(key);
  if (found == threads_.end()) {
    found = threads_.try_emplace(key, *sink_, process->second, static_cast<uint32_t>(tid_)).first;
    found->second.process = process->second;
  }
  thread_ = &found->second;
  return true;
}

// Few threads keep their windows open: a core's file changes them thousands of times.
void DrmemtraceImport::leave_thread() {
  if (thread_ != nullptr && threads_.size() > kOpenThreads) thread_->windows.release();
  thread_ = nullptr;
}

bool DrmemtraceImport::take_access(const Entry& entry) {
  if (!use_thread()) return refuse("an access stands before the entry that names its thread");
  if (thread_->accesses++ == 0) thread_->first_ns = thread_->now_ns;
  const bool is_load = entry.type == kRead;
  ++(is_load ? loads_ : stores_);
  thread_->windows.add(thread_->now_ns, pc_, entry.address, entry.size,
                       is_load ? ML_ENUM_access_operation_LOAD : ML_ENUM_access_operation_STORE);
  thread_->counts.add(thread_->now_ns, pc_, entry.size, !is_load);
  return true;
}

bool DrmemtraceImport::take_marker(const Entry& entry) {
  if (entry.size == kFileType) file_type_ |= entry.address;
  if (entry.size == kVersion) version_ = std::max(version_, entry.address);
  if (!use_thread()) return true;
  if (entry.size == kTimestamp && entry.address > kMicrosecondsTo1970) {
    const uint64_t ns = (entry.address - kMicrosecondsTo1970) * 1000;
    thread_->now_ns = std::max(thread_->now_ns, ns);
  } else if (entry.size == kCpu && entry.address != kNoCpu) {
    thread_->windows.set_cpu(static_cast<uint16_t>(entry.address & 0xfff));  // above are socket and node
  } else if (entry.size == kWindowId) {
    if (thread_->has_window && thread_->window_id != entry.address) {
      thread_->windows.gap();  // tracing was off in between
      ++gaps_;
    }
    thread_->has_window = true;
    thread_->window_id = entry.address;
  }
  return true;
}

// Lengths of instructions that follow each other; accesses after it belong to the last.
void DrmemtraceImport::take_bundle(const Entry& entry) {
  for (unsigned i = 0; i < std::min<unsigned>(entry.size, 8); ++i) {
    pc_ = next_pc_;
    next_pc_ = pc_ + (entry.address >> (8 * i) & 0xff);
    ++instructions_;
    if (thread_ != nullptr) ++thread_->now_ns;
  }
}

bool DrmemtraceImport::end_file() {
  left_bytes_ = rest_.size();
  rest_.clear();
  // A file is a thread as a rule: thousands of them would keep a buffer each.
  for (auto& [key, state] : threads_) state.windows.release();
  return entries_ != 0;
}

std::vector<ImportedChunk> DrmemtraceImport::code_counts() const {
  std::vector<ImportedChunk> chunks;
  if (is_filtered() || gaps_ != 0) return chunks;
  for (const auto& [key, state] : threads_)
    state.counts.append_to(chunks, state.process, static_cast<uint32_t>(key.second));
  return chunks;
}

std::vector<DrmemtraceImport::Thread> DrmemtraceImport::threads() const {
  std::vector<Thread> found;
  for (const auto& [key, state] : threads_)
    found.push_back({state.process, key.first, key.second, state.first_ns, state.now_ns, state.accesses});
  return found;
}

}  // namespace memlens::importing
