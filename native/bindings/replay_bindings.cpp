// Python's view of native/core/replay: the walk, faults and their sums as columns, code.
#include "replay_bindings.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <utility>

#include "arrays.h"
#include "replay/replay.h"
#include "trace_bindings.h"

using namespace nb::literals;
using namespace memlens::bindings;
using memlens::replay::ClassifiedFault;
using memlens::replay::Replay;

namespace {

uint32_t stack_weight(uint32_t stack, uint8_t shift) { return stack != 0 ? 1u << std::min<unsigned>(shift, 31) : 0u; }

nb::dict fault_columns(const std::vector<ClassifiedFault>& faults) {
  nb::dict columns;
  columns["time_ns"] = column<uint64_t>(faults, [](const auto& f) { return f.record.time_ns; });
  columns["process"] = column<uint32_t>(faults, [](const auto& f) { return f.process; });
  columns["thread"] = column<uint32_t>(faults, [](const auto& f) { return f.record.thread; });
  columns["address"] = column<uint64_t>(faults, [](const auto& f) { return f.record.address; });
  columns["ip"] = column<uint64_t>(faults, [](const auto& f) { return f.record.ip; });
  columns["cpu"] = column<uint16_t>(faults, [](const auto& f) { return f.record.cpu; });
  columns["class"] = column<uint8_t>(faults, [](const auto& f) { return static_cast<uint8_t>(f.fault_class); });
  columns["area"] = column<uint8_t>(faults, [](const auto& f) { return static_cast<uint8_t>(f.area); });
  columns["span_shift"] = column<uint8_t>(faults, [](const auto& f) { return f.span_shift; });
  columns["new_pages"] = column<uint32_t>(faults, [](const auto& f) { return f.new_pages; });
  columns["inferred"] = column<uint8_t>(faults, [](const auto& f) { return f.inferred; });
  columns["weight"] = column<double>(faults, [](const auto& f) { return static_cast<double>(f.weight); });
  columns["in_kernel"] =
      column<uint8_t>(faults, [](const auto& f) { return (f.record.flags & ML_ENUM_fault_flags_KERNEL_MODE) != 0; });
  columns["node"] = column<int32_t>(faults, [](const auto& f) { return f.node; });
  columns["code"] = column<uint32_t>(faults, [](const auto& f) { return f.code; });
  columns["stack"] = column<uint32_t>(faults, [](const auto& f) { return f.record.stack; });
  columns["stack_weight"] =
      column<uint32_t>(faults, [](const auto& f) { return stack_weight(f.record.stack, f.record.stack_weight_shift); });
  return columns;
}

nb::dict group_columns(const Replay& replay) {
  const auto& groups = replay.groups().groups();
  nb::dict columns;
  columns["process"] = column<uint32_t>(groups, [](const auto& g) { return g.process; });
  columns["thread"] = column<uint32_t>(groups, [](const auto& g) { return g.thread; });
  columns["class"] = column<uint8_t>(groups, [](const auto& g) { return static_cast<uint8_t>(g.fault_class); });
  columns["area"] = column<uint8_t>(groups, [](const auto& g) { return static_cast<uint8_t>(g.area); });
  columns["span_shift"] = column<uint8_t>(groups, [](const auto& g) { return g.span_shift; });
  columns["new_pages"] = column<uint32_t>(groups, [](const auto& g) { return g.new_pages; });
  columns["inferred"] = column<uint8_t>(groups, [](const auto& g) { return g.inferred; });
  columns["in_kernel"] = column<uint8_t>(groups, [](const auto& g) { return g.in_kernel; });
  columns["weight"] = column<double>(groups, [](const auto& g) { return static_cast<double>(g.weight); });
  columns["node"] = column<int32_t>(groups, [](const auto& g) { return g.node; });
  columns["code"] = column<uint32_t>(groups, [](const auto& g) { return g.code; });
  columns["stack"] = column<uint32_t>(groups, [](const auto& g) { return g.stack; });
  columns["stack_weight"] =
      column<uint32_t>(groups, [](const auto& g) { return stack_weight(g.stack, g.stack_weight_shift); });
  columns["rows"] = column<uint64_t>(groups, [](const auto& g) { return g.faults; });
  columns["weights"] = column<double>(groups, [](const auto& g) { return g.weights; });
  return columns;
}

nb::dict in_time_columns(const Replay& replay) {
  const auto& parts = replay.groups().in_time();
  nb::dict columns;
  columns["bin"] = column<uint32_t>(parts, [](const auto& p) { return p.bin; });
  columns["code"] = column<uint32_t>(parts, [](const auto& p) { return p.code; });
  columns["class"] = column<uint8_t>(parts, [](const auto& p) { return static_cast<uint8_t>(p.fault_class); });
  columns["weights"] = column<double>(parts, [](const auto& p) { return p.weights; });
  return columns;
}

nb::dict stacked_columns(const Replay& replay) {
  const auto& faults = replay.groups().stacked();
  nb::dict columns;
  columns["time_ns"] = column<uint64_t>(faults, [](const auto& f) { return f.time_ns; });
  columns["process"] = column<uint32_t>(faults, [](const auto& f) { return f.process; });
  columns["thread"] = column<uint32_t>(faults, [](const auto& f) { return f.thread; });
  columns["code"] = column<uint32_t>(faults, [](const auto& f) { return f.code; });
  columns["stack"] = column<uint32_t>(faults, [](const auto& f) { return f.stack; });
  columns["class"] = column<uint8_t>(faults, [](const auto& f) { return static_cast<uint8_t>(f.fault_class); });
  return columns;
}

nb::dict placed_columns(const Replay& replay) {
  const auto& runs = replay.classifier().placed();
  nb::dict columns;
  columns["process"] = column<uint32_t>(runs, [](const auto& r) { return r.process; });
  columns["begin_ns"] = column<uint64_t>(runs, [](const auto& r) { return r.begin_ns; });
  columns["end_ns"] = column<uint64_t>(runs, [](const auto& r) { return r.end_ns; });
  columns["address"] = column<uint64_t>(runs, [](const auto& r) { return r.address; });
  columns["pages"] = column<uint64_t>(runs, [](const auto& r) { return r.pages; });
  columns["huge"] = column<uint8_t>(runs, [](const auto& r) { return r.huge; });
  columns["moved"] = column<uint8_t>(runs, [](const auto& r) { return r.moved; });
  columns["before"] = column<uint8_t>(runs, [](const auto& r) { return r.before; });
  columns["sampled"] = column<uint8_t>(runs, [](const auto& r) { return r.sampled; });
  columns["area"] = column<uint8_t>(runs, [](const auto& r) { return static_cast<uint8_t>(r.area); });
  return columns;
}

nb::dict code_columns(const Replay& replay) {
  const auto& codes = replay.code().codes();
  nb::dict columns;
  columns["path"] = column<uint32_t>(codes, [](const auto& c) { return c.path; });
  columns["process"] = column<uint32_t>(codes, [](const auto& c) { return c.process; });
  columns["address"] = column<uint64_t>(codes, [](const auto& c) { return c.address; });
  columns["time_ns"] = column<uint64_t>(codes, [](const auto& c) { return c.time_ns; });
  columns["executable"] = column<uint8_t>(codes, [](const auto& c) { return c.executable; });
  columns["inode"] = column<uint64_t>(codes, [](const auto& c) { return c.inode; });
  return columns;
}

nb::object codes_at(const Replay& self, const Input<uint32_t>& processes, const Input<uint64_t>& pcs,
                    const Input<uint64_t>& times) {
  if (pcs.size() != times.size() || processes.size() != pcs.size())
    throw nb::value_error("processes, pcs and times have one length");
  std::vector<uint32_t> codes(pcs.size());
  for (size_t i = 0; i < codes.size(); ++i)
    codes[i] = self.code().code_index().find(processes.data()[i], pcs.data()[i], times.data()[i]);
  return owned(std::move(codes));
}

nb::list sampled_stretches(const Replay& self) {
  nb::list found;
  for (const auto& s : self.classifier().sampled_stretches())
    found.append(nb::make_tuple(s.begin_ns, s.end_ns, s.weight));
  return found;
}

// Calls `add(engine, process, bytes)` without the interpreter's lock.
template <typename Add>
auto adder(Add add) {
  return [add](Replay& self, uint32_t process, const nb::bytes& payload) {
    const auto bytes = view(payload);
    nb::gil_scoped_release unlocked;
    return add(self, process, bytes);
  };
}

}  // namespace

