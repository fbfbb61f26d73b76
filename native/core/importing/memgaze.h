// Reads MemGaze's traces: sampled sequences of loads, one line each,
//
//   0x3003a5 0x7f60c1206a34 2 14710875.296471960 90 [0]
//   instruction, address, CPU, seconds, number of the sample[, number of the module]
//
// and, before them, an optional list of modules: a line `DSO: …`, lines `PATH NUMBER`, a line `TRACE: …`.
//
// The static classes (.binanlys) give the number of constant loads that each recorded one implies. A change of sample or CPU
// starts a new window. The trace names CPUs and no threads: a CPU is a thread here. Widths are not recorded: 0.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "line_reader.h"
#include "window_builder.h"

namespace memlens::importing {

class MemgazeImport {
 public:
  // `period`: executed loads from one sample to the next, 0 = not known: then a window stands for itself.
  MemgazeImport(ChunkSink& sink, uint32_t process, uint64_t period, bool skip_malformed);

  // What is known of an instruction: constant loads it implies, whether it stores, whether its index has a scale.
  void set_site(uint64_t pc, uint32_t implied_constants, bool is_store, bool is_scaled) {
    sites_[pc] = {implied_constants, is_store, is_scaled};
  }

  bool feed(std::span<const unsigned char> block);
  bool finish();

  const LineReader& lines() const { return lines_; }
  const LineFaults& faults() const { return faults_; }
  uint64_t samples() const { return samples_; }
  uint64_t accesses() const { return accesses_; }
  uint64_t implied_constants() const { return implied_; }
  uint64_t without_class() const { return without_class_; }
  uint64_t scaled() const { return scaled_; }  // accesses by instructions whose index has a scale
  uint64_t backwards() const { return backwards_; }
  std::vector<uint16_t> cpus() const;
  const std::vector<std::pair<std::string, uint64_t>>& modules() const { return modules_; }
  // Accesses of more than one module: instruction addresses of two modules may be the same number.
  bool mixes_modules() const { return mixes_modules_; }

 private:
  struct Site {
    uint32_t implied_constants;
    bool is_store;
    bool is_scaled;
  };
  struct Line {
    uint64_t pc, address, cpu, time_ns, sample, module;
  };
  bool take(std::string_view line, uint64_t number);
  bool take_module(std::string_view line, uint64_t number);
  static bool scan(std::string_view text, Line& line);
  void add(const Line& line);
  void end_sample(uint64_t next_sample);
  uint64_t most_samples() const { return UINT64_MAX / 4 / period_; }  // whose places can be told

  ChunkSink* sink_;
  uint32_t process_;
  uint64_t period_;
  LineReader lines_;
  LineFaults faults_;
  std::unordered_map<uint64_t, Site> sites_;
  std::unordered_map<uint64_t, ThreadWindows> cpus_;
  std::vector<std::pair<std::string, uint64_t>> modules_;
  ThreadWindows* open_ = nullptr;
  uint64_t cpu_ = 0, sample_ = 0, last_ns_ = 0;
  uint64_t samples_ = 0, accesses_ = 0, implied_ = 0, without_class_ = 0, scaled_ = 0, backwards_ = 0;
  uint64_t module_ = 0;
  bool in_modules_ = false, mixes_modules_ = false;
};

}  // namespace memlens::importing
