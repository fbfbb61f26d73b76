// Python's view of native/recorder: sessions, the gated child, probes, clocks.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "memlens_session.h"
#include "os_text.h"
#include "peaks_bindings.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

void raise_os_error(int error, const std::string& step) {
  PyErr_SetObject(PyExc_OSError, nb::make_tuple(error, std::string(strerror(error)), step).ptr());
  throw nb::python_error();
}

// Its bytes are the session's own, not a copy: it has the buffer protocol.
struct Batch {
  uint16_t kind;
  uint32_t process, record_count;
  uint64_t dropped, begin_ns, end_ns;
  std::unique_ptr<unsigned char, decltype(&ml_batch_data_free)> data;
  size_t bytes;
};

int buffer_of_batch(PyObject* self, Py_buffer* buffer, int flags) {
  Batch* batch = nb::inst_ptr<Batch>(nb::handle(self));
  static unsigned char none;
  return PyBuffer_FillInfo(buffer, self, batch->data != nullptr ? batch->data.get() : &none,
                           static_cast<Py_ssize_t>(batch->bytes), 1, flags);
}

PyType_Slot batch_slots[] = {{Py_bf_getbuffer, reinterpret_cast<void*>(buffer_of_batch)}, {0, nullptr}};

class Channel {
 public:
  Channel(uint64_t sample_bytes, uint64_t large_bytes, bool alloc, bool annotations, uint32_t wait_ms,
          uint64_t ring_bytes, uint32_t ring_count, uint32_t slot_max, bool windows, double budget_share) {
    const ml_channel_options options{.sample_bytes = sample_bytes,
                                     .large_bytes = large_bytes,
                                     .ring_bytes = ring_bytes,
                                     .ring_count = ring_count,
                                     .slot_max = slot_max,
                                     .wait_ms = wait_ms,
                                     .budget_ppm = static_cast<uint32_t>(std::clamp(budget_share, 0.0, 1.0) * 1e6),
                                     .alloc = alloc,
                                     .annotations = annotations,
                                     .windows = windows};
    channel_.reset(ml_channel_new(&options));
    if (!channel_) raise_os_error(errno, "making the memory file for the program's records");
  }
  std::string value() const { return ml_channel_value(channel_.get()); }
  ml_channel* get() const { return channel_.get(); }

  nb::dict counts() {
    ml_channel_counts counts{};
    ml_channel_get_counts(channel_.get(), &counts);
    nb::dict result;
    result["processes"] = counts.processes;
    result["refused"] = counts.refused;
    result["left_out"] = counts.left_out;
    result["records"] = counts.records;
    result["dropped"] = counts.dropped;
    result["damaged"] = counts.damaged;
    result["holes"] = counts.holes;
    result["nested"] = counts.nested;
    result["untracked"] = counts.untracked;
    result["other_malloc"] = counts.other_malloc;
    result["waits"] = counts.waits;
    result["waited_ns"] = counts.waited_ns;
    result["stacks"] = counts.stacks;
    result["cpu_ns"] = counts.cpu_ns;
    return result;
  }

 private:
  struct Free {
    void operator()(ml_channel* channel) const {
      nb::gil_scoped_release unlocked;
      ml_channel_free(channel);
    }
  };
  std::unique_ptr<ml_channel, Free> channel_;
};

class Session {
 public:
  Session(bool faults, bool fault_before, bool include_kernel, int stack_mode, uint32_t stack_dump_bytes,
          uint64_t ring_bytes, uint64_t queue_bytes, double timeline_hz, bool emulated, double budget_share) {
    const ml_session_options options{.faults = faults,
                                     .fault_before = fault_before,
                                     .include_kernel = include_kernel,
                                     .stack_mode = stack_mode,
                                     .stack_dump_bytes = stack_dump_bytes,
                                     .ring_bytes = ring_bytes,
                                     .queue_bytes = queue_bytes,
                                     .timeline_hz = timeline_hz,
                                     .budget_share = budget_share,
                                     .emulated = emulated};
    session_.reset(ml_session_new(&options));
    if (!session_) throw std::bad_alloc();
  }

