// The locality engines on accesses of any address, width, class and window, as a damaged or hostile capture may give them.
//
// Oracles: figures do not depend on how the accesses are cut into parts; every access is counted once; footprints are not larger than
// what was accessed; the root of the interval tree holds all accesses; memory stays below its limit (a limit that is reached is said so).
#include "locality/kernels.h"

#include "input.h"
#include "locality/interval_tree.h"
#include "locality/memgaze_tree.h"
#include "locality/sharing.h"
#include "locality/stream.h"

using namespace memlens::locality;

namespace {

constexpr uint64_t kLimit = 256 << 20;

struct Accesses {
  std::vector<uint64_t> addresses, times;
  std::vector<uint32_t> bytes, windows, groups, implied;
  std::vector<uint8_t> classes, stores;
};

Accesses accesses_of(fuzz::Input& input) {
  Accesses made;
  uint64_t address = 0x10000, time = 0;
  uint32_t window = 0;
  while (!input.empty() && made.addresses.size() < 4000) {
    const uint8_t what = input.byte();
    if (what < 128) address += what % 32 * 8;
    else if (what < 200) address = 0x10000 + input.below(65536);
    else if (what < 232) address = input.number();
    time += what % 16;
    window += what % 32 == 31;
    made.addresses.push_back(address);
    made.times.push_back(what == 255 ? input.number() : time);
    // Nobody refuses an access of gigabytes (a program may copy as much), but it takes its time: once is enough.
    made.bytes.push_back(what == 255 && made.addresses.size() < 8 ? static_cast<uint32_t>(input.number())
                         : what % 64 == 63                        ? input.below(1 << 16)
                                                                  : 1u << what % 7);
    made.windows.push_back(window);
    made.groups.push_back(what / 64);
    made.implied.push_back(what == 250 ? input.byte() : 0);
    made.classes.push_back(what / 8 % 4);
    made.stores.push_back(what % 2);
  }
  return made;
}

template <typename T>
std::span<const T> part_of(const std::vector<T>& all, size_t from, size_t count) {
  return std::span(all).subspan(from, count);
}

std::string figures(const Accesses& all, size_t step, const StreamOptions& options, bool with_windows) {
  Stream stream(options);
  const size_t count = all.addresses.size();
  for (size_t from = 0; from < count; from += step) {
    const size_t n = std::min(step, count - from);
    stream.add({part_of(all.addresses, from, n),
                part_of(all.times, from, n),
                part_of(all.bytes, from, n),
                with_windows ? part_of(all.windows, from, n) : std::span<const uint32_t>(),
                part_of(all.classes, from, n),
                {},
                {part_of(all.groups, from, n)}});
  }
  stream.finish();
  std::string said;
  uint64_t counted = 0;
  for (const auto& row : stream.footprint(0).rows()) {
    counted += row.accesses + row.constants;
    said += std::to_string(row.accesses) + " " + std::to_string(row.addresses) + " " + std::to_string(row.lines) + " " +
            std::to_string(row.bytes) + " ";
    fuzz::require(row.addresses <= row.accesses && row.again <= row.addresses,
                  "a footprint is not larger than what was accessed");
  }
  fuzz::require(counted == count, "every access is counted once");
  if (stream.heat() != nullptr)
    for (const auto& [number, cells] : stream.heat()->rows())
      for (const auto& cell : cells) said += std::to_string(cell.accesses) + "," + std::to_string(cell.reuses);
  return said;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Input input(data, size);
  const uint8_t how = input.byte();
  const size_t step = 1 + input.byte();
  const Accesses all = accesses_of(input);
  const size_t count = all.addresses.size();
  StreamOptions options{.block_bytes = uint64_t{8} << how % 8,
                        .views = 1,
                        .has_windows = (how & 8) != 0,
                        .memory_limit_bytes = kLimit};
  if (how & 16) {
    options.heat_columns = 8, options.heat_rows = 16;
    options.begin_ns = 0, options.end_ns = count != 0 ? all.times.back() : 0;
  }
  try {
    if (how & 32) {
      fuzz::require(figures(all, 1 << 20, options, how & 8) == figures(all, step, options, how & 8),
                    "parts give the figures of the whole");
    } else if (how & 64) {
      IntervalTree tree(64, how % 7, 3, kLimit);
      for (size_t from = 0; from < count; from += step) {
        const size_t n = std::min(step, count - from);
        tree.begin_sample();
        tree.add(part_of(all.addresses, from, n), part_of(all.classes, from, n), part_of(all.groups, from, n),
                 part_of(all.implied, from, n));
        tree.end_sample(static_cast<double>(n), 0);
      }
      tree.finish();
      (void)tree.levels();
      uint64_t most = 0;
      for (const auto& node : tree.nodes()) most = std::max(most, node.figures.recorded);
      fuzz::require(most <= count, "no node holds more than all accesses");
      std::vector<uint64_t> samples(count);
      for (size_t i = 0; i < count; ++i) samples[i] = all.windows[i];
      const MemgazeTable table = memgaze_table(all.addresses, all.classes, all.implied, samples, 1000);
      fuzz::require(table.accesses <= count, "no table holds more than all accesses");
    } else {
      Sharing sharing(64, kLimit);
      sharing.add(all.addresses, all.bytes, all.stores, all.groups);
      for (const auto& pair : sharing.pairs())
        fuzz::require(pair.useful <= pair.hand_overs, "no more hand-overs are useful than there are");
    }
  } catch (const MemoryLimit&) {
  }
  return 0;
}
