#include "memgaze.h"

#include <algorithm>
#include <limits>

#include "number_scan.h"

namespace memlens::importing {
namespace {

constexpr const char* kExpected =
    "`INSTRUCTION ADDRESS CPU SECONDS SAMPLE [MODULE]`, the first two in hex, seconds with a point, the others decimal";
constexpr const char* kExpectedModule = "`PATH NUMBER`, as between the lines `DSO:` and `TRACE:`";
constexpr uint64_t kMostCpus = 1 << 16;

// Exactly one space, as the tools of MemGaze split lines.
const char* space(const char* at, const char* end) { return at && at < end && *at == ' ' ? at + 1 : nullptr; }

// 14710875.296471960 as nanoseconds; more than 9 digits behind the point are cut.
const char* scan_seconds(const char* at, const char* end, uint64_t& ns) {
  uint64_t seconds = 0, part = 0;
  at = scan_decimal(at, end, seconds);
  if (!at || seconds > 18'000'000'000u) return nullptr;
  if (at < end && *at == '.') {
    const char* const digits = ++at;
    for (; at < end && *at >= '0' && *at <= '9'; ++at)
      if (at - digits < 9) part = part * 10 + static_cast<uint64_t>(*at - '0');
    if (at == digits) return nullptr;
    for (auto count = at - digits; count < 9; ++count) part *= 10;
  }
  ns = seconds * 1'000'000'000u + part;
  return at;
}

}  // namespace

MemgazeImport::MemgazeImport(ChunkSink& sink, uint32_t process, uint64_t period, bool skip_malformed)
    : sink_(&sink), process_(process), period_(period) {
  faults_.skip = skip_malformed;
}

bool MemgazeImport::scan(std::string_view text, Line& line) {
  const char* const end = text.data() + text.size();
  const char* at = scan_prefixed_hex(text.data(), end, line.pc);
  if ((at = space(at, end))) at = scan_prefixed_hex(at, end, line.address);
  if ((at = space(at, end))) at = scan_decimal(at, end, line.cpu);
  if ((at = space(at, end))) at = scan_seconds(at, end, line.time_ns);
  line.sample = line.module = 0;
  if (at && at < end && (at = space(at, end))) at = scan_decimal(at, end, line.sample);
  if (at && at < end && (at = space(at, end))) at = scan_decimal(at, end, line.module);
  return at == end && line.cpu < kMostCpus;
}

bool MemgazeImport::take_module(std::string_view line, uint64_t number) {
  const size_t at = line.rfind(' ');
  uint64_t module = 0;
  const char* const end = line.data() + line.size();
  if (at == std::string_view::npos || at == 0 || scan_decimal(line.data() + at + 1, end, module) != end)
    return faults_.add(number, line, kExpectedModule);
  modules_.emplace_back(std::string(line.substr(0, at)), module);
  return true;
}

bool MemgazeImport::take(std::string_view text, uint64_t number) {
  if (text.empty()) return true;
  if (text.starts_with("DSO:") || text.starts_with("TRACE:")) {  // what follows explains the columns
    in_modules_ = text[0] == 'D';
    return true;
  }
  if (in_modules_) return take_module(text, number);
  Line line{};
  if (!scan(text, line)) return faults_.add(number, text, kExpected);
  mixes_modules_ |= accesses_ != 0 && line.module != module_;
  module_ = line.module;
  add(line);
  return true;
}

void MemgazeImport::add(const Line& line) {
  if (open_ == nullptr || line.cpu != cpu_ || line.sample != sample_) {
    if (open_ != nullptr) {
      end_sample(line.cpu == cpu_ ? line.sample : sample_);
      if (line.cpu != cpu_) open_->release();
    }
    auto [found, is_new] = cpus_.try_emplace(line.cpu, *sink_, process_, static_cast<uint32_t>(line.cpu + 1));
    open_ = &found->second;
    if (is_new) open_->set_cpu(static_cast<uint16_t>(line.cpu));
    cpu_ = line.cpu;
    sample_ = line.sample;
    ++samples_;
    // Samples keep the numbers of the trace, also the first one and those behind another CPU's.
    if (period_ != 0 && line.sample <= most_samples()) open_->skip_to(line.sample * period_);
  }
  // A window's accesses are spread over its time: their order is what counts where clocks step back.
  if (line.time_ns < last_ns_) ++backwards_;
  last_ns_ = line.time_ns;
  const auto site = sites_.find(line.pc);
  const bool is_known = site != sites_.end();
  if (!is_known) ++without_class_;
  open_->add(line.time_ns, line.pc, line.address, 0,
             is_known && site->second.is_store ? ML_ENUM_access_operation_STORE : ML_ENUM_access_operation_LOAD);
  ++accesses_;
  if (is_known) {
    scaled_ += site->second.is_scaled;
    open_->imply(site->second.implied_constants);
    implied_ += site->second.implied_constants;
  }
}

// Samples that left no line (code without instrumentation ran) were executed all the same: the next window's place
// tells so. What this window stands for is one period.
void MemgazeImport::end_sample(uint64_t next_sample) {
  if (period_ == 0) {
    open_->gap();
    return;
  }
  // Another CPU's turn: this one may go on with the same sample.
  const uint64_t distance = next_sample > sample_ ? next_sample - sample_ : next_sample == sample_ ? 0 : 1;
  open_->end_sample(period_, std::min(distance, most_samples()) * period_);
}

bool MemgazeImport::feed(std::span<const unsigned char> block) {
  return lines_.feed(block, faults_, [this](std::string_view line, uint64_t number) { return take(line, number); });
}

bool MemgazeImport::finish() {
  if (!lines_.finish([this](std::string_view line, uint64_t number) { return take(line, number); })) return false;
  if (open_ != nullptr) end_sample(sample_ + 1);
  return true;
}

std::vector<uint16_t> MemgazeImport::cpus() const {
  std::vector<uint16_t> found;
  for (const auto& [cpu, windows] : cpus_) found.push_back(static_cast<uint16_t>(cpu));
  std::sort(found.begin(), found.end());
  return found;
}

}  // namespace memlens::importing
