// Python's view of native/core/importing.
//
// A reader of one format owns its sink: Python feeds it blocks of a file and takes full chunks, so that neither
// side ever holds more than a few megabytes of a trace.
#include "importing_bindings.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <span>
#include <tuple>
#include <vector>

#include "arrays.h"
#include "importing/drmemtrace.h"
#include "importing/lackey.h"
#include "importing/memgaze.h"
#include "importing/pt_packets.h"
#include "importing/ptwrite.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using namespace memlens::bindings;
using namespace memlens::importing;

nb::bytes text_of(const std::string& text) { return nb::bytes(text.data(), text.size()); }

// A reader with the sink that it writes to.
template <typename Reader>
struct Import {
  template <typename... Arguments>
  explicit Import(Arguments... arguments) : reader(sink, arguments...) {}
  Import(const Import&) = delete;  // the reader points to the sink
  Import& operator=(const Import&) = delete;
  ChunkSink sink;
  Reader reader;
};

// Chunks of window records that are ready: (process, payload, records, begin_ns, end_ns) each.
nb::list listed(const std::vector<ImportedChunk>& made) {
  nb::list chunks;
  for (const auto& chunk : made)
    chunks.append(nb::make_tuple(chunk.process,
                                 nb::bytes(reinterpret_cast<const char*>(chunk.payload.data()), chunk.payload.size()),
                                 chunk.records, chunk.begin_ns, chunk.end_ns));
  return chunks;
}

nb::list take(ChunkSink& sink, bool is_end) {
  if (is_end) sink.flush();
  return listed(sink.take());
}

// (line, beginning of it, what was expected) of the first line that could not be read.
nb::object first_fault(const LineFaults& faults) {
  if (!faults.first) return nb::none();
  return nb::make_tuple(faults.first->line, text_of(faults.first->text), faults.first->expected);
}

// What all readers have.
template <typename Reader>
void bind_common(nb::class_<Import<Reader>>& bound) {
  using Bound = Import<Reader>;
  bound
      .def(
          "feed",
          [](Bound& self, const nb::bytes& block) {
            const auto bytes = view(block);
            nb::gil_scoped_release unlocked;
            return self.reader.feed(bytes);
          },
          "block"_a, "The next block of the file; False when it cannot be read further.")
      .def(
          "take", [](Bound& self, bool is_end) { return take(self.sink, is_end); }, nb::kw_only(), "end"_a = false,
          "Chunks that are full, all of them at the end: (process, payload, records, begin_ns, end_ns) each.")
      .def_prop_ro("windows", [](const Bound& self) { return self.sink.windows(); })
      .def_prop_ro("accesses", [](const Bound& self) { return self.sink.accesses(); })
      .def_prop_ro("stream_bytes", [](const Bound& self) { return self.sink.stream_bytes(); })
      .def_prop_ro("first_ns", [](const Bound& self) { return self.sink.first_ns(); })
      .def_prop_ro("last_ns", [](const Bound& self) { return self.sink.last_ns(); });
}

template <typename Reader>
void bind_lines(nb::class_<Import<Reader>>& bound) {
  using Bound = Import<Reader>;
  bound
      .def("finish",
           [](Bound& self) {
             nb::gil_scoped_release unlocked;
             return self.reader.finish();
           })
      .def_prop_ro("lines", [](const Bound& self) { return self.reader.lines().lines(); })
      .def_prop_ro(
          "ended_early", [](const Bound& self) { return self.reader.lines().ended_early(); },
          "The last line has no end.")
      .def_prop_ro("malformed", [](const Bound& self) { return self.reader.faults().skipped; })
      .def_prop_ro("first_malformed", [](const Bound& self) { return first_fault(self.reader.faults()); });
}