  void use_channel(const Channel& channel) { ml_session_use_channel(session_.get(), channel.get()); }

  void attach(int pid, bool enable_on_exec) {
    const int status = ml_session_attach(session_.get(), pid, enable_on_exec);
    if (status != 0) raise_os_error(-status, ml_session_failed_step(session_.get()));
  }
  void start() {
    const int status = ml_session_start(session_.get());
    if (status != 0) raise_os_error(-status, "starting the drain thread");
  }
  void stop() {
    nb::gil_scoped_release unlocked;
    ml_session_stop(session_.get());
  }
  // What recording a fault costs at each level in nanoseconds, measured when the session started; None: not measured.
  std::optional<std::tuple<double, double, double>> fault_costs() const {
    ml_session_counts counts{};
    ml_session_get_counts(session_.get(), &counts);
    if (counts.fault_cost_ns[0] <= 0) return std::nullopt;
    return std::tuple{counts.fault_cost_ns[0], counts.fault_cost_ns[1], counts.fault_cost_ns[2]};
  }
  void note_exit(int pid, int status) { ml_session_note_exit(session_.get(), pid, status); }

  nb::list take() {
    ml_batch* first = nullptr;
    {
      nb::gil_scoped_release unlocked;
      first = ml_session_take(session_.get());
    }
    nb::list batches;
    for (ml_batch* at = first; at != nullptr; at = at->next) {
      auto batch = std::make_unique<Batch>(Batch{at->kind,
                                                 at->process,
                                                 at->record_count,
                                                 at->dropped,
                                                 at->begin_ns,
                                                 at->end_ns,
                                                 {static_cast<unsigned char*>(at->data), &ml_batch_data_free},
                                                 at->bytes});
      at->data = nullptr;
      batches.append(nb::cast(batch.release(), nb::rv_policy::take_ownership));
    }
    ml_batches_free(first);
    return batches;
  }

  uint32_t string(const std::string& text) { return ml_session_string(session_.get(), text.data(), text.size()); }

  nb::list processes() {
    std::vector<ml_process_info> infos(64);
    size_t count = ml_session_processes(session_.get(), infos.data(), infos.size());
    if (count > infos.size()) {
      infos.resize(count + 64);
      count = std::min(ml_session_processes(session_.get(), infos.data(), infos.size()), infos.size());
    }
    nb::list result;
    for (size_t i = 0; i < count; i++)
      result.append(
          nb::make_tuple(infos[i].process, infos[i].pid, infos[i].mappings_changed, infos[i].execs,
                         static_cast<int64_t>(infos[i].kernel_faults) - static_cast<int64_t>(infos[i].fault_events)));
    return result;
  }

  size_t ask_nodes(uint32_t process, const std::vector<uint64_t>& pages, uint64_t evidence_ns) {
    return ml_session_ask_nodes(session_.get(), process, pages.data(), pages.size(), evidence_ns);
  }

  nb::tuple resolve_nodes(uint64_t budget_ns) {
    uint64_t skipped = 0;
    size_t asked = 0;
    {
      nb::gil_scoped_release unlocked;
      asked = ml_session_resolve_nodes(session_.get(), budget_ns, &skipped);
    }
    return nb::make_tuple(asked, skipped);
  }

  nb::dict facts() {
    ml_session_facts facts{};
    ml_session_get_facts(session_.get(), &facts);
    nb::dict result;
    result["cpus"] = facts.cpus;
    result["events"] = facts.events;
    result["ring_bytes"] = facts.ring_bytes;
    result["include_kernel"] = facts.include_kernel != 0;
    result["page_size_known"] = facts.page_size_known != 0;
    result["lost_readable"] = facts.lost_readable != 0;
    return result;
  }

