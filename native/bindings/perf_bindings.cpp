// Python's view of native/perf: the events, records and samples of a perf.data file.
#include "perf_bindings.h"

#include <nanobind/stl/vector.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <exception>
#include <vector>

#include "memlens_perf.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace memlens::bindings {
namespace {

// What Python gets of a file that cannot be read: PerfFileError(name of the error, byte, first bytes of the file).
struct PerfFileError : std::exception {};
nb::handle perf_file_error;

struct PerfFailure {
  mp_file_error error;
  uint64_t at;
  nb::bytes head;
};

const char* name_of(mp_file_error error) {
  switch (error) {
    case MP_FILE_FINE: return "fine";
    case MP_FILE_READ: return "read";
    case MP_FILE_MAGIC: return "magic";
    case MP_FILE_SHORT: return "short";
    case MP_FILE_UNFINISHED: return "unfinished";
    case MP_FILE_EVENTS: return "events";
    case MP_FILE_RECORD: return "record";
    case MP_FILE_COMPRESSED: return "compressed";
    case MP_FILE_MEMORY: return "memory";
  }
  return "unknown";
}

class PerfFile {
 public:
  explicit PerfFile(int fd) {
    const mp_file_error error = mp_file_open(&file_, fd);
    if (error != MP_FILE_FINE) {
      // The destructor does not run for an object whose constructor throws.
      const PerfFailure failure = failure_of(error);
      mp_file_close(&file_);
      fail(failure);
    }
  }
  ~PerfFile() { mp_file_close(&file_); }
  PerfFile(const PerfFile&) = delete;
  PerfFile& operator=(const PerfFile&) = delete;

  nb::list events() const {
    nb::list found;
    for (size_t e = 0; e < file_.event_count; e++) {
      const mp_attr& attr = file_.events[e].attr;
      nb::dict event;
      event["type"] = attr.type;
      event["config"] = attr.config;
      event["config1"] = attr.config1;
      event["config2"] = attr.config2;
      event["sample_period"] = attr.sample_period;
      event["is_frequency"] = attr.is_frequency;
      event["sample_type"] = attr.sample_type;
      event["read_format"] = attr.read_format;
      event["sample_id_all"] = attr.sample_id_all;
      event["ids"] = std::vector<uint64_t>(file_.events[e].ids, file_.events[e].ids + file_.events[e].id_count);
      found.append(event);
    }
    return found;
  }

  // (type, misc, body, place behind it, (pid, tid, time, cpu), bytes that follow, number of the event or None); None at the end.
  nb::object next() {
    mp_file_record record;
    if (!advance(record)) return nb::none();
    const mp_identity& who = record.identity;
    return nb::make_tuple(record.header.type, record.header.misc,
                          nb::bytes(reinterpret_cast<const char*>(record.body), record.body_bytes), record.after,
                          nb::make_tuple(who.pid, who.tid, who.time_ns, who.cpu), record.following_bytes,
                          event_number(record));
  }

  // The next sample as a dictionary of the fields that its event has; other records are passed over. None at the end.
  nb::object next_sample() {
    mp_file_record record;
    while (advance(record)) {
      if (record.header.type != MP_RECORD_SAMPLE || record.event == nullptr) continue;
      mp_sample sample;
      if (!mp_sample_read(&record.event->attr, record.body, record.body_bytes, &sample)) {
        undecoded_++;
        continue;
      }
      return described(record, sample);
    }
    return nb::none();
  }

  nb::bytes data(uint64_t at, size_t bytes) {
    std::vector<char> found(bytes);
    const int64_t got = mp_file_bytes(&file_, at, found.data(), bytes);
    if (got < 0) fail(failure_of(MP_FILE_READ));
    return nb::bytes(found.data(), static_cast<size_t>(got));
  }

  nb::object truncated_at() const {
    if (file_.truncated_at == UINT64_MAX) return nb::none();
    return nb::int_(file_.truncated_at);
  }
  bool is_stream() const { return file_.is_stream; }
  uint64_t undecoded() const { return undecoded_; }

 private:
  PerfFailure failure_of(mp_file_error error) const {
    return {error, file_.error_at, nb::bytes(reinterpret_cast<const char*>(file_.head), file_.head_bytes)};
  }

  [[noreturn]] static void fail(const PerfFailure& failure) {
    if (failure.error == MP_FILE_READ) {
      PyErr_SetFromErrno(PyExc_OSError);
      throw nb::python_error();
    }
    PyErr_SetObject(perf_file_error.ptr(), nb::make_tuple(name_of(failure.error), failure.at, failure.head).ptr());
    throw nb::python_error();
  }

  bool advance(mp_file_record& record) {
    mp_file_error error;
    const int found = mp_file_next(&file_, &record, &error);
    if (found < 0) fail(failure_of(error));
    return found > 0;
  }

  nb::object event_number(const mp_file_record& record) const {
    if (record.event == nullptr) return nb::none();
    return nb::int_(static_cast<size_t>(record.event - file_.events));
  }

