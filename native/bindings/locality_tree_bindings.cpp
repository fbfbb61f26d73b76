// Python's view of the trees of native/core/locality. Columns are NumPy arrays; the GIL is released for loops.
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>

#include <optional>
#include <span>
#include <vector>

#include "arrays.h"
#include "locality/interval_tree.h"
#include "locality/memgaze_tree.h"
#include "locality_bindings.h"

using namespace nb::literals;

namespace {

using namespace memlens::bindings;
using namespace memlens::locality;

template <typename List, typename Get>
void figure_columns(nb::dict& columns, const List& rows, Get get) {
  const auto plain = [&](const char* name, auto member) {
    columns[name] = column<uint64_t>(rows, [&](const auto& r) { return get(r).*member; });
  };
  plain("accesses", &IntervalFigures::accesses);
  plain("constants", &IntervalFigures::constants);
  plain("recorded", &IntervalFigures::recorded);
  plain("unknown", &IntervalFigures::unknown);
  plain("addresses", &IntervalFigures::addresses);
  plain("addresses_strided", &IntervalFigures::addresses_strided);
  plain("addresses_irregular", &IntervalFigures::addresses_irregular);
  plain("blocks", &IntervalFigures::blocks);
  plain("reuses", &IntervalFigures::reuses);
  plain("distance_sum", &IntervalFigures::distance_sum);
  plain("distance_max", &IntervalFigures::distance_max);
  columns["implied"] = column<double>(rows, [&](const auto& r) { return get(r).implied; });
  columns["executed"] = column<double>(rows, [&](const auto& r) { return get(r).executed; });
  columns["kind"] = column<uint8_t>(rows, [](const auto& r) { return r.kind; });
  columns["shift"] = column<uint8_t>(rows, [](const auto& r) { return r.shift; });
}

nb::dict node_columns(const IntervalTree& self) {
  const auto& rows = self.nodes();
  nb::dict columns;
  figure_columns(columns, rows, [](const IntervalNode& r) { return r.figures; });
  columns["footprint"] = column<uint64_t>(rows, [](const auto& r) { return r.figures.footprint(); });
  columns["first_sample"] = column<uint32_t>(rows, [](const auto& r) { return r.first_sample; });
  columns["samples"] = column<uint32_t>(rows, [](const auto& r) { return r.samples; });
  columns["begin"] = column<uint64_t>(rows, [](const auto& r) { return r.begin; });
  columns["function"] = column<uint32_t>(rows, [](const auto& r) { return r.function; });
  return columns;
}

nb::dict level_columns(const IntervalTree& self) {
  const std::vector<IntervalLevel> rows = self.levels();
  nb::dict columns;
  figure_columns(columns, rows, [](const IntervalLevel& r) { return r.sums; });
  columns["nodes"] = column<uint64_t>(rows, [](const auto& r) { return r.nodes; });
  columns["footprint"] = column<uint64_t>(rows, [](const auto& r) { return r.footprint; });
  return columns;
}

nb::dict memgaze_columns(const Input<uint64_t>& addresses, const Input<uint8_t>& classes,
                         const Input<uint32_t>& implied, const Input<uint64_t>& samples, uint64_t period) {
  MemgazeTable table;
  {
    nb::gil_scoped_release unlocked;
    table = memgaze_table(view(addresses), view(classes), view(implied), view(samples), period);
  }
  nb::dict columns;
  const auto sum = [&](const char* name, auto member) {
    columns[name] = column<double>(table.levels, [&](const auto& r) { return r.*member; });
  };
  columns["level"] = column<uint32_t>(table.levels, [](const auto& r) { return r.level; });
  columns["nodes"] = column<uint64_t>(table.levels, [](const auto& r) { return r.nodes; });
  columns["is_scaled"] = column<uint8_t>(table.levels, [](const auto& r) { return r.is_scaled; });
  sum("window", &MemgazeLevel::window);
  sum("footprint", &MemgazeLevel::footprint);
  sum("strided", &MemgazeLevel::strided);
  sum("irregular", &MemgazeLevel::irregular);
  sum("unknown", &MemgazeLevel::unknown);
  sum("constants", &MemgazeLevel::constants);
  columns["samples"] = table.samples;
  columns["accesses"] = table.accesses;
  columns["loads"] = table.loads;
  columns["multiplier"] = table.multiplier;
  return columns;
}

}  // namespace

void bind_locality_trees(nb::module_& module) {
  nb::list kinds;
  for (const char* name : kNodeKindNames) kinds.append(name);
  module.attr("NODE_KINDS") = nb::tuple(kinds);
  nb::class_<IntervalTree>(module, "IntervalTree", "Windows of every size: native/core/locality/interval_tree.h.")
      .def(nb::init<uint64_t, unsigned, unsigned, uint64_t>(), nb::kw_only(), "block_bytes"_a = 64, "leaf_shift"_a = 3,
           "keep_shift"_a = 3, "memory_limit_bytes"_a = std::numeric_limits<uint64_t>::max())
      .def("begin_sample", &IntervalTree::begin_sample)
      .def(
          "add",
          [](IntervalTree& self, const Input<uint64_t>& addresses, const Input<uint8_t>& classes,
             const std::optional<Input<uint32_t>>& functions, const std::optional<Input<uint32_t>>& implied) {
            const auto a = view(addresses);
            const auto c = view(classes);
            const auto f = view(functions);
            const auto i = view(implied);
            if (c.size() != a.size() || (!f.empty() && f.size() != a.size()) || (!i.empty() && i.size() != a.size()))
              throw std::invalid_argument("columns of different lengths");
            nb::gil_scoped_release unlocked;
            self.add(a, c, f, i);
          },
          "addresses"_a, "classes"_a, "functions"_a = nb::none(), "implied"_a = nb::none())
      .def("end_sample", &IntervalTree::end_sample, "executed"_a, "implied"_a = 0)
      .def("finish", &IntervalTree::finish)
      .def("nodes", &node_columns)
      .def("levels", &level_columns)
      .def_prop_ro("memory_bytes", &IntervalTree::memory_bytes);
  module.def("memgaze_table", &memgaze_columns, "addresses"_a, "classes"_a, "implied"_a, "samples"_a, nb::kw_only(),
             "period"_a, "MemGaze's own footprint table: native/core/locality/memgaze_tree.h.");
}
