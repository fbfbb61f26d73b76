#include "code_resolver.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "record_walk.h"

namespace memlens::replay {

// ---- input -------------------------------------------------------------------------------

void CodeResolver::add_stacks(std::span<const unsigned char> payload) {
  each_variable_record<ml_stack>(payload, [&](const ml_stack& record, std::span<const unsigned char> tail) {
    std::vector<uint64_t> ips(tail.size() / 8);
    if (!ips.empty()) memcpy(ips.data(), tail.data(), ips.size() * 8);
    raw_stacks_[record.id] = std::move(ips);
  });
}

void CodeResolver::add_stack_use(uint32_t process, uint32_t stack, uint64_t time_ns) {
  if (stack == 0) return;
  const auto [at, is_new] = stack_use_of_.try_emplace(stack, StackUse{stack, process, time_ns});
  if (!is_new && time_ns < at->second.time_ns) at->second.time_ns = time_ns;
}

void CodeResolver::add_code_counts(uint32_t process, std::span<const unsigned char> payload) {
  each_record<ml_code_count>(payload, [&](const auto& record) {
    add_code_use(process, record.pc, record.time_ns, (record.flags & ML_ENUM_code_flags_ANONYMOUS) != 0);
  });
}

void CodeResolver::add_page_counts(uint32_t process, std::span<const unsigned char> payload) {
  each_record<ml_page_count>(payload, [&](const auto& record) {
    add_code_use(process, record.pc, record.time_ns);
    add_stack_use(process, record.stack, record.time_ns);
  });
}

void CodeResolver::add_unseen(uint32_t process, std::span<const unsigned char> payload) {
  each_record<ml_unseen>(payload, [&](const auto& record) {
    if (record.pc != 0) add_code_use(process, record.pc, record.time_ns);
  });
}

void CodeResolver::add_code_use(uint32_t process, uint64_t pc, uint64_t time_ns, bool anonymous) {
  if (!code_changes_known_) find_code_changes();
  pc_codes_.add_use(process, pc, time_ns, anonymous);
}

// What may change the meaning of a code address: forks, execs, executable mappings, and others over them.
void CodeResolver::find_code_changes() {
  code_changes_known_ = true;
  std::vector<std::pair<uint64_t, uint64_t>> executable;
  for (const auto& [number, record] : spaces_.mappings())
    if ((record.protection & 4) != 0) executable.emplace_back(record.address, record.address + record.bytes);
  std::sort(executable.begin(), executable.end());
  std::vector<std::pair<uint64_t, uint64_t>> merged;
  for (const auto& range : executable) {
    if (!merged.empty() && range.first <= merged.back().second)
      merged.back().second = std::max(merged.back().second, range.second);
    else merged.push_back(range);
  }
  for (const auto& [number, record] : spaces_.mappings()) {
    const auto after =
        std::upper_bound(merged.begin(), merged.end(), std::pair{record.address + record.bytes, uint64_t{0}});
    if (after != merged.begin() && std::prev(after)->second > record.address)
      pc_codes_.add_change(number, record.time_ns);
  }
  for (const auto& [number, event] : spaces_.process_events())
    if (event.operation == ML_ENUM_process_operation_FORK || event.operation == ML_ENUM_process_operation_EXEC)
      pc_codes_.add_change(number, event.time_ns);
  pc_codes_.sort_changes();
}

// ---- replay ------------------------------------------------------------------------------

const std::vector<CodeResolver::StackUse>& CodeResolver::stack_uses() {
  if (stack_uses_.empty()) {
    stack_uses_.reserve(stack_use_of_.size());
    for (const auto& [stack, use] : stack_use_of_) stack_uses_.push_back(use);
  }
  return stack_uses_;
}

void CodeResolver::resolve_use(const CodeIndex::Use& use) {
  // Mappings of an emulated program are found some moments after its code first ran.
  if (spaces_.process(use.process).space.find(use.pc) == nullptr && !use.anonymous)
    unmapped_uses_[use.process].push_back(use);
  else pc_codes_.resolve(use, find_code(use.process, use.pc, use.time_ns, use.anonymous));
}

void CodeResolver::retry_uses(uint32_t number) {
  const auto found = unmapped_uses_.find(number);
  if (found == unmapped_uses_.end()) return;
  const std::vector<CodeIndex::Use> waiting = std::move(found->second);
  unmapped_uses_.erase(found);
  for (const CodeIndex::Use& use : waiting) resolve_use(use);
}

void CodeResolver::give_up_on_uses(uint32_t number) {
  const auto found = unmapped_uses_.find(number);
  if (found == unmapped_uses_.end()) return;
  for (const CodeIndex::Use& use : found->second) pc_codes_.resolve(use, find_code(number, use.pc, use.time_ns, false));
  unmapped_uses_.erase(found);
}

void CodeResolver::finish() {
  while (!unmapped_uses_.empty()) give_up_on_uses(unmapped_uses_.begin()->first);
  pc_codes_.finish();
  for (const StackUse& use : stack_uses()) resolve_stack(use.process, use.stack, use.time_ns);
}

uint32_t CodeResolver::code_of(uint32_t process, uint64_t ip, uint64_t time_ns) {
  Recent& recent = recent_[((ip ^ uint64_t{process} << 40) * 0x9E3779B97F4A7C15u) >> (64 - kRecentBits)];
  if (recent.ip != ip || recent.process != process || recent.changes != spaces_.changes())
    recent = {ip, spaces_.changes(), process, find_code(process, ip, time_ns, false)};
  return recent.code;
}

uint32_t CodeResolver::find_code(uint32_t number, uint64_t ip, uint64_t time_ns, bool anonymous) {
  Code code{.process = number, .address = ip, .time_ns = time_ns};
  const Area* area = spaces_.process(number).space.find(ip);
  const AreaKind kind = spaces_.kind_of(area);
  if (kind == AreaKind::file || kind == AreaKind::memlens) {
    code.path = area->path;
    code.process = 0;
    code.inode = area->inode;
    code.address = ip - area->begin + area->file_offset;
  } else if (kind == AreaKind::special) {
    code.path = area->path;  // [vdso]: offset in it
    code.process = 0;
    code.address = ip - area->begin;
  }
  code.executable = anonymous || (area != nullptr && (area->protection & 4) != 0);
  const CodeKey key{code.path, code.process, code.address, code.inode};
  const auto [at, is_new] = code_index_.try_emplace(key, static_cast<uint32_t>(codes_.size()));
  if (is_new) codes_.push_back(code);
  return at->second;
}

void CodeResolver::resolve_stack(uint32_t number, uint32_t stack, uint64_t time_ns, bool last) {
  if (resolved_stacks_.count(stack) != 0) return;
  const auto raw = raw_stacks_.find(stack);
  if (raw == raw_stacks_.end()) return;
  const AddressSpace& space = spaces_.process(number).space;
  // Without perf the mappings are looked up some moments after the stack was taken.
  if (!last)
    for (uint64_t ip : raw->second)
      if (space.find(ip) == nullptr) return;
  std::vector<uint32_t> frames;
  frames.reserve(raw->second.size());
  for (size_t depth = 0; depth < raw->second.size(); ++depth) {
    // Above the innermost frame these are return addresses: one byte back is inside the call.
    const uint64_t ip = raw->second[depth] - (depth > 0 ? 1 : 0);
    const Area* area = space.find(ip);
    // Code without frame pointers sends the kernel's walk astray: cut it where it leaves the code.
    if (depth > 0 && (area == nullptr || !(area->protection & 4))) break;
    frames.push_back(find_code(number, ip, time_ns, false));
  }
  resolved_stacks_.emplace(stack, std::move(frames));
}

}  // namespace memlens::replay
