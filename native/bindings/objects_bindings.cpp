// Python's view of native/core/objects.
#include "objects_bindings.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "arrays.h"
#include "objects/object_table.h"

using namespace nb::literals;

namespace {

using namespace memlens::bindings;
using memlens::objects::Columns;
using memlens::objects::ObjectTable;
using memlens::objects::TouchColumns;
using memlens::objects::TouchInput;

// A view of memory that `table` owns.
template <typename Column>
nb::object lent(const Column& column, nb::handle table) {
  using T = typename Column::Value;
  static_assert(sizeof(memlens::objects::Row) % sizeof(T) == 0);
  const T* first = column.size() != 0 ? &column[0] : nullptr;
  return nb::cast(nb::ndarray<nb::numpy, const T, nb::ndim<1>>(
      first, {column.size()}, table, {static_cast<int64_t>(sizeof(memlens::objects::Row) / sizeof(T))}));
}

nb::dict object_columns(nb::handle self) {
  const Columns& table = nb::cast<const ObjectTable&>(self).columns();
  nb::dict columns;
  columns["process"] = lent(table.process, self);
  columns["kind"] = lent(table.kind, self);
  columns["base"] = lent(table.base, self);
  columns["bytes"] = lent(table.bytes, self);
  columns["born_ns"] = lent(table.born_ns, self);
  columns["died_ns"] = lent(table.died_ns, self);
  columns["thread"] = lent(table.thread, self);
  columns["death_thread"] = lent(table.death_thread, self);
  columns["stack"] = lent(table.stack, self);
  columns["weight_bytes"] = lent(table.weight_bytes, self);
  columns["operation"] = lent(table.operation, self);
  columns["alignment_shift"] = lent(table.alignment_shift, self);
  columns["previous"] = lent(table.previous, self);
  columns["name"] = lent(table.name, self);
  columns["flags"] = lent(table.flags, self);
  columns["map_flags"] = lent(table.map_flags, self);
  columns["protection"] = lent(table.protection, self);
  columns["site"] = lent(table.site, self);
  columns["number"] = lent(table.number, self);
  std::vector<double> counts(table.size());
  for (uint32_t id = 1; id <= table.size(); ++id) counts[id - 1] = table.weighted_count(id);
  columns["count_weight"] = owned(std::move(counts));
  return columns;
}

nb::dict site_columns(const ObjectTable& self) {
  const auto& sites = self.totals().sites();
  nb::dict columns;
  columns["process"] = column<uint32_t>(sites, [](const auto& s) { return s.process; });
  columns["stack"] = column<uint32_t>(sites, [](const auto& s) { return s.stack; });
  columns["kind"] = column<uint8_t>(sites, [](const auto& s) { return s.kind; });
  columns["allocations"] = column<double>(sites, [](const auto& s) { return s.allocations; });
  columns["allocated_bytes"] = column<uint64_t>(sites, [](const auto& s) { return s.allocated_bytes; });
  columns["objects"] = column<uint64_t>(sites, [](const auto& s) { return s.objects; });
  columns["releases"] = column<double>(sites, [](const auto& s) { return s.releases; });
  columns["live"] = column<double>(sites, [](const auto& s) { return s.live; });
  columns["live_bytes"] = column<uint64_t>(sites, [](const auto& s) { return s.live_bytes; });
  columns["peak_bytes"] = column<uint64_t>(sites, [](const auto& s) { return s.peak_bytes(); });
  columns["highest_bytes"] = column<uint64_t>(sites, [](const auto& s) { return s.level.peak().bytes; });
  columns["samples"] = column<uint64_t>(sites, [](const auto& s) { return s.bytes_spread.samples; });
  columns["allocations_error"] = column<double>(sites, [](const auto& s) { return s.allocations_spread.error(); });
  columns["allocated_bytes_error"] = column<double>(sites, [](const auto& s) { return s.bytes_spread.error(); });
  columns["live_samples"] = column<uint64_t>(sites, [](const auto& s) { return s.live_spread.samples; });
  columns["live_error"] = column<double>(sites, [](const auto& s) { return s.live_spread.error(); });
  columns["live_bytes_error"] = column<double>(sites, [](const auto& s) { return s.live_bytes_spread.error(); });
  columns["peak_bytes_error"] = column<double>(sites, [](const auto& s) { return s.split.error(); });
  columns["at_peak_error"] = column<double>(sites, [](const auto& s) { return s.at_peak_spread.error(); });
  columns["peak_ns"] = column<uint64_t>(sites, [](const auto& s) { return s.level.peak().time_ns; });
  columns["bytes_at_process_peak"] = column<uint64_t>(sites, [](const auto& s) { return s.bytes_at_process_peak; });
  columns["lifetime_ns"] = column<double>(sites, [](const auto& s) { return s.lifetime_ns; });
  columns["temporary"] = column<double>(sites, [](const auto& s) { return s.temporary; });
  columns["min_bytes"] = column<uint64_t>(sites, [](const auto& s) { return s.largest != 0 ? s.min_bytes : 0; });
  columns["max_bytes"] = column<uint64_t>(sites, [](const auto& s) { return s.max_bytes; });
  columns["rows"] = column<uint64_t>(sites, [](const auto& s) { return s.rows; });
  columns["cleared_bytes"] = column<double>(sites, [](const auto& s) { return s.cleared_bytes; });
  columns["largest_object"] = column<uint32_t>(sites, [](const auto& s) { return s.largest; });
  columns["sampled"] = column<uint8_t>(sites, [](const auto& s) { return s.sampled; });
  return columns;
}

nb::dict peak_columns(const ObjectTable& self) {
  const auto& processes = self.totals().processes();
  nb::dict columns;
  columns["process"] = column<uint32_t>(processes, [](const auto& p) { return p.first; });
  columns["heap_peak_bytes"] = column<uint64_t>(processes, [](const auto& p) { return p.second.peak_bytes(); });
  columns["heap_highest_bytes"] = column<uint64_t>(processes, [](const auto& p) { return p.second.heap.peak().bytes; });
  columns["heap_peak_error"] = column<double>(processes, [](const auto& p) { return p.second.split.error(); });
  columns["samples"] = column<uint64_t>(processes, [](const auto& p) { return p.second.bytes_spread.samples; });
  columns["allocations_error"] =
      column<double>(processes, [](const auto& p) { return p.second.allocations_spread.error(); });
  columns["allocated_bytes_error"] =
      column<double>(processes, [](const auto& p) { return p.second.bytes_spread.error(); });
  columns["live_error"] = column<double>(processes, [](const auto& p) { return p.second.live_spread.error(); });
  columns["live_bytes_error"] =
      column<double>(processes, [](const auto& p) { return p.second.live_bytes_spread.error(); });
  columns["heap_peak_ns"] = column<uint64_t>(processes, [](const auto& p) { return p.second.heap.peak().time_ns; });
  columns["mmap_peak_bytes"] = column<uint64_t>(processes, [](const auto& p) { return p.second.mmap.peak().bytes; });
  columns["mmap_peak_ns"] = column<uint64_t>(processes, [](const auto& p) { return p.second.mmap.peak().time_ns; });
  columns["allocations"] = column<double>(processes, [](const auto& p) { return p.second.allocations; });
  columns["allocated_bytes"] = column<uint64_t>(processes, [](const auto& p) { return p.second.allocated_bytes; });
  columns["live"] = column<double>(processes, [](const auto& p) { return p.second.live; });
  columns["live_bytes"] = column<uint64_t>(processes, [](const auto& p) { return p.second.live_bytes; });
  return columns;
}

nb::tuple curve(const ObjectTable& self, uint32_t process, const std::string& kind) {
  if (kind != "heap" && kind != "mmap") throw nb::value_error("kind is heap or mmap");
  std::vector<memlens::objects::Curve::Point> points;
  const auto found = self.totals().processes().find(process);
  if (found != self.totals().processes().end())
    points = (kind == "heap" ? found->second.heap_curve : found->second.mmap_curve).points();
  return nb::make_tuple(column<uint64_t>(points, [](const auto& p) { return p.time_ns; }),
                        column<uint64_t>(points, [](const auto& p) { return p.bytes; }));
}

ObjectTable::Queries queries(const Input<uint32_t>& processes, const Input<uint64_t>& addresses,
                             const Input<uint64_t>& times) {
  if (addresses.size() != times.size() || (processes.size() != 1 && processes.size() != addresses.size()))
    throw nb::value_error("processes (or one for all), addresses and times have one length");
  return {view(processes), view(addresses), view(times)};
}

size_t layer_number(const std::string& name) {
  if (name == "any") return memlens::objects::kLayers;
  for (size_t layer = 0; layer < memlens::objects::kLayers; ++layer)
    if (name == memlens::objects::kLayerNames[layer]) return layer;
  throw nb::value_error("layer is any, heap, memlens, stack, mmap, brk or file");
}

nb::dict touch(const ObjectTable& self, const Input<uint32_t>& process, const Input<uint64_t>& time_ns,
               const Input<uint64_t>& address, const Input<uint64_t>& span_bytes, const Input<uint64_t>& new_bytes,
               const Input<uint32_t>& thread, const Input<uint32_t>& code, const Input<uint8_t>& mapped_around,
               const Input<double>& weight, uint64_t sampled_from_ns, const Input<uint32_t>& placed_process,
               const Input<uint64_t>& placed_begin_ns, const Input<uint64_t>& placed_end_ns,
               const Input<uint64_t>& placed_address, const Input<uint64_t>& placed_bytes) {
  const TouchInput input{view(process),       view(thread),         view(code),           view(time_ns),
                         view(address),       view(span_bytes),     view(new_bytes),      view(mapped_around),
                         view(weight),        sampled_from_ns,      view(placed_process), view(placed_begin_ns),
                         view(placed_end_ns), view(placed_address), view(placed_bytes)};
  for (size_t length : {thread.size(), code.size(), time_ns.size(), address.size(), span_bytes.size(), new_bytes.size(),
                        mapped_around.size(), weight.size()})
    if (length != process.size()) throw nb::value_error("the columns of faults have one length");
  for (size_t length : {placed_begin_ns.size(), placed_end_ns.size(), placed_address.size(), placed_bytes.size()})
    if (length != placed_process.size()) throw nb::value_error("the columns of placed runs have one length");
  TouchColumns found;
  {
    nb::gil_scoped_release unlocked;
    found = self.touch(input);
  }
  nb::dict columns;
  columns["touched_pages"] = owned(std::move(found.touched_pages));
  columns["recycled_pages"] = owned(std::move(found.recycled_pages));
  columns["touched_error_pages"] = owned(std::move(found.touched_error_pages));
  columns["never_pages"] = owned(std::move(found.never_pages));
  columns["never_known"] = owned(std::move(found.never_known));
  columns["touched_known"] = owned(std::move(found.touched_known));
  columns["faults"] = owned(std::move(found.faults));
  columns["has_touch"] = owned(std::move(found.has_touch));
  columns["first_touch_ns"] = owned(std::move(found.first_touch_ns));
  columns["first_touch_thread"] = owned(std::move(found.first_touch_thread));
  columns["first_touch_code"] = owned(std::move(found.first_touch_code));
  columns["touching_threads"] = owned(std::move(found.touching_threads));
  columns["top_thread_bytes"] = owned(std::move(found.top_thread_bytes));
  return columns;
}

}  // namespace

