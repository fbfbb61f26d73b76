// Python's view of native/core: chunk files, record layouts, fault replay, symbols.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <system_error>
#include <vector>

#include "arrays.h"
#include "capture/chunk_reader.h"
#include "capture/chunk_writer.h"
#include "capture/idle_packer.h"
#include "capture/ring_file.h"
#include "contract_bindings.h"
#include "counting_bindings.h"
#include "importing_bindings.h"
#include "locality_bindings.h"
#include "memlens_checksum.h"
#include "objects_bindings.h"
#include "perf_bindings.h"
#include "os_text.h"
#include "replay_bindings.h"
#include "symbols/demangle.h"
#include "symbols/jit_symbols.h"
#include "symbols/module_symbols.h"
#include "symbols/unwind.h"
#include "trace_bindings.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using namespace memlens::bindings;

using memlens::capture::ChunkInfo;
using memlens::capture::ChunkReader;
using memlens::capture::ChunkWriter;
using memlens::capture::FormatError;

// Any object that has contiguous bytes.
class BufferOf {
 public:
  explicit BufferOf(const nb::object& object) {
    if (PyObject_GetBuffer(object.ptr(), &view_, PyBUF_SIMPLE) != 0) throw nb::python_error();
  }
  ~BufferOf() { PyBuffer_Release(&view_); }
  BufferOf(const BufferOf&) = delete;
  BufferOf& operator=(const BufferOf&) = delete;
  std::span<const unsigned char> span() const {
    return {static_cast<const unsigned char*>(view_.buf), static_cast<size_t>(view_.len)};
  }

 private:
  Py_buffer view_;
};

// Keeps what is being compressed alive.
class PackerOfObjects {
 public:
  explicit PackerOfObjects(int level) : packer_(level) {}
  ~PackerOfObjects() {
    if (packer_.is_working())  // the thread still reads them
      for (auto& buffer : given_) (void)buffer.release();
  }
  bool give(const nb::object& payload) {
    auto buffer = std::make_unique<BufferOf>(payload);
    if (!packer_.give(buffer->span())) return false;
    given_.push_back(std::move(buffer));
    return true;
  }
  nb::object take() {
    std::vector<unsigned char> packed;
    if (!packer_.take(&packed)) return nb::none();
    given_.pop_front();
    return nb::bytes(reinterpret_cast<const char*>(packed.data()), packed.size());
  }

 private:
  memlens::capture::IdlePacker packer_;
  std::deque<std::unique_ptr<BufferOf>> given_;
};

[[noreturn]] void raise_os_error(const std::system_error& error) {
  const int code = error.code().value();
  PyErr_SetObject(PyExc_OSError, nb::make_tuple(code, std::string(strerror(code))).ptr());
  throw nb::python_error();
}

// ---- symbols --------------------------------------------------------------------------
namespace sym = memlens::symbols;

class Module {
 public:
  Module(const OsText& path, const std::string& build_id, const std::vector<OsText>& debug_directories) {
    sym::OpenOptions options;
    options.expected_build_id_hex = build_id;
    if (!debug_directories.empty()) options.debug_directories.clear();
    for (const OsText& directory : debug_directories) options.debug_directories.push_back(directory.bytes);
    nb::gil_scoped_release unlocked;
    module_ = sym::ModuleSymbols::open(path.bytes, options, strings_);
  }
  nb::str status() const { return shown_text(module_->status()); }
  std::string build_id() const { return module_->build_id_hex(); }
  nb::str split_note() const { return shown_text(module_->split_note()); }
  nb::str debug_file() const { return shown_text(module_->debug_file()); }
  std::string quality() const {
    switch (module_->quality()) {
      case sym::DebugQuality::dwarf: return "dwarf";
      case sym::DebugQuality::symbol_table: return "symbols";
      default: return "none";
    }
  }

