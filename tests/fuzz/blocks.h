// Importers get a file in blocks of any size: what they find must not depend on how it is cut.
#pragma once

#include <string>

#include "importing/window_builder.h"
#include "input.h"
#include "trace/window_walk.h"

namespace fuzz {

// `most` 0: in one block. Blocks are exactly as long as they are said to be.
template <typename Feed>
bool feed_exactly(Feed&& feed, View bytes, size_t most) {
  uint32_t state = static_cast<uint32_t>(most);
  for (size_t at = 0; at < bytes.size();) {
    const size_t size = std::min(bytes.size() - at,
                                 most == 0 ? bytes.size() : 1 + (state = state * 1664525 + 1013904223) / 65536 % most);
    const Exact block(bytes.subspan(at, size));
    if (!feed(block.view())) return false;
    at += size;
  }
  return true;
}

// Everything that a sink was given. Each window in it is sound.
inline std::string content_of(memlens::importing::ChunkSink& sink) {
  sink.flush();
  std::string all;
  memlens::trace::WindowWalker walker;
  for (const auto& chunk : sink.take()) {
    all.append(reinterpret_cast<const char*>(chunk.payload.data()), chunk.payload.size());
    walker.walk(
        chunk.payload, [](const memlens::trace::Part&) {},
        [&](const ml_window&, uint32_t) { require(false, "every window that is imported is sound"); });
  }
  return all;
}

inline std::string content_of(const std::vector<memlens::importing::ImportedChunk>& chunks) {
  std::string all;
  for (const auto& chunk : chunks)
    all.append(reinterpret_cast<const char*>(chunk.payload.data()), chunk.payload.size());
  return all;
}

}  // namespace fuzz