void bind_objects(nb::module_& module) {
  nb::list kinds;
  for (const char* name : memlens::objects::kKindNames) kinds.append(name);
  module.attr("OBJECT_KINDS") = nb::tuple(kinds);
  module.attr("OBJECT_PIECE") = static_cast<int>(memlens::objects::kPiece);
  module.attr("OBJECT_CUT") = static_cast<int>(memlens::objects::kCut);

  using Table = ObjectTable;
  nb::class_<Table>(module, "ObjectTable")
      .def(
          "__init__",
          [](Table* self, uint64_t page_bytes, std::optional<size_t> most_rows, size_t largest) {
            new (self) Table(page_bytes, most_rows.value_or(SIZE_MAX), largest);
          },
          nb::kw_only(), "page_bytes"_a = 4096, "most_rows"_a = nb::none(), "largest"_a = 200,
          "With most_rows, small objects that have ended are forgotten when there are so many: what is left has the sums of all.")
      .def(
          "add_strings", [](Table& self, const nb::bytes& b) { self.add_strings(view(b)); }, "payload"_a)
      .def(
          "add_allocations",
          [](Table& self, uint32_t p, const nb::bytes& b, uint32_t arrival) {
            const auto bytes = view(b);
            nb::gil_scoped_release unlocked;
            self.add_allocations(p, bytes, arrival);
          },
          "process"_a, "payload"_a, "arrival"_a = 0)
      .def("expect", &Table::expect, "process"_a, "begin_ns"_a, "end_ns"_a,
           "The times of a process's allocations that are added after begin().")
      .def("add_process_end", &Table::add_process_end, "process"_a, "time_ns"_a)
      .def("begin", &Table::begin, nb::call_guard<nb::gil_scoped_release>())
      .def("advance", &Table::advance, "before_ns"_a, nb::call_guard<nb::gil_scoped_release>(),
           "Replays up to a time before which no allocation is to come.")
      .def("finish", &Table::finish, nb::call_guard<nb::gil_scoped_release>())
      .def_prop_ro("waiting", &Table::waiting)
      .def_prop_ro("made", &Table::made, "All objects; rows are fewer where some were forgotten.")
      .def_prop_ro("made_of_kind",
                   [](const Table& self) {
                     return std::vector<uint64_t>(self.made_of_kind().begin(), self.made_of_kind().end());
                   })
      .def(
          "peaks_together",
          [](const Table& self, const Input<uint32_t>& group_of_site, size_t groups) {
            const auto peaks = self.totals().peaks_together(view(group_of_site), groups);
            return nb::make_tuple(column<uint64_t>(peaks, [](const auto& p) { return p.bytes; }),
                                  column<uint64_t>(peaks, [](const auto& p) { return p.halves_bytes; }));
          },
          "group_of_site"_a, "groups"_a,
          "Peaks of live bytes of groups of sites, 2^32 - 1 = none: exact, and of the two halves of a sample.")
      .def(
          "add_tag_events", [](Table& self, uint32_t p, const nb::bytes& b) { self.add_tag_events(p, view(b)); },
          "process"_a, "payload"_a)
      .def(
          "add_thread_memory", [](Table& self, uint32_t p, const nb::bytes& b) { self.add_thread_memory(p, view(b)); },
          "process"_a, "payload"_a)
      .def(
          "add_process_events",
          [](Table& self, uint32_t p, const nb::bytes& b) { self.add_process_events(p, view(b)); }, "process"_a,
          "payload"_a)
      .def(
          "add_mappings", [](Table& self, uint32_t p, const nb::bytes& b) { self.add_mappings(p, view(b)); },
          "process"_a, "payload"_a)
      .def(
          "add_variable",
          [](Table& self, uint32_t process, uint64_t time_ns, uint64_t base, uint64_t bytes, uint32_t name,
             uint32_t thread, bool is_thread_local) {
            self.add_variable({time_ns, base, bytes, process, name, thread, is_thread_local});
          },
          nb::kw_only(), "process"_a, "time_ns"_a, "base"_a, "bytes"_a, "name"_a, "thread"_a, "is_thread_local"_a)
      .def("run",
           [](Table& self) {
             nb::gil_scoped_release unlocked;
             self.run();
           })
      .def_prop_ro("count", [](const Table& self) { return self.columns().size(); })
      .def_prop_ro("index_bytes",
                   [](const Table& self) { return self.index_nodes() * sizeof(memlens::objects::VersionTree::Node); })
      .def_prop_ro("counts",
                   [](const Table& self) {
                     const auto& counts = self.counts();
                     nb::dict result;
                     result["failed_calls"] = counts.failed_calls;
                     result["unknown_releases"] = counts.unknown_releases;
                     result["lost_releases"] = counts.lost_releases;
                     result["unknown_unmaps"] = counts.unknown_unmaps;
                     return result;
                   })
      .def("columns", &object_columns, "All objects in the order of birth; object id is row + 1.")
      .def(
          "find",
          [](const Table& self, const Input<uint32_t>& processes, const Input<uint64_t>& addresses,
             const Input<uint64_t>& times, const std::string& layer, unsigned threads) {
            const auto asked = queries(processes, addresses, times);
            const size_t number = layer_number(layer);
            std::vector<uint32_t> ids(addresses.size());
            {
              nb::gil_scoped_release unlocked;
              self.find(asked, number, ids, threads);
            }
            return owned(std::move(ids));
          },
          "processes"_a, "addresses"_a, "times"_a, nb::kw_only(), "layer"_a = "any", "threads"_a = 2,
          "The object at each address and time, 0 = none.")
      .def(
          "find_tags",
          [](const Table& self, const Input<uint32_t>& processes, const Input<uint64_t>& addresses,
             const Input<uint64_t>& times) {
            const auto asked = queries(processes, addresses, times);
            std::vector<uint32_t> ids(addresses.size());
            {
              nb::gil_scoped_release unlocked;
              self.find_tags(asked, ids);
            }
            return owned(std::move(ids));
          },
          "processes"_a, "addresses"_a, "times"_a, "The innermost tag at each address and time, 0 = none.")
      .def("by_stack", &site_columns, "Totals of each (process, allocation stack, kind).")
      .def("peaks", &peak_columns, "Totals of each process.")
      .def("curve", &curve, "process"_a, "kind"_a = "heap",
           "Live bytes over time: (times, bytes), at most 2000 points.")
      .def("touch", &touch, nb::kw_only(), "process"_a, "time_ns"_a, "address"_a, "span_bytes"_a, "new_bytes"_a,
           "thread"_a, "code"_a, "mapped_around"_a, "weight"_a, "sampled_from_ns"_a, "placed_process"_a,
           "placed_begin_ns"_a, "placed_end_ns"_a, "placed_address"_a, "placed_bytes"_a,
           "What faults and placed pages say about each object.");
}
