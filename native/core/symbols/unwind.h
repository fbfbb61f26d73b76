// SPDX-License-Identifier: Apache-2.0
// Call stacks from perf's user-stack dumps: registers and a copy of the top of the stack, unwound
// with the call-frame information of the process's files (libdwfl). Works on code without frame
// pointers. Reads files, never another process.
// Threading: one thread at a time per object.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace memlens::symbols {

enum class Architecture : uint8_t { x86_64, aarch64 };

struct ExecutableMapping {
  uint64_t start, end;  // end exclusive
  uint64_t file_offset;
  std::string path;
  bool operator==(const ExecutableMapping&) const = default;
};

// As perf delivers them: one value for each set bit of `mask`, lowest register number first.
struct UserRegisters {
  uint64_t mask = 0;
  std::span<const uint64_t> values;
};

struct StackDump {
  uint64_t base_sp = 0;  // address of bytes[0]
  std::span<const uint8_t> bytes;
};

enum class UnwindStop : uint8_t {
  outermost,  // reached the first function, or code without unwind information above it
  depth_limit,
  stack_exhausted,  // the dump is too short: record more bytes of stack
  no_registers,     // pc or sp is missing from the mask
  no_module,        // the pc lies in no readable file
};

struct Unwound {
  // Innermost first. The first is the pc itself; the others are return addresses: look up
  // address - 1 to name the call.
  std::vector<uint64_t> addresses;
  UnwindStop stop = UnwindStop::outermost;
};

inline constexpr size_t kMaxUnwindDepth = 128;

// The mappings of one process at one time.
class ProcessUnwinder {
 public:
  ProcessUnwinder(Architecture architecture, std::span<const ExecutableMapping> mappings,
                  const std::string& sysroot = {});
  ~ProcessUnwinder();
  ProcessUnwinder(const ProcessUnwinder&) = delete;
  ProcessUnwinder& operator=(const ProcessUnwinder&) = delete;

  // Always gives at least the pc when that register is there.
  Unwound unwind(const UserRegisters& registers, const StackDump& stack);
  size_t n_unreadable_files() const;  // mappings whose file is gone, not ELF or not a file

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Keeps the most recently used unwinders: opening a process's files costs far more than one stack.
class UnwinderCache {
 public:
  explicit UnwinderCache(Architecture architecture, std::string sysroot = {}, size_t capacity = 16)
      : architecture_(architecture), sysroot_(std::move(sysroot)), capacity_(capacity) {}
  // Valid until `capacity` other mapping sets have been asked for. Compares the mappings one by
  // one: ask when a process's mappings have changed, not for every sample.
  ProcessUnwinder& get(std::span<const ExecutableMapping> mappings);

 private:
  struct Slot {
    std::vector<ExecutableMapping> mappings;
    std::unique_ptr<ProcessUnwinder> unwinder;
  };
  Architecture architecture_;
  std::string sysroot_;
  size_t capacity_;
  std::list<Slot> slots_;  // most recently used first
};

}  // namespace memlens::symbols
