// Which code a record meant: instruction pointers and call stacks made independent of the process, by what was mapped
// when they were recorded.
//
// Needs the address spaces alone: a capture without faults names its code without a fault classifier. Uses that records
// name beforehand (add_code_use, add_stack_use) are resolved by the replay in time order, since what an address means
// changes with mappings.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <span>
#include <unordered_map>
#include <vector>

#include "address_spaces.h"
#include "code_index.h"
#include "memlens_format.h"

namespace memlens::replay {

// A code address made independent of the process: file and offset, or, for code
// without a file (just-in-time compiled), the process and address.
struct Code {
  uint32_t path = 0;     // string id, 0 = no file
  uint32_t process = 0;  // only when path is 0
  uint64_t address = 0;  // file offset or address
  uint64_t time_ns = 0;  // first seen, for just-in-time code that changes
  uint64_t inode = 0;
  bool executable = false;  // lies in executable memory: code made at run time when it has no path
};

class CodeResolver {
 public:
  struct StackUse {
    uint32_t stack, process;
    uint64_t time_ns;
  };

  explicit CodeResolver(AddressSpaces& spaces) : spaces_(spaces) {}

  void add_stacks(std::span<const unsigned char> payload);
  // Code and stacks that records name; after all process events and mappings.
  void add_code_counts(uint32_t process, std::span<const unsigned char> payload);
  void add_page_counts(uint32_t process, std::span<const unsigned char> payload);
  void add_unseen(uint32_t process, std::span<const unsigned char> payload);
  void add_code_use(uint32_t process, uint64_t pc, uint64_t time_ns, bool anonymous = false);
  void add_stack_use(uint32_t process, uint32_t stack, uint64_t time_ns);

  // In time order, with the address spaces as they were.
  uint32_t code_of(uint32_t process, uint64_t ip, uint64_t time_ns);
  void resolve_use(const CodeIndex::Use& use);
  // `last`: also when its code is not mapped, as far as is known.
  void resolve_stack(uint32_t process, uint32_t stack, uint64_t time_ns, bool last = true);
  void retry_uses(uint32_t process);       // executable memory was mapped
  void give_up_on_uses(uint32_t process);  // their code is named as unknown
  void finish();

  // Each stack's earliest use; from the first call on.
  const std::vector<StackUse>& stack_uses();
  // What add_code_use and the counts named: instruction pointer and time → index into codes().
  const CodeIndex& code_index() const { return pc_codes_; }
  const std::vector<Code>& codes() const { return codes_; }
  // Frames of each stack as codes, innermost first.
  const std::map<uint32_t, std::vector<uint32_t>>& stacks() const { return resolved_stacks_; }

 private:
  struct CodeKey {
    uint32_t path, process;
    uint64_t address, inode;
    bool operator==(const CodeKey&) const = default;
  };
  struct CodeKeyHash {
    size_t operator()(const CodeKey& key) const {
      return (key.address * 0x9E3779B97F4A7C15u) ^ (uint64_t{key.path} << 32) ^ key.process ^ key.inode;
    }
  };
  // The last answers: most faults come from few instructions. Valid while no mapping has changed.
  struct Recent {
    uint64_t ip = 0, changes = 0;
    uint32_t process = 0, code = 0;
  };
  static constexpr unsigned kRecentBits = 10;

  void find_code_changes();
  uint32_t find_code(uint32_t number, uint64_t ip, uint64_t time_ns, bool anonymous);

  AddressSpaces& spaces_;
  std::unordered_map<uint32_t, std::vector<uint64_t>> raw_stacks_;
  std::unordered_map<uint32_t, StackUse> stack_use_of_;  // by stack: its earliest use
  std::vector<StackUse> stack_uses_;
  CodeIndex pc_codes_;
  bool code_changes_known_ = false;
  std::map<uint32_t, std::vector<CodeIndex::Use>> unmapped_uses_;  // until their mapping is known
  std::vector<Code> codes_;
  std::unordered_map<CodeKey, uint32_t, CodeKeyHash> code_index_;
  std::map<uint32_t, std::vector<uint32_t>> resolved_stacks_;
  std::array<Recent, 1u << kRecentBits> recent_{};
};

}  // namespace memlens::replay