  nb::object nearest(uint64_t file_offset) const {
    const auto vaddr = module_->file_offset_to_vaddr(file_offset);
    if (!vaddr) return nb::none();
    const auto [name, distance] = module_->nearest_symbol(*vaddr);
    if (name.empty()) return nb::none();
    return nb::make_tuple(shown_text(name), distance);
  }

  // For each file offset: list of (function, file, line, column, inlined), innermost first.
  nb::list resolve(const std::vector<uint64_t>& file_offsets) {
    std::vector<uint64_t> addresses;
    addresses.reserve(file_offsets.size());
    for (uint64_t offset : file_offsets)
      addresses.push_back(module_->file_offset_to_vaddr(offset).value_or(UINT64_MAX));
    std::vector<sym::Frame> frames;
    std::vector<uint32_t> first;
    {
      nb::gil_scoped_release unlocked;
      module_->resolve(addresses, frames, first);
    }
    std::vector<nb::object> texts(strings_.size());
    const auto text = [&](uint32_t id) {
      if (id >= texts.size()) id = 0;
      if (!texts[id].is_valid()) texts[id] = shown_text(strings_.at(id));
      return texts[id];
    };
    nb::list result;
    for (size_t i = 0; i + 1 < first.size(); ++i) {
      nb::list entry;
      for (uint32_t f = first[i]; f < first[i + 1]; ++f)
        entry.append(nb::make_tuple(text(frames[f].function), text(frames[f].file), frames[f].line, frames[f].column,
                                    frames[f].inlined != 0));
      result.append(entry);
    }
    return result;
  }

 private:
  sym::StringTable strings_;
  std::unique_ptr<sym::ModuleSymbols> module_;
};

nb::list jit_entries(const sym::JitSymbols& symbols) {
  nb::list result;
  for (const auto& entry : symbols.entries()) {
    const auto* line = entry.line_at(entry.begin);
    result.append(nb::make_tuple(entry.begin, entry.end, entry.begin_time_ns, shown_text(entry.name),
                                 shown_text(line != nullptr ? line->file() : std::string()),
                                 line != nullptr ? line->line : 0u));
  }
  return result;
}

class Unwinder {
 public:
  Unwinder(int machine, const std::vector<std::tuple<uint64_t, uint64_t, uint64_t, OsText>>& mappings) {
    std::vector<sym::ExecutableMapping> list;
    for (const auto& [start, end, offset, path] : mappings) list.push_back({start, end, offset, path.bytes});
    unwinder_ = std::make_unique<sym::ProcessUnwinder>(
        machine == 183 ? sym::Architecture::aarch64 : sym::Architecture::x86_64, list);
  }
  std::vector<uint64_t> unwind(uint64_t mask, const nb::bytes& registers, uint64_t stack_pointer,
                               const nb::bytes& stack) {
    std::vector<uint64_t> values(registers.size() / 8);
    if (!values.empty()) memcpy(values.data(), registers.c_str(), values.size() * 8);
    const auto bytes = view(stack);
    return unwinder_->unwind({mask, values}, {stack_pointer, {bytes.data(), bytes.size()}}).addresses;
  }

 private:
  std::unique_ptr<sym::ProcessUnwinder> unwinder_;
};

}  // namespace

void bind_variables(nb::module_& module);  // variables_bindings.cpp