  nb::dict counts() {
    ml_session_counts counts{};
    ml_session_get_counts(session_.get(), &counts);
    nb::dict result;
    result["faults"] = counts.faults;
    result["stacks"] = counts.stacks;
    result["stacks_unmatched"] = counts.stacks_unmatched;
    result["ring_lost"] = counts.ring_lost;
    result["event_lost"] = counts.event_lost;
    result["queue_dropped"] = counts.queue_dropped;
    result["unpaired"] = counts.unpaired;
    result["throttled"] = counts.throttled;
    result["unknown_records"] = counts.unknown_records;
    result["timeline_ticks"] = counts.timeline_ticks;
    result["timeline_late_ticks"] = counts.timeline_late_ticks;
    result["drain_cpu_ns"] = counts.drain_cpu_ns;
    result["processes"] = counts.processes;
    result["sampled_faults"] = counts.sampled_faults;
    result["stack_faults"] = counts.stack_faults;
    result["level_changes"] = counts.level_changes;
    return result;
  }

 private:
  struct Free {
    void operator()(ml_session* session) const {
      nb::gil_scoped_release unlocked;
      ml_session_free(session);
    }
  };
  std::unique_ptr<ml_session, Free> session_;
};

class Child {
 public:
  Child(const std::vector<OsText>& command, const std::optional<OsText>& directory,
        const std::vector<OsText>& environment, const std::optional<OsText>& launcher) {
    std::vector<char*> argv;
    for (const OsText& word : command) argv.push_back(const_cast<char*>(word.bytes.c_str()));
    argv.push_back(nullptr);
    std::vector<char*> variables;
    for (const OsText& variable : environment) variables.push_back(const_cast<char*>(variable.bytes.c_str()));
    variables.push_back(nullptr);
    const int status = ml_child_spawn(&child_, argv.data(), directory ? directory->bytes.c_str() : nullptr,
                                      variables.data(), launcher ? launcher->bytes.c_str() : nullptr);
    if (status != 0) raise_os_error(-status, "fork");
  }
  int pid() const { return child_.pid; }
  int go() {
    nb::gil_scoped_release unlocked;
    return ml_child_go(&child_);
  }
  void abandon() {
    nb::gil_scoped_release unlocked;
    ml_child_abandon(&child_);
  }

 private:
  ml_child child_{};
};

class PageTable {
 public:
  explicit PageTable(int pid) : table_(ml_page_table_new(pid)) {
    if (!table_) throw std::bad_alloc();
  }
  // Residency records as bytes, ready for the writer.
  nb::bytes look() {
    ml_residency* records = nullptr;
    ssize_t count = 0;
    {
      nb::gil_scoped_release unlocked;
      count = ml_page_table_look(table_.get(), &records);
    }
    if (count < 0) raise_os_error(static_cast<int>(-count), "reading the page table");
    nb::bytes result(reinterpret_cast<const char*>(records), static_cast<size_t>(count) * sizeof *records);
    free(records);
    return result;
  }

 private:
  struct Free {
    void operator()(ml_page_table* table) const { ml_page_table_free(table); }
  };
  std::unique_ptr<ml_page_table, Free> table_;
};

nb::dict probe() {
  ml_probe_result result{};
  ml_probe(&result);
  nb::dict facts;
  facts["fault_event_errno"] = result.fault_event_errno;
  facts["fault_kernel_errno"] = result.fault_kernel_errno;
  facts["hardware_event_errno"] = result.hardware_event_errno;
  facts["page_size_errno"] = result.page_size_errno;
  facts["ring_errno"] = result.ring_errno;
  facts["pagemap_errno"] = result.pagemap_errno;
  facts["move_pages_errno"] = result.move_pages_errno;
  facts["seccomp_mode"] = result.seccomp_mode;
  return facts;
}

nb::bytes clock_pairs() {
  ml_clock_reading readings[8];
  const size_t count = ml_clock_pairs(readings, 8);
  std::string payload;
  for (size_t i = 0; i < count; i++) {
    const ml_clock_pair record{.monotonic_ns = readings[i].monotonic_ns,
                               .ticks = readings[i].ticks,
                               .uncertainty_ns = readings[i].uncertainty_ns,
                               .ticks_per_second = readings[i].ticks_per_second,
                               .clock = readings[i].clock,
                               .cpu = readings[i].cpu,
                               .reserved = 0};
    payload.append(reinterpret_cast<const char*>(&record), sizeof record);
  }
  return nb::bytes(payload.data(), payload.size());
}

}  // namespace

