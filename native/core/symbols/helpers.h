// SPDX-License-Identifier: Apache-2.0
// Several threads for work that has many parts.
#pragma once

#include <algorithm>
#include <cstddef>
#include <system_error>
#include <thread>
#include <vector>

namespace memlens::symbols {

// Runs `work` on this thread and on others, as many as `n_parts` are worth; it takes part after part until none is left.
template <typename Work>
void work_together(const Work& work, size_t n_parts) {
  const size_t n_threads = std::min<size_t>({n_parts / 2, std::thread::hardware_concurrency(), 8});
  std::vector<std::thread> helpers;
  try {
    for (size_t i = 1; i < n_threads; ++i) helpers.emplace_back(work);
  } catch (const std::system_error&) {
    // No more threads to be had: this one does the rest.
  }
  work();
  for (std::thread& helper : helpers) helper.join();
}

}  // namespace memlens::symbols