  nb::object described(const mp_file_record& record, const mp_sample& sample) const {
    nb::dict found;
    found["event"] = event_number(record);
    found["misc"] = record.header.misc;
    const auto put = [&](uint64_t bit, const char* name, uint64_t value) {
      if (sample.has & bit) found[name] = value;
    };
    put(MP_SAMPLE_IDENTIFIER, "identifier", sample.identifier);
    put(MP_SAMPLE_IP, "ip", sample.ip);
    put(MP_SAMPLE_TID, "pid", sample.pid);
    put(MP_SAMPLE_TID, "tid", sample.tid);
    put(MP_SAMPLE_TIME, "time_ns", sample.time_ns);
    put(MP_SAMPLE_ADDR, "address", sample.address);
    put(MP_SAMPLE_ID, "id", sample.id);
    put(MP_SAMPLE_STREAM_ID, "stream_id", sample.stream_id);
    put(MP_SAMPLE_CPU, "cpu", sample.cpu);
    put(MP_SAMPLE_PERIOD, "period", sample.period);
    put(MP_SAMPLE_WEIGHT | MP_SAMPLE_WEIGHT_STRUCT, "weight", sample.weight);
    put(MP_SAMPLE_DATA_SRC, "data_src", sample.data_src);
    put(MP_SAMPLE_TRANSACTION, "transaction", sample.transaction);
    put(MP_SAMPLE_PHYS_ADDR, "phys_address", sample.phys_address);
    put(MP_SAMPLE_CGROUP, "cgroup", sample.cgroup);
    put(MP_SAMPLE_DATA_PAGE_SIZE, "data_page_bytes", sample.data_page_bytes);
    put(MP_SAMPLE_CODE_PAGE_SIZE, "code_page_bytes", sample.code_page_bytes);
    put(MP_SAMPLE_STACK_USER, "user_stack_bytes", sample.user_stack_bytes);
    put(MP_SAMPLE_REGS_USER, "user_registers", sample.user_register_count);
    put(MP_SAMPLE_REGS_INTR, "intr_registers", sample.intr_register_count);
    put(MP_SAMPLE_BRANCH_STACK, "branches", sample.branch_count);
    if (sample.has & MP_SAMPLE_CALLCHAIN) {
      std::vector<uint64_t> chain(sample.callchain_count);
      if (!chain.empty()) std::memcpy(chain.data(), sample.callchain, 8 * chain.size());
      found["callchain"] = chain;
    }
    if (sample.has & MP_SAMPLE_RAW)
      found["raw"] = nb::bytes(reinterpret_cast<const char*>(sample.raw), sample.raw_bytes);
    return found;
  }

  mp_file file_{};
  uint64_t undecoded_ = 0;
};

// Numbers of perf's records that Python reads: native/perf/memlens_perf.h.
nb::dict perf_constants() {
  nb::dict constants;
#define CONSTANT(name) constants[#name] = static_cast<int>(name)
  CONSTANT(MP_RECORD_LOST);
  CONSTANT(MP_RECORD_COMM);
  CONSTANT(MP_RECORD_FORK);
  CONSTANT(MP_RECORD_MMAP2);
  CONSTANT(MP_RECORD_AUX);
  CONSTANT(MP_RECORD_ITRACE_START);
  CONSTANT(MP_RECORD_SWITCH);
  CONSTANT(MP_RECORD_SWITCH_CPU_WIDE);
  CONSTANT(MP_RECORD_AUXTRACE_INFO);
  CONSTANT(MP_RECORD_AUXTRACE);
  CONSTANT(MP_MISC_SWITCH_OUT);
  CONSTANT(MP_AUX_TRUNCATED);
#undef CONSTANT
  return constants;
}

}  // namespace

void bind_perf(nb::module_& module) {
  module.def("perf_constants", &perf_constants);
  perf_file_error = nb::exception<PerfFileError>(module, "PerfFileError", PyExc_ValueError);
  nb::class_<PerfFile>(module, "PerfFile",
                       "A perf.data file, by its open descriptor: events, and records in the order of the file.")
      .def(nb::init<int>(), "fd"_a)
      .def_prop_ro("events", &PerfFile::events,
                   "The events that were recorded: those of the header, and of a stream those read so far.")
      .def(
          "next", &PerfFile::next,
          "(type, misc, body, byte behind it, (pid, tid, time, cpu), following bytes, event) of the next record; None at the end.")
      .def("next_sample", &PerfFile::next_sample, "The fields of the next sample; None at the end.")
      .def("data", &PerfFile::data, "at"_a, "bytes"_a, "Bytes of the file, fewer at its end.")
      .def_prop_ro("truncated_at", &PerfFile::truncated_at, "Where the file ends inside a record, or None.")
      .def_prop_ro("is_stream", &PerfFile::is_stream, "Whether it was written to a pipe.")
      .def_prop_ro("undecoded", &PerfFile::undecoded,
                   "Samples that next_sample passed over: cut, or with fields that are not known.");
}

}  // namespace memlens::bindings