NB_MODULE(_recorder, module) {
  nb::set_leak_warnings(false);  // what lives at exit is not a leak
  module.doc() = "perf sessions, /proc readers and probes of memlens; used by memlens.collect only.";
  nb::class_<Batch>(module, "Batch", nb::type_slots(batch_slots))
      .def_ro("kind", &Batch::kind)
      .def_ro("process", &Batch::process)
      .def_ro("record_count", &Batch::record_count)
      .def_ro("dropped", &Batch::dropped)
      .def_ro("begin_ns", &Batch::begin_ns)
      .def_ro("end_ns", &Batch::end_ns)
      .def("__len__", [](const Batch& self) { return self.bytes; })
      .def_prop_ro(
          "payload",
          [](const Batch& self) { return nb::bytes(reinterpret_cast<const char*>(self.data.get()), self.bytes); },
          "A copy of its bytes.");
  nb::class_<Channel>(module, "Channel")
      .def(nb::init<uint64_t, uint64_t, bool, bool, uint32_t, uint64_t, uint32_t, uint32_t, bool, double>(),
           nb::kw_only(), "sample_bytes"_a, "large_bytes"_a, "alloc"_a = true, "annotations"_a = true,
           "wait_ms"_a = 2000, "ring_bytes"_a = 0, "ring_count"_a = 0, "slot_max"_a = 0, "windows"_a = false,
           "budget_share"_a = 0.0)
      .def_prop_ro("value", &Channel::value, "The environment variable that leads processes here.")
      .def("counts", &Channel::counts);
  nb::class_<Session>(module, "Session")
      .def(nb::init<bool, bool, bool, int, uint32_t, uint64_t, uint64_t, double, bool, double>(), nb::kw_only(),
           "faults"_a, "fault_before"_a = true, "include_kernel"_a = true, "stack_mode"_a = 1,
           "stack_dump_bytes"_a = 8192, "ring_bytes"_a = 0, "queue_bytes"_a = 0, "timeline_hz"_a = 10.0,
           "emulated"_a = false, "budget_share"_a = 0.0)
      .def("use_channel", &Session::use_channel, "channel"_a, nb::keep_alive<1, 2>())
      .def("attach", &Session::attach, "pid"_a, nb::kw_only(), "enable_on_exec"_a)
      .def("start", &Session::start)
      .def("stop", &Session::stop)
      .def("fault_costs", &Session::fault_costs)
      .def("note_exit", &Session::note_exit, "pid"_a, "status"_a)
      .def("take", &Session::take, nb::sig("def take(self) -> list[Batch]"))
      .def("string", &Session::string, "text"_a)
      .def("processes", &Session::processes,
           "(process, pid, mappings_changed, execs, faults without an event) of each process that is alive")
      .def("ask_nodes", &Session::ask_nodes, "process"_a, "pages"_a, "evidence_ns"_a,
           "queues pages for resolve_nodes; how many found room")
      .def("resolve_nodes", &Session::resolve_nodes, "budget_ns"_a, "pages asked and pages skipped so far")
      .def("facts", &Session::facts)
      .def("counts", &Session::counts);
  nb::class_<Child>(module, "Child")
      .def(nb::init<const std::vector<OsText>&, const std::optional<OsText>&, const std::vector<OsText>&,
                    const std::optional<OsText>&>(),
           "command"_a, "directory"_a = nb::none(), "environment"_a = std::vector<OsText>{}, "launcher"_a = nb::none())
      .def_prop_ro("pid", &Child::pid)
      .def("go", &Child::go, "Lets the child exec; returns 0 or the errno of exec.")
      .def("abandon", &Child::abandon);
  nb::class_<PageTable>(module, "PageTable")
      .def(nb::init<int>(), "pid"_a)
      .def("look", &PageTable::look, "Residency records of pages that are new since the last look.");
  module.def("probe", &probe);
  module.def("clock_pairs", &clock_pairs);
  module.def("monotonic_ns", &ml_monotonic_ns);
  module.def("counter_add_ps", &ml_counter_add_ps);
  bind_peaks(module);
}