NB_MODULE(_core, module) {
  nb::set_leak_warnings(false);  // what lives at exit is not a leak
  module.doc() = "The native engine of memlens; memlens.capture and memlens.analyses wrap it.";

  nb::exception<FormatError> format_error(module, "FormatError", PyExc_ValueError);
  nb::register_exception_translator(
      [](const std::exception_ptr& pointer, void* type) {
        try {
          std::rethrow_exception(pointer);
        } catch (const FormatError& error) {
          PyErr_SetObject(static_cast<PyObject*>(type),
                          nb::make_tuple(static_cast<int>(error.kind), error.path, error.version).ptr());
        } catch (const std::system_error& error) {
          PyErr_SetObject(PyExc_OSError, nb::make_tuple(error.code().value(), strerror(error.code().value())).ptr());
        }
      },
      format_error.ptr());

  module.attr("FORMAT_CURRENT") = static_cast<int>(ML_FORMAT_CURRENT);
  module.attr("FORMAT_OLDEST_READABLE") = static_cast<int>(ML_FORMAT_OLDEST_READABLE);
  memlens::bindings::add_contract(module);
  module.def("checksum", [](const nb::bytes& bytes) { return ml_checksum(bytes.c_str(), bytes.size()); }, "bytes"_a);

  nb::class_<ChunkWriter>(module, "ChunkWriter")
      .def(
          "__init__",
          [](ChunkWriter* self, const OsText& path, int writer, int level) {
            try {
              new (self) ChunkWriter(path.bytes, static_cast<ml_writer>(writer), level);
            } catch (const std::system_error& error) {
              raise_os_error(error);
            }
          },
          "path"_a, nb::kw_only(), "writer"_a = 1, "level"_a = 1)
      .def(
          "append",
          [](ChunkWriter& self, int kind, nb::object payload, uint32_t record_count, uint32_t process, uint32_t thread,
             uint64_t dropped, uint64_t begin_ns, uint64_t end_ns, bool compress, const nb::bytes& packed) {
            const BufferOf bytes(payload);
            const auto compressed = view(packed);
            nb::gil_scoped_release unlocked;
            return self.append(
                {static_cast<uint16_t>(kind), process, thread, record_count, dropped, begin_ns, end_ns, compress},
                bytes.span(), compressed);
          },
          "kind"_a, "payload"_a, nb::kw_only(), "record_count"_a, "process"_a = 0, "thread"_a = 0, "dropped"_a = 0,
          "begin_ns"_a = 0, "end_ns"_a = 0, "compress"_a = true, "packed"_a = nb::bytes("", 0),
          nb::sig(
              "def append(self, kind: int, payload: object, *, record_count: int, process: int = 0, thread: int = 0, dropped: int = 0, "
              "begin_ns: int = 0, end_ns: int = 0, compress: bool = True, packed: bytes = b'') -> int"),
          "Appends one chunk, `packed` if it has been compressed already; returns 0 or an errno.")
      .def_prop_ro("chunks", &ChunkWriter::chunks)
      .def_prop_ro("bytes", &ChunkWriter::bytes)
      .def_prop_ro("dropped_records", &ChunkWriter::dropped_records)
      .def_prop_ro("failed_errno", &ChunkWriter::failed_errno)
      .def("close", &ChunkWriter::close);

  nb::class_<PackerOfObjects>(module, "IdlePacker")
      .def(nb::init<int>(), nb::kw_only(), "level"_a = 1)
      .def("give", &PackerOfObjects::give, "payload"_a, nb::sig("def give(self, payload: object) -> bool"),
           "False: it has as many as it takes.")
      .def("take", &PackerOfObjects::take, nb::sig("def take(self) -> bytes | None"),
           "The oldest, compressed, or empty if it cannot be; None: not yet, or none was given.");

  nb::class_<ChunkReader>(module, "ChunkReader")
      .def(
          "__init__", [](ChunkReader* self, const OsText& path) { new (self) ChunkReader(path.bytes); }, "path"_a)
      .def("refresh", &ChunkReader::refresh)
      .def_prop_ro("count", [](const ChunkReader& self) { return self.chunks().size(); })
      .def(
          "header",
          [](const ChunkReader& self, size_t index) {
            const auto& h = self.chunks().at(index).header;
            nb::dict result;
            result["kind"] = h.kind;
            result["record_version"] = h.record_version;
            result["record_count"] = h.record_count;
            result["process"] = h.process;
            result["thread"] = h.thread;
            result["sequence"] = h.sequence;
            result["dropped"] = h.dropped;
            result["begin_ns"] = h.begin_ns;
            result["end_ns"] = h.end_ns;
            result["stored_bytes"] = h.stored_bytes;
            result["payload_bytes"] = h.payload_bytes;
            return result;
          },
          "index"_a)
      .def(
          "payload",
          [](ChunkReader& self, size_t index) -> nb::object {
            std::optional<std::vector<unsigned char>> payload;
            {
              nb::gil_scoped_release unlocked;
              payload = self.payload(self.chunks().at(index));
            }
            if (!payload) return nb::none();
            return nb::bytes(reinterpret_cast<const char*>(payload->data()), payload->size());
          },
          "index"_a, "Decoded payload, or None if it is damaged.")
      .def_prop_ro("file_header",
                   [](const ChunkReader& self) {
                     const auto& h = self.file_header();
                     nb::dict result;
                     result["format_version"] = h.format_version;
                     result["created_monotonic_ns"] = h.created_monotonic_ns;
                     result["created_unix_ns"] = h.created_unix_ns;
                     result["pid"] = h.pid;
                     result["writer"] = h.writer;
                     return result;
                   })
      .def_prop_ro("damage", [](const ChunkReader& self) {
        const auto& d = self.damage();
        nb::dict result;
        result["torn_tail_bytes"] = d.torn_tail_bytes;
        result["bad_header_bytes"] = d.bad_header_bytes;
        result["bad_payload_chunks"] = d.bad_payload_chunks;
        result["missing_chunks"] = d.missing_chunks;
        return result;
      });

  bind_replay(module);
  bind_objects(module);
  bind_trace(module);
  bind_counting(module);
  bind_importing(module);
  bind_perf(module);
  bind_locality(module);
  bind_locality_trees(module);

  nb::class_<Module>(module, "ModuleSymbols")
      .def(nb::init<const OsText&, const std::string&, const std::vector<OsText>&>(), "path"_a, nb::kw_only(),
           "build_id"_a = "", "debug_directories"_a = std::vector<OsText>{})
      .def_prop_ro("status", &Module::status)
      .def_prop_ro("build_id", &Module::build_id)
      .def_prop_ro("debug_file", &Module::debug_file)
      .def_prop_ro("split_note", &Module::split_note,
                   "After resolve(): which split debug information (.dwo, .dwp) is missing or stale; empty if none.")
      .def_prop_ro("quality", &Module::quality)
      .def("nearest", &Module::nearest, "file_offset"_a, "(name, bytes) of the last symbol before an offset, or None.")
      .def("resolve", &Module::resolve, "file_offsets"_a,
           "Frames (function, file, line, column, inlined) of each file offset, innermost first.");
  nb::class_<Unwinder>(module, "Unwinder")
      .def(nb::init<int, const std::vector<std::tuple<uint64_t, uint64_t, uint64_t, OsText>>&>(), "machine"_a,
           "mappings"_a)
      .def("unwind", &Unwinder::unwind, "mask"_a, "registers"_a, "stack_pointer"_a, "stack"_a);
  module.def(
      "read_ring_file",
      [](const OsText& path) {
        nb::list result;
        try {
          for (const memlens::capture::RingRecords& records : memlens::capture::read_ring_file(path.bytes))
            result.append(
                nb::make_tuple(records.kind, records.count, nb::bytes(records.payload.data(), records.payload.size())));
        } catch (const std::system_error& error) {
          PyErr_SetObject(PyExc_OSError, nb::make_tuple(error.code().value(), std::string(error.what()), path).ptr());
          throw nb::python_error();
        }
        return result;
      },
      "path"_a, "(kind, count, payload) of what a killed process left in its rings");
  module.def("read_build_id", [](const OsText& path) { return sym::read_build_id_hex(path.bytes); }, "path"_a);
  module.def("demangle", [](const std::string& name) { return sym::demangle(name); }, "name"_a);
  module.def(
      "read_perf_map", [](const OsText& path) { return jit_entries(sym::JitSymbols::read_perf_map(path.bytes)); },
      "path"_a);
  module.def(
      "read_jitdump", [](const OsText& path) { return jit_entries(sym::JitSymbols::read_jitdump(path.bytes)); },
      "path"_a);
  bind_variables(module);
}
