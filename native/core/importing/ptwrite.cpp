#include "ptwrite.h"

#include <algorithm>

namespace memlens::importing {

uint64_t PtClock::ns(uint64_t tsc) const {
  if (time_mult == 0) return tsc;
  const unsigned shift = std::min<unsigned>(time_shift, 63);
  const uint64_t whole = tsc >> shift, part = tsc & ((uint64_t{1} << shift) - 1);
  return time_zero + whole * time_mult + ((part * time_mult) >> shift);
}

void PtWriteImport::begin_stream(uint32_t cpu, uint32_t process, uint32_t thread) {
  cpu_ = cpu;
  process_ = process;
  thread_id_ = thread;
  thread_ = nullptr;
  switches_.clear();
  next_switch_ = 0;
  rest_.clear();
  in_step_ = has_time_ = has_tma_ = false;
  block_ = {};
  pending_.reset();
  open_loss_.reset();
  tsc_ = now_ns_ = 0;
}

bool PtWriteImport::feed(std::span<const unsigned char> block) {
  rest_.insert(rest_.end(), block.begin(), block.end());
  size_t at = 0;
  while (at < rest_.size()) {
    const std::span<const unsigned char> left(rest_.data() + at, rest_.size() - at);
    if (!in_step_) {
      const size_t psb = find_psb(left);
      if (psb == left.size()) {
        // A PSB may begin in the last bytes.
        const size_t keep = std::min(left.size(), kPsbBytes - 1);
        counts_.skipped_bytes += left.size() - keep;
        at += left.size() - keep;
        break;
      }
      counts_.skipped_bytes += psb;
      at += psb;
      in_step_ = true;
      block_ = {};
      continue;
    }
    const PtPacket packet = next_packet(left, block_);
    if (packet.kind == PtKind::kShort) break;
    if (packet.kind == PtKind::kUnknown) {
      ++counts_.damaged;
      lose();
      in_step_ = false;
      ++counts_.skipped_bytes;
      ++at;
      continue;
    }
    ++counts_.packets;
    take(packet);
    at += packet.bytes;
  }
  rest_.erase(rest_.begin(), rest_.begin() + static_cast<ptrdiff_t>(at));
  return true;
}

void PtWriteImport::take(const PtPacket& packet) {
  switch (packet.kind) {
    case PtKind::kPsb:
      flush_pending();
      last_ip_.reset();
      break;
    case PtKind::kTsc: take_time(packet.payload); break;
    case PtKind::kTma:
      has_tma_ = has_time_ && clock_.ctc_ticks != 0;
      tma_tsc_ = tsc_ - packet.fast_counter;
      ctc_ = 0;
      // A kMtc has eight bits of the crystal clock, from mtc_shift on.
      mtc_ = packet.payload >> clock_.mtc_shift & 0xff;
      if (clock_.mtc_shift < 16) ctc_ = packet.payload & ((uint64_t{1} << clock_.mtc_shift) - 1);
      ctc_ = 0 - ctc_;  // ticks since the last kMtc would have come
      break;
    case PtKind::kMtc: take_mtc(packet.payload); break;
    case PtKind::kPtWrite:
      flush_pending();
      if (packet.has_ip) pending_ = packet.payload;
      else write(packet.payload, 0);
      break;
    case PtKind::kFup: {
      const bool has_address = last_ip_.update(packet);
      if (pending_) {
        const uint64_t address = *pending_;
        pending_.reset();
        write(address, has_address ? last_ip_.ip() : 0);
      }
      break;
    }
    case PtKind::kTip:
    case PtKind::kTipEnable: last_ip_.update(packet); break;
    case PtKind::kTipDisable:
    case PtKind::kTraceStop:
      if (packet.kind == PtKind::kTipDisable) last_ip_.update(packet);
      flush_pending();
      ++counts_.switched_off;
      gap();
      break;
    case PtKind::kOverflow:
      ++counts_.overflows;
      lose();
      break;
    default: break;
  }
}

void PtWriteImport::take_time(uint64_t tsc) {
  has_tma_ = false;
  // A time stamp has 56 bits of the counter.
  tsc_ = tsc;
  const uint64_t ns = clock_.ns(tsc);
  if (!has_time_ && open_loss_) losses_[*open_loss_].begin_ns = ns;  // nothing is known of before
  has_time_ = true;
  now_ns_ = std::max(now_ns_, ns);
  if (open_loss_) losses_[*open_loss_].end_ns = now_ns_;
  open_loss_.reset();
  follow_switches();
}

void PtWriteImport::take_mtc(uint64_t count) {
  if (!has_tma_) return;
  ctc_ += ((count - mtc_) & 0xff) << clock_.mtc_shift;
  mtc_ = count;
  if (static_cast<int64_t>(ctc_) < 0) return;
  const auto cycles = static_cast<unsigned __int128>(ctc_) * clock_.tsc_ticks / clock_.ctc_ticks;
  tsc_ = tma_tsc_ + static_cast<uint64_t>(cycles);
  now_ns_ = std::max(now_ns_, clock_.ns(tsc_));
  if (open_loss_) losses_[*open_loss_].end_ns = now_ns_;
  open_loss_.reset();
  follow_switches();
}

void PtWriteImport::follow_switches() {
  bool has_changed = false;
  while (next_switch_ < switches_.size() && switches_[next_switch_].time_ns <= now_ns_) {
    process_ = switches_[next_switch_].process;
    thread_id_ = switches_[next_switch_].thread;
    ++next_switch_;
    has_changed = true;
  }
  if (!has_changed) return;
  flush_pending();
  if (thread_ != nullptr) {
    if (threads_.size() > kOpenThreads) thread_->windows.release();
    else thread_->windows.end_window();
  }
  thread_ = nullptr;
}

void PtWriteImport::write(uint64_t address, uint64_t pc) {
  ++counts_.writes;
  counts_.without_ip += pc == 0;
  counts_.without_time += !has_time_;
  if (process_ == 0) {
    ++counts_.unknown_thread;
    return;
  }
  if (thread_ == nullptr) {
    const auto key = std::make_pair(process_, thread_id_);
    auto found = threads_.find(key);
    if (found == threads_.end()) found = threads_.try_emplace(key, *sink_, process_, thread_id_).first;
    thread_ = &found->second;
    if (threads_of_stream_.empty() || threads_of_stream_.back() != thread_) threads_of_stream_.push_back(thread_);
    thread_->windows.set_cpu(static_cast<uint16_t>(cpu_ == UINT32_MAX ? 0 : cpu_));
  }
  if (clock_.time_mult == 0 && !has_time_) ++now_ns_;
  if (thread_->accesses++ == 0) thread_->first_ns = now_ns_;
  thread_->last_ns = now_ns_;
  thread_->windows.add(now_ns_, pc, address, 0, ML_ENUM_access_operation_LOAD);
}

void PtWriteImport::flush_pending() {
  if (!pending_) return;
  const uint64_t address = *pending_;
  pending_.reset();
  write(address, 0);
}

void PtWriteImport::gap() {
  if (thread_ != nullptr) thread_->windows.gap();
}

void PtWriteImport::lose() {
  flush_pending();
  gap();
  if (open_loss_) return;  // no time has passed since the last one: it is the same hole
  open_loss_ = losses_.size();
  losses_.push_back({now_ns_, now_ns_, cpu_});
}

void PtWriteImport::break_stream(bool lost) {
  ++counts_.breaks;
  counts_.left_bytes += rest_.size();
  rest_.clear();
  if (lost) {
    lose();
  } else {
    flush_pending();
    gap();
  }
  in_step_ = false;
}

void PtWriteImport::end_stream() {
  flush_pending();
  counts_.left_bytes += rest_.size();
  rest_.clear();
  open_loss_.reset();
  for (State* state : threads_of_stream_) state->windows.release();
  threads_of_stream_.clear();
  thread_ = nullptr;
}

std::vector<PtWriteImport::Loss> PtWriteImport::take_losses() {
  std::vector<Loss> known = std::exchange(losses_, {});
  if (open_loss_) {  // it is the last
    losses_.push_back(known.back());
    known.pop_back();
    open_loss_ = 0;
  }
  return known;
}

std::vector<PtWriteImport::Thread> PtWriteImport::threads() const {
  std::vector<Thread> found;
  for (const auto& [key, state] : threads_)
    found.push_back({key.first, key.second, state.first_ns, state.last_ns, state.accesses});
  return found;
}

}  // namespace memlens::importing