void bind_lackey(nb::module_& module) {
  using Bound = Import<LackeyImport>;
  nb::class_<Bound> bound(module, "LackeyImport");
  bound.def(nb::init<uint32_t, bool>(), nb::kw_only(), "process"_a, "skip_malformed"_a = false);
  bind_common(bound);
  bind_lines(bound);
  bound.def("code_counts", [](const Bound& self) { return listed(self.reader.code_counts()); })
      .def_prop_ro("instructions", [](const Bound& self) { return self.reader.instructions(); })
      .def_prop_ro("loads", [](const Bound& self) { return self.reader.loads(); })
      .def_prop_ro("stores", [](const Bound& self) { return self.reader.stores(); })
      .def_prop_ro("pids", [](const Bound& self) { return self.reader.pids(); })
      .def_prop_ro("command", [](const Bound& self) { return text_of(self.reader.command()); });
}

void bind_memgaze(nb::module_& module) {
  using Bound = Import<MemgazeImport>;
  nb::class_<Bound> bound(module, "MemgazeImport");
  bound.def(nb::init<uint32_t, uint64_t, bool>(), nb::kw_only(), "process"_a, "period"_a = 0,
            "skip_malformed"_a = false);
  bind_common(bound);
  bind_lines(bound);
  bound
      .def(
          "set_site",
          [](Bound& self, uint64_t pc, uint32_t implied_constants, bool is_store, bool is_scaled) {
            self.reader.set_site(pc, implied_constants, is_store, is_scaled);
          },
          "pc"_a, nb::kw_only(), "implied_constants"_a, "is_store"_a, "is_scaled"_a = false)
      .def_prop_ro("scaled", [](const Bound& self) { return self.reader.scaled(); })
      .def_prop_ro("samples", [](const Bound& self) { return self.reader.samples(); })
      .def_prop_ro("implied_constants", [](const Bound& self) { return self.reader.implied_constants(); })
      .def_prop_ro("without_class", [](const Bound& self) { return self.reader.without_class(); })
      .def_prop_ro("backwards", [](const Bound& self) { return self.reader.backwards(); })
      .def_prop_ro("cpus", [](const Bound& self) { return self.reader.cpus(); })
      .def_prop_ro("mixes_modules", [](const Bound& self) { return self.reader.mixes_modules(); })
      .def_prop_ro("modules", [](const Bound& self) {
        nb::list modules;
        for (const auto& [path, number] : self.reader.modules()) modules.append(nb::make_tuple(text_of(path), number));
        return modules;
      });
}

void bind_drmemtrace(nb::module_& module) {
  using Bound = Import<DrmemtraceImport>;
  nb::class_<Bound> bound(module, "DrmemtraceImport");
  bound.def(nb::init<uint32_t>(), nb::kw_only(), "first_process"_a = 1);
  bind_common(bound);
  bound.def("code_counts", [](const Bound& self) { return listed(self.reader.code_counts()); })
      .def_prop_ro("is_filtered", [](const Bound& self) { return self.reader.is_filtered(); })
      .def("begin_file", [](Bound& self) { self.reader.begin_file(); })
      .def(
          "end_file", [](Bound& self) { return self.reader.end_file(); },
          "False when the file had not one whole entry.")
      .def_prop_ro("fault",
                   [](const Bound& self) -> nb::object {
                     const auto& fault = self.reader.fault();
                     return fault ? nb::object(nb::make_tuple(fault->byte, fault->text)) : nb::none();
                   })
      .def_prop_ro("has_footer", [](const Bound& self) { return self.reader.has_footer(); })
      .def_prop_ro("left_bytes", [](const Bound& self) { return self.reader.left_bytes(); })
      .def_prop_ro("version", [](const Bound& self) { return self.reader.version(); })
      .def_prop_ro("file_type", [](const Bound& self) { return self.reader.file_type(); })
      .def_prop_ro("instructions", [](const Bound& self) { return self.reader.instructions(); })
      .def_prop_ro("loads", [](const Bound& self) { return self.reader.loads(); })
      .def_prop_ro("stores", [](const Bound& self) { return self.reader.stores(); })
      .def_prop_ro("prefetches", [](const Bound& self) { return self.reader.prefetches(); })
      .def_prop_ro("flushes", [](const Bound& self) { return self.reader.flushes(); })
      .def_prop_ro("gaps", [](const Bound& self) { return self.reader.gaps(); })
      .def_prop_ro("threads", [](const Bound& self) {
        nb::list threads;
        for (const auto& thread : self.reader.threads())
          threads.append(
              nb::make_tuple(thread.process, thread.pid, thread.tid, thread.first_ns, thread.last_ns, thread.accesses));
        return threads;
      });
}

