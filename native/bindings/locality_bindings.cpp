// Python's view of native/core/locality. Columns are NumPy arrays; the GIL is released for every loop over accesses.
#include "locality_bindings.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "arrays.h"
#include "locality/caches.h"
#include "locality/classes.h"
#include "locality/sharing.h"
#include "locality/shards.h"
#include "locality/stream.h"

using namespace nb::literals;

namespace {

using namespace memlens::bindings;
using namespace memlens::locality;

template <typename T>
using Optional = std::optional<Input<T>>;

template <typename List, typename Get>
void ratio_columns(nb::dict& columns, const std::string& name, const List& rows, Get get) {
  columns[name.c_str()] = column<double>(rows, [&](const auto& r) { return get(r).value(); });
  columns[(name + "_error").c_str()] = column<double>(rows, [&](const auto& r) { return get(r).error(); });
  columns[(name + "_windows").c_str()] = column<uint64_t>(rows, [&](const auto& r) { return get(r).windows; });
  columns[(name + "_rare_low").c_str()] = column<double>(rows, [&](const auto& r) { return get(r).rare_low(); });
  columns[(name + "_rare_high").c_str()] = column<double>(rows, [&](const auto& r) { return get(r).rare_high(); });
}

nb::object bins_of(const std::vector<ReuseRow>& rows, const Spread ReuseRow::* which) {
  std::vector<uint64_t> bins;
  bins.reserve(rows.size() * Spread::kBins);
  for (const ReuseRow& row : rows) bins.insert(bins.end(), (row.*which).bins.begin(), (row.*which).bins.end());
  return owned_rows(std::move(bins), Spread::kBins);
}

nb::dict reuse_columns(const Stream& self, uint32_t number) {
  const std::vector<ReuseRow>& rows = self.reuse(number).rows();
  nb::dict columns;
  columns["accesses"] = column<uint64_t>(rows, [](const auto& r) { return r.accesses; });
  columns["first"] = column<uint64_t>(rows, [](const auto& r) { return r.first; });
  columns["earlier"] = column<uint64_t>(rows, [](const auto& r) { return r.earlier; });
  columns["executed"] = column<double>(self.executed(number), [](double v) { return v; });
  const auto spread = [&](const std::string& name, const Spread ReuseRow::* which) {
    columns[(name + "_count").c_str()] = column<uint64_t>(rows, [&](const auto& r) { return (r.*which).count; });
    columns[(name + "_sum").c_str()] = column<uint64_t>(rows, [&](const auto& r) { return (r.*which).sum; });
    columns[(name + "_min").c_str()] = column<uint64_t>(rows, [&](const auto& r) { return (r.*which).least; });
    columns[(name + "_max").c_str()] = column<uint64_t>(rows, [&](const auto& r) { return (r.*which).most; });
    columns[(name + "_bins").c_str()] = bins_of(rows, which);
  };
  spread("distance", &ReuseRow::distance);
  spread("interval", &ReuseRow::interval);
  ratio_columns(columns, "mean_distance", rows, [](const auto& r) { return r.mean_distance; });
  ratio_columns(columns, "new_blocks", rows, [](const auto& r) { return r.new_blocks; });
  return columns;
}

nb::dict footprint_columns(const Footprint& self) {
  std::vector<FootprintRow> rows;
  {
    nb::gil_scoped_release unlocked;
    rows = self.rows();
  }
  nb::dict columns;
  const auto plain = [&](const char* name, auto member) {
    columns[name] = column<uint64_t>(rows, [&](const auto& r) { return r.*member; });
  };
  plain("accesses", &FootprintRow::accesses);
  plain("constants", &FootprintRow::constants);
  plain("accesses_strided", &FootprintRow::accesses_strided);
  plain("accesses_irregular", &FootprintRow::accesses_irregular);
  plain("addresses", &FootprintRow::addresses);
  plain("addresses_strided", &FootprintRow::addresses_strided);
  plain("addresses_irregular", &FootprintRow::addresses_irregular);
  plain("again", &FootprintRow::again);
  plain("bytes", &FootprintRow::bytes);
  plain("lines", &FootprintRow::lines);
  columns["footprint"] = column<uint64_t>(rows, [](const auto& r) { return r.footprint(); });
  ratio_columns(columns, "window_growth", rows, [](const auto& r) { return r.growth; });
  ratio_columns(columns, "window_growth_strided", rows, [](const auto& r) { return r.growth_strided; });
  ratio_columns(columns, "window_growth_irregular", rows, [](const auto& r) { return r.growth_irregular; });
  ratio_columns(columns, "window_constant", rows, [](const auto& r) { return r.constant; });
  ratio_columns(columns, "window_irregular", rows, [](const auto& r) { return r.irregular; });
  columns["window_footprint_sum"] = column<double>(rows, [](const auto& r) { return r.growth.y; });
  return columns;
}

nb::dict curve_columns(const MissCurve& self, const Input<uint64_t>& cache_blocks) {
  nb::dict result;
  result["misses"] = owned(self.misses(view(cache_blocks)));
  result["accesses"] = self.accesses();
  result["first"] = self.first();
  result["earlier"] = self.earlier();
  result["greatest"] = self.greatest();
  return result;
}

nb::object heat_columns(const HeatMap* heat) {
  if (heat == nullptr) return nb::none();
  std::vector<uint64_t> address, accesses, reuses, distance_sum;
  for (const auto& [row, cells] : heat->rows()) {
    address.push_back(row * heat->row_bytes());
    for (const HeatCell& cell : cells) {
      accesses.push_back(cell.accesses);
      reuses.push_back(cell.reuses);
      distance_sum.push_back(cell.distance_sum);
    }
  }
  nb::dict result;
  result["row_bytes"] = heat->row_bytes();
  result["address"] = owned(std::move(address));
  result["accesses"] = owned_rows(std::move(accesses), heat->columns());
  result["reuses"] = owned_rows(std::move(reuses), heat->columns());
  result["distance_sum"] = owned_rows(std::move(distance_sum), heat->columns());
  return result;
}

void bind_stream(nb::module_& module) {
  nb::class_<Stream>(module, "LocalityStream", "Locality of one thread's accesses: native/core/locality/stream.h.")
      .def(
          "__init__",
          [](Stream* self, uint64_t block_bytes, uint32_t views, bool has_windows, uint64_t memory_limit_bytes,
             uint32_t heat_columns, uint32_t heat_rows, uint64_t begin_ns, uint64_t end_ns) {
            new (self) Stream(
                {block_bytes, views, has_windows, memory_limit_bytes, heat_columns, heat_rows, begin_ns, end_ns});
          },
          nb::kw_only(), "block_bytes"_a = 64, "views"_a = 1, "has_windows"_a = true,
          "memory_limit_bytes"_a = std::numeric_limits<uint64_t>::max(), "heat_columns"_a = 0, "heat_rows"_a = 1024,
          "begin_ns"_a = 0, "end_ns"_a = 0)
      .def(
          "add",
          [](Stream& self, const Input<uint64_t>& addresses, const Optional<uint32_t>& bytes,
             const Optional<uint8_t>& classes, const Optional<uint32_t>& windows, const Optional<uint64_t>& times_ns,
             const Optional<double>& weights, const std::vector<Optional<uint32_t>>& groups) {
            StreamColumns columns{view(addresses), view(times_ns), view(bytes), view(windows),
                                  view(classes),   view(weights),  {}};
            for (const auto& one : groups) columns.groups.push_back(view(one));
            nb::gil_scoped_release unlocked;
            self.add(columns);
          },
          "addresses"_a, nb::kw_only(), "bytes"_a = nb::none(), "classes"_a = nb::none(), "windows"_a = nb::none(),
          "times_ns"_a = nb::none(), "weights"_a = nb::none(), "groups"_a)
      .def(
          "add_constants",
          [](Stream& self, const Input<uint32_t>& windows, const Input<uint64_t>& counts, const Input<double>& weights,
             const std::vector<Input<uint32_t>>& groups) {
            ConstantColumns columns{view(windows), view(counts), view(weights), {}};
            for (const auto& one : groups) columns.groups.push_back(view(one));
            nb::gil_scoped_release unlocked;
            self.add_constants(columns);
          },
          "windows"_a, nb::kw_only(), "counts"_a, "weights"_a, "groups"_a,
          "Constant accesses that the stream leaves out; before the last accesses of their windows.")
      .def("finish", &Stream::finish)
      .def(
          "merge",
          [](Stream& self, const Stream& other) {
            nb::gil_scoped_release unlocked;
            self.merge(other);
          },
          "other"_a)
      .def("reuse", &reuse_columns, "view"_a)
      .def(
          "footprint", [](const Stream& self, uint32_t number) { return footprint_columns(self.footprint(number)); },
          "view"_a)
      .def(
          "curve",
          [](const Stream& self, const Input<uint64_t>& blocks) { return curve_columns(self.curve(), blocks); },
          "cache_blocks"_a)
      .def("heat", [](const Stream& self) { return heat_columns(self.heat()); })
      .def_prop_ro("accesses", &Stream::accesses)
      .def_prop_ro("windows", &Stream::windows)
      .def_prop_ro("memory_bytes", &Stream::memory_bytes);
}

void bind_reuse(nb::module_& module) {
  module.attr("REUSE_FIRST") = kFirst;
  module.attr("REUSE_EARLIER") = kEarlier;
  nb::list classes;
  for (const char* name : kAccessClassNames) classes.append(name);
  module.attr("ACCESS_CLASSES") = nb::tuple(classes);
  nb::class_<Reuse>(module, "ReuseDistances", "Exact reuse distances and intervals: native/core/locality/reuse.h.")
      .def(nb::init<uint64_t, uint64_t>(), nb::kw_only(), "block_bytes"_a = 64,
           "memory_limit_bytes"_a = std::numeric_limits<uint64_t>::max())
      .def("begin_window", &Reuse::begin_window)
      .def(
          "add",
          [](Reuse& self, const Input<uint64_t>& addresses, bool intervals) {
            std::vector<uint32_t> distances(addresses.size());
            std::vector<uint64_t> between(intervals ? addresses.size() : 0);
            {
              nb::gil_scoped_release unlocked;
              self.add(view(addresses), distances, between);
            }
            return nb::make_tuple(owned(std::move(distances)), owned(std::move(between)));
          },
          "addresses"_a, nb::kw_only(), "intervals"_a = true, "(distances, intervals) of accesses.")
      .def_prop_ro("blocks", &Reuse::blocks)
      .def_prop_ro("accesses", &Reuse::accesses)
      .def_prop_ro("memory_bytes", &Reuse::memory_bytes);
  nb::class_<MissCurve>(module, "MissCurve", "Misses of fully associative LRU caches, from exact distances.")
      .def(nb::init<>())
      .def(
          "add",
          [](MissCurve& self, const Input<uint32_t>& distances) {
            const auto values = view(distances);
            nb::gil_scoped_release unlocked;
            self.add(values);
          },
          "distances"_a)
      .def("curve", &curve_columns, "cache_blocks"_a);
  nb::class_<Shards>(module, "SampledCurve", "Miss-ratio curve from a sample of blocks: native/core/locality/shards.h.")
      .def(nb::init<double, uint64_t, uint64_t>(), nb::kw_only(), "rate"_a = 0.01, "most_blocks"_a = 0,
           "block_bytes"_a = 64)
      .def(
          "add",
          [](Shards& self, const Input<uint64_t>& addresses) {
            const auto values = view(addresses);
            nb::gil_scoped_release unlocked;
            self.add(values);
          },
          "addresses"_a)
      .def(
          "curve",
          [](const Shards& self, const Input<uint64_t>& cache_blocks) {
            const std::vector<CurvePoint> points = self.curve(view(cache_blocks));
            nb::dict columns;
            columns["cache_blocks"] = column<uint64_t>(points, [](const auto& p) { return p.cache_blocks; });
            columns["miss_ratio"] = column<double>(points, [](const auto& p) { return p.miss_ratio; });
            columns["miss_ratio_error"] = column<double>(points, [](const auto& p) { return p.error; });
            columns["low"] = column<double>(points, [](const auto& p) { return p.low; });
            columns["high"] = column<double>(points, [](const auto& p) { return p.high; });
            return columns;
          },
          "cache_blocks"_a)
      .def_prop_ro("rate", &Shards::rate)
      .def_prop_ro("accesses", &Shards::accesses)
      .def_prop_ro("sampled", &Shards::sampled)
      .def_prop_ro("blocks", &Shards::blocks)
      .def_prop_ro("distinct_blocks", &Shards::distinct_blocks)
      .def_prop_ro("memory_bytes", &Shards::memory_bytes);
}

void bind_footprint(nb::module_& module) {
  nb::class_<Footprint>(module, "Footprint", "Footprint and classes: native/core/locality/footprint.h.")
      .def(nb::init<bool, uint64_t>(), nb::kw_only(), "has_windows"_a = true,
           "memory_limit_bytes"_a = std::numeric_limits<uint64_t>::max())
      .def(
          "add",
          [](Footprint& self, const Input<uint64_t>& addresses, const Optional<uint32_t>& bytes,
             const Optional<uint8_t>& classes, const Optional<uint32_t>& groups) {
            const auto a = view(addresses);
            const auto b = view(bytes);
            const auto c = view(classes);
            const auto g = view(groups);
            nb::gil_scoped_release unlocked;
            self.add(a, b, c, g);
          },
          "addresses"_a, nb::kw_only(), "bytes"_a = nb::none(), "classes"_a = nb::none(), "groups"_a = nb::none())
      .def("add_implied_constants", &Footprint::add_implied_constants, "group"_a, "count"_a)
      .def("end_window", &Footprint::end_window)
      .def("columns", &footprint_columns)
      .def_prop_ro("memory_bytes", &Footprint::memory_bytes);
  nb::class_<Classes>(module, "AccessClasses",
                      "Classes of instructions from their addresses: native/core/locality/classes.h.")
      .def(nb::init<uint64_t>(), nb::kw_only(), "least_accesses"_a = 1)
      .def(
          "add",
          [](Classes& self, uint32_t stream, const Input<uint64_t>& pcs, const Input<uint64_t>& addresses,
             const Input<uint8_t>& is_store, const Optional<uint32_t>& windows) {
            const auto p = view(pcs);
            const auto a = view(addresses);
            const auto s = view(is_store);
            const auto w = view(windows);
            nb::gil_scoped_release unlocked;
            self.add(stream, p, a, s, w);
          },
          "stream"_a, "pcs"_a, "addresses"_a, "is_store"_a, "windows"_a = nb::none())
      .def(
          "classify",
          [](const Classes& self, uint32_t stream, const Input<uint64_t>& pcs, const Input<uint8_t>& is_store) {
            std::vector<uint8_t> classes(pcs.size());
            {
              nb::gil_scoped_release unlocked;
              self.classify(stream, view(pcs), view(is_store), classes);
            }
            return owned(std::move(classes));
          },
          "stream"_a, "pcs"_a, "is_store"_a)
      .def_static(
          "by_window",
          [](uint64_t least_accesses, const Input<uint64_t>& pcs, const Input<uint64_t>& addresses,
             const Input<uint8_t>& is_store, const Input<uint32_t>& windows) {
            std::vector<uint8_t> classes(pcs.size());
            {
              nb::gil_scoped_release unlocked;
              Classes::by_window(least_accesses, view(pcs), view(addresses), view(is_store), view(windows), classes);
            }
            return owned(std::move(classes));
          },
          "least_accesses"_a, "pcs"_a, "addresses"_a, "is_store"_a, "windows"_a,
          "Class of each access, from its window alone.")
      .def("verdicts", [](const Classes& self) {
        const std::vector<Classes::Verdict> rows = self.verdicts();
        nb::dict columns;
        columns["stream"] = column<uint32_t>(rows, [](const auto& r) { return r.stream; });
        columns["pc"] = column<uint64_t>(rows, [](const auto& r) { return r.pc; });
        columns["is_store"] = column<uint8_t>(rows, [](const auto& r) { return r.is_store; });
        columns["accesses"] = column<uint64_t>(rows, [](const auto& r) { return r.accesses; });
        columns["class"] = column<uint8_t>(rows, [](const auto& r) { return r.kind; });
        columns["stride_bytes"] = column<int64_t>(rows, [](const auto& r) { return r.stride_bytes; });
        columns["share"] = column<double>(rows, [](const auto& r) { return r.share; });
        return columns;
      });
}

Policy policy_named(const std::string& name) {
  if (name == "lru") return Policy::kLru;
  if (name == "fifo") return Policy::kFifo;
  if (name == "random") return Policy::kRandom;
  throw nb::value_error(("no replacement policy is called " + name + ": lru, fifo, random").c_str());
}

std::vector<LevelGeometry> geometries(const nb::list& levels) {
  std::vector<LevelGeometry> made;
  for (const nb::handle item : levels) {
    const auto level = nb::cast<nb::tuple>(item);  // (bytes, ways, shared, policy)
    made.push_back({nb::cast<uint64_t>(level[0]), nb::cast<uint32_t>(level[1]), nb::cast<bool>(level[2]),
                    policy_named(nb::cast<std::string>(level[3]))});
  }
  return made;
}

nb::dict cache_columns(const CacheModel& self) {
  const std::vector<CacheRow>& rows = self.rows();
  nb::dict columns;
  columns["accesses"] = column<uint64_t>(rows, [](const auto& r) { return r.accesses; });
  columns["stores"] = column<uint64_t>(rows, [](const auto& r) { return r.stores; });
  columns["unknown"] = column<uint64_t>(rows, [](const auto& r) { return r.unknown; });
  columns["tlb_unknown"] = column<uint64_t>(rows, [](const auto& r) { return r.tlb_unknown; });
  for (size_t number = 0; number < self.levels(); ++number) {
    const std::string name = "misses_" + std::to_string(number + 1);
    columns[name.c_str()] = column<uint64_t>(rows, [&](const auto& r) { return r.misses[number]; });
    columns[("store_" + name).c_str()] = column<uint64_t>(rows, [&](const auto& r) { return r.store_misses[number]; });
  }
  for (size_t number = 0; number < 2; ++number)
    columns[("tlb_misses_" + std::to_string(number + 1)).c_str()] =
        column<uint64_t>(rows, [&](const auto& r) { return r.tlb_misses[number]; });
  return columns;
}

void bind_caches(nb::module_& module) {
  nb::class_<CacheModel>(module, "CacheModel", "Set-associative caches and TLBs: native/core/locality/caches.h.")
      .def(
          "__init__",
          [](CacheModel* self, const nb::list& levels, const nb::list& tlbs, uint64_t line_bytes, uint64_t page_bytes,
             uint32_t cores, bool inclusive, bool next_line, bool stride) {
            new (self) CacheModel(
                {geometries(levels), geometries(tlbs), line_bytes, page_bytes, cores, inclusive, next_line, stride});
          },
          nb::kw_only(), "levels"_a, "tlbs"_a = nb::list(), "line_bytes"_a = 64, "page_bytes"_a = 4096, "cores"_a = 1,
          "inclusive"_a = true, "next_line"_a = false, "stride"_a = false,
          "Levels and TLBs are tuples (bytes, ways or 0, shared, policy), the nearest first.")
      .def(
          "add",
          [](CacheModel& self, const Input<uint64_t>& addresses, const Optional<uint32_t>& bytes,
             const Optional<uint8_t>& is_store, const Optional<uint32_t>& cores, const Optional<uint32_t>& groups,
             const Optional<uint64_t>& sites, const Optional<uint32_t>& windows) {
            const auto a = view(addresses);
            const auto b = view(bytes);
            const auto s = view(is_store);
            const auto c = view(cores);
            const auto g = view(groups);
            const auto p = view(sites);
            const auto w = view(windows);
            nb::gil_scoped_release unlocked;
            self.add(a, b, s, c, g, p, w);
          },
          "addresses"_a, nb::kw_only(), "bytes"_a = nb::none(), "is_store"_a = nb::none(), "cores"_a = nb::none(),
          "groups"_a = nb::none(), "sites"_a = nb::none(), "windows"_a = nb::none())
      .def("columns", &cache_columns, "Accesses and misses by group.")
      .def("totals", [](const CacheModel& self) {
        nb::list totals;
        for (size_t number = 0; number < self.levels(); ++number) {
          const LevelTotals& level = self.totals()[number];
          nb::dict row;
          row["write_backs"] = level.write_backs;
          row["invalidations"] = level.invalidations;
          row["prefetches"] = level.prefetches;
          row["useful_prefetches"] = level.useful_prefetches;
          totals.append(row);
        }
        return totals;
      });
}

void bind_sharing(nb::module_& module) {
  nb::class_<Sharing>(module, "LineSharing", "Lines that threads share: native/core/locality/sharing.h.")
      .def(nb::init<uint64_t, uint64_t>(), nb::kw_only(), "line_bytes"_a = 64,
           "memory_limit_bytes"_a = uint64_t{2} << 30)
      .def(
          "add",
          [](Sharing& self, const Input<uint64_t>& addresses, const Optional<uint32_t>& bytes,
             const Input<uint8_t>& is_store, const Input<uint32_t>& threads) {
            const auto a = view(addresses);
            const auto b = view(bytes);
            const auto s = view(is_store);
            const auto t = view(threads);
            nb::gil_scoped_release unlocked;
            self.add(a, b, s, t);
          },
          "addresses"_a, "bytes"_a, "is_store"_a, "threads"_a)
      .def("pairs",
           [](const Sharing& self) {
             const std::vector<SharedPair> rows = self.pairs();
             nb::dict columns;
             columns["line"] = column<uint64_t>(rows, [](const auto& r) { return r.line; });
             columns["thread"] = column<uint32_t>(rows, [](const auto& r) { return r.thread; });
             columns["other"] = column<uint32_t>(rows, [](const auto& r) { return r.other; });
             const auto plain = [&](const char* name, auto member) {
               columns[name] = column<uint64_t>(rows, [&](const auto& r) { return r.*member; });
             };
             plain("reads", &SharedPair::reads);
             plain("writes", &SharedPair::writes);
             plain("other_reads", &SharedPair::other_reads);
             plain("other_writes", &SharedPair::other_writes);
             plain("read_mask", &SharedPair::read_mask);
             plain("write_mask", &SharedPair::write_mask);
             plain("other_read_mask", &SharedPair::other_read_mask);
             plain("other_write_mask", &SharedPair::other_write_mask);
             plain("common_mask", &SharedPair::common_mask);
             plain("hand_overs", &SharedPair::hand_overs);
             plain("useful", &SharedPair::useful);
             return columns;
           })
      .def_prop_ro("lines", &Sharing::lines);
}

}  // namespace

void bind_locality(nb::module_& module) {
  nb::register_exception_translator([](const std::exception_ptr& p, void*) {
    try {
      std::rethrow_exception(p);
    } catch (const MemoryLimit& error) {
      PyErr_SetString(PyExc_MemoryError, error.what());
    }
  });
  bind_reuse(module);
  bind_footprint(module);
  bind_stream(module);
  bind_caches(module);
  bind_sharing(module);
}