void bind_replay(nb::module_& module) {
  nb::list classes, areas;
  for (const char* name : memlens::replay::kFaultClassNames) classes.append(name);
  for (const char* name : memlens::replay::kAreaKindNames) areas.append(name);
  module.attr("FAULT_CLASSES") = nb::tuple(classes);
  module.attr("AREA_KINDS") = nb::tuple(areas);

  nb::class_<Replay>(module, "Replay")
      .def(
          "__init__",
          [](Replay* self, unsigned page_shift, bool numa_balancing) {
            new (self) Replay({.page_shift = page_shift, .numa_balancing = numa_balancing});
          },
          nb::kw_only(), "page_shift"_a = 12, "numa_balancing"_a = false)
      .def("add_strings", [](Replay& self, const nb::bytes& b) { self.spaces().add_strings(view(b)); })
      .def("add_stacks", [](Replay& self, const nb::bytes& b) { self.code().add_stacks(view(b)); })
      .def("add_process_events", adder([](Replay& r, uint32_t p, auto b) { r.spaces().add_process_events(p, b); }))
      .def("add_mappings", adder([](Replay& r, uint32_t p, auto b) { r.spaces().add_mappings(p, b); }))
      .def("add_tags", adder([](Replay& r, uint32_t p, auto b) { r.spaces().add_tags(p, b); }))
      .def("note_allocations", adder([](Replay& r, uint32_t p, auto b) { return r.note_allocations(p, b); }),
           "Stacks and resized objects of allocations; gives whether there are calls for add_calls.")
      .def("add_calls", adder([](Replay& r, uint32_t p, auto b) { r.add_calls(p, b); }))
      .def("add_residency", adder([](Replay& r, uint32_t p, auto b) { r.add_residency(p, b); }))
      .def("add_placements", adder([](Replay& r, uint32_t p, auto b) { r.add_placements(p, b); }))
      .def("add_fault_levels", [](Replay& self, const nb::bytes& b) { self.classifier().add_fault_levels(view(b)); })
      .def(
          "add_shared_before",
          [](Replay& self, uint32_t device_major, uint32_t device_minor, uint64_t inode, uint64_t offset,
             uint64_t bytes) { self.classifier().add_shared_before(device_major, device_minor, inode, offset, bytes); },
          nb::kw_only(), "device_major"_a, "device_minor"_a, "inode"_a, "offset"_a, "bytes"_a)
      .def("add_code_counts", adder([](Replay& r, uint32_t p, auto b) { r.code().add_code_counts(p, b); }))
      .def("add_page_counts", adder([](Replay& r, uint32_t p, auto b) { r.code().add_page_counts(p, b); }))
      .def("add_unseen", adder([](Replay& r, uint32_t p, auto b) { r.code().add_unseen(p, b); }))
      .def("add_windows", adder([](Replay& r, uint32_t p, auto b) { add_windows(r.code(), p, b); }))
      .def(
          "add_faults",
          [](Replay& self, uint32_t p, const nb::bytes& b, uint32_t arrival) {
            const auto bytes = view(b);
            nb::gil_scoped_release unlocked;
            self.add_faults(p, bytes, arrival);
          },
          "process"_a, "payload"_a, "arrival"_a = 0)
      .def(
          "add_sampled_faults",
          [](Replay& self, uint32_t p, const nb::bytes& b, uint32_t arrival) {
            const auto bytes = view(b);
            nb::gil_scoped_release unlocked;
            self.add_sampled_faults(p, bytes, arrival);
          },
          "process"_a, "payload"_a, "arrival"_a = UINT32_MAX)
      .def(
          "group",
          [](Replay& self, uint64_t begin_ns, const std::vector<double>& edges_s) { self.group({begin_ns, edges_s}); },
          nb::kw_only(), "begin_ns"_a, "edges_s"_a, "Sums of faults instead of the faults: see groups and in_time.")
      .def("begin", &Replay::begin, nb::call_guard<nb::gil_scoped_release>())
      .def("advance", &Replay::advance, "before_ns"_a, nb::call_guard<nb::gil_scoped_release>(),
           "Walks up to a time before which no fault is to come.")
      .def("finish", &Replay::finish, nb::call_guard<nb::gil_scoped_release>())
      .def("run", &Replay::run, nb::call_guard<nb::gil_scoped_release>())
      .def("restart", &Replay::restart, "Faults can be added again, to be taken; code keeps its numbers.")
      .def_prop_ro("waiting", &Replay::waiting)
      .def(
          "take", [](Replay& self) { return fault_columns(self.take()); },
          "Columns of the faults classed since the last take.")
      .def("groups", &group_columns)
      .def("in_time", &in_time_columns)
      .def("stacked", &stacked_columns, "The faults that have a call stack.")
      .def("placed", &placed_columns)
      .def_prop_ro("own_faults", &Replay::own_faults)
      .def_prop_ro("sampled_stretches", &sampled_stretches,
                   "(begin_ns, end_ns, weight) of each stretch in which faults were sampled")
      .def_prop_ro("unread_look_pages", [](const Replay& self) { return self.classifier().unread_look_pages(); })
      .def("codes", &code_columns)
      .def("codes_at", &codes_at, "processes"_a, "pcs"_a, "times"_a,
           "Code at each instruction pointer and time that a record named, 2^32 - 1 = none.")
      .def("stacks", [](const Replay& self) { return self.code().stacks(); });
}