// The clock of a Processor Trace as Python gives it: (time_zero, time_mult, time_shift, tsc_ticks, ctc_ticks, mtc_shift).
using ClockNumbers = std::tuple<uint64_t, uint32_t, uint16_t, uint32_t, uint32_t, uint8_t>;

PtClock clock_of(const ClockNumbers& n) {
  return {std::get<0>(n), std::get<1>(n), std::get<2>(n), std::get<3>(n), std::get<4>(n), std::get<5>(n)};
}

nb::dict counts_of(const PtWriteImport::Counts& counts) {
  nb::dict made;
  made["packets"] = counts.packets;
  made["writes"] = counts.writes;
  made["without_ip"] = counts.without_ip;
  made["overflows"] = counts.overflows;
  made["damaged"] = counts.damaged;
  made["breaks"] = counts.breaks;
  made["switched_off"] = counts.switched_off;
  made["skipped_bytes"] = counts.skipped_bytes;
  made["left_bytes"] = counts.left_bytes;
  made["unknown_thread"] = counts.unknown_thread;
  made["without_time"] = counts.without_time;
  return made;
}

void bind_ptwrite(nb::module_& module) {
  using Bound = Import<PtWriteImport>;
  nb::class_<Bound> bound(module, "PtWriteImport");
  bound.def(
      "__init__", [](Bound* self, const ClockNumbers& clock) { new (self) Bound(clock_of(clock)); }, nb::kw_only(),
      "clock"_a);
  bind_common(bound);
  bound
      .def(
          "begin_stream",
          [](Bound& self, uint32_t cpu, uint32_t process, uint32_t thread) {
            self.reader.begin_stream(cpu, process, thread);
          },
          nb::kw_only(), "cpu"_a, "process"_a, "thread"_a)
      .def(
          "add_switch",
          [](Bound& self, uint64_t time_ns, uint32_t process, uint32_t thread) {
            self.reader.add_switch(time_ns, process, thread);
          },
          "time_ns"_a, "process"_a, "thread"_a)
      .def(
          "break_stream", [](Bound& self, bool lost) { self.reader.break_stream(lost); }, nb::kw_only(), "lost"_a)
      .def("end_stream", [](Bound& self) { self.reader.end_stream(); })
      .def_prop_ro("counts", [](const Bound& self) { return counts_of(self.reader.counts()); })
      .def(
          "take_losses",
          [](Bound& self) {
            nb::list losses;
            for (const auto& loss : self.reader.take_losses())
              losses.append(nb::make_tuple(loss.begin_ns, loss.end_ns, loss.cpu));
            return losses;
          },
          "(begin_ns, end_ns, cpu) of holes whose end is known.")
      .def_prop_ro("threads", [](const Bound& self) {
        nb::list threads;
        for (const auto& thread : self.reader.threads())
          threads.append(
              nb::make_tuple(thread.process, thread.thread, thread.first_ns, thread.last_ns, thread.accesses));
        return threads;
      });
  module.def(
      "pt_packets",
      [](const nb::bytes& stream) {
        nb::list packets;
        PtBlockState block;
        auto left = view(stream);
        while (!left.empty()) {
          const PtPacket packet = next_packet(left, block);
          packets.append(nb::make_tuple(static_cast<int>(packet.kind), packet.bytes, packet.payload, packet.has_ip));
          if (packet.kind == PtKind::kShort || packet.kind == PtKind::kUnknown) break;
          left = left.subspan(packet.bytes);
        }
        return packets;
      },
      "stream"_a,
      "(kind, bytes, payload, has_ip) of each packet of a Processor Trace that begins with a whole packet.");
}

}  // namespace

void bind_importing(nb::module_& module) {
  bind_lackey(module);
  bind_memgaze(module);
  bind_drmemtrace(module);
  bind_ptwrite(module);
}
