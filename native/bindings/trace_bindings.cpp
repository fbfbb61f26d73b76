// Python's view of native/core/trace.
#include "trace_bindings.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>

#include <optional>
#include <span>
#include <stdexcept>
#include <vector>

#include "arrays.h"
#include "memlens_segments.h"
#include "memlens_stream.h"
#include "replay/replay.h"
#include "trace/access_join.h"
#include "trace/packed.h"
#include "trace/window_walk.h"

using namespace nb::literals;

namespace {

using namespace memlens::bindings;
using memlens::objects::ObjectTable;
using memlens::replay::Replay;
using namespace memlens::trace;

// The fixed parts of window records, one after the other, and where each stream lies in the payload.
nb::tuple window_headers(const nb::bytes& payload) {
  const auto bytes = view(payload);
  std::vector<unsigned char> fixed;
  std::vector<uint64_t> stream_at;
  memlens::replay::each_variable_record<ml_window>(bytes, [&](const ml_window& window, auto stream) {
    const auto* raw = reinterpret_cast<const unsigned char*>(&window);
    fixed.insert(fixed.end(), raw, raw + sizeof window);
    stream_at.push_back(static_cast<uint64_t>(stream.data() - bytes.data()));
  });
  return nb::make_tuple(nb::bytes(reinterpret_cast<const char*>(fixed.data()), fixed.size()),
                        owned(std::move(stream_at)));
}

// The accesses of a payload's windows in batches. The payload is kept alive by the reader.
class AccessReader {
 public:
  AccessReader(nb::bytes payload, size_t batch_accesses)
      : payload_(std::move(payload)), batch_(std::max<size_t>(batch_accesses, 1)) {
    memlens::replay::each_variable_record<ml_window>(
        view(payload_), [&](const ml_window& window, auto stream) { windows_.push_back({window, stream}); });
  }

  std::optional<nb::dict> next() {
    Batch batch;
    {
      nb::gil_scoped_release unlocked;
      fill(batch);
      for (const Run& run : batch.runs) {
        const Part times{&windows_[run.row].record, 0, run.first, run.count, nullptr, nullptr, nullptr, nullptr};
        batch.row.insert(batch.row.end(), run.count, run.row);
        for (size_t i = 0; i < run.count; ++i) batch.time_ns.push_back(times.time_ns(i));
      }
    }
    if (batch.code.empty()) return std::nullopt;
    nb::dict columns;
    columns["row"] = owned(std::move(batch.row));
    columns["time_ns"] = owned(std::move(batch.time_ns));
    columns["code"] = owned(std::move(batch.code));
    columns["address"] = owned(std::move(batch.address));
    columns["bytes"] = owned(std::move(batch.bytes));
    columns["operation"] = owned(std::move(batch.operation));
    return columns;
  }
  // The same, packed.
  std::optional<nb::object> next_packed() {
    std::vector<uint64_t> words;
    {
      nb::gil_scoped_release unlocked;
      Batch batch;
      fill(batch);
      if (!batch.code.empty()) words = pack(batch.runs, {batch.code, batch.address, batch.bytes, batch.operation});
    }
    if (words.empty()) return std::nullopt;
    return owned(std::move(words));
  }
  uint64_t damaged() const { return damaged_rows_.size(); }
  std::vector<uint32_t> damaged_rows() const { return damaged_rows_; }

 private:
  struct Window {
    ml_window record;
    std::span<const unsigned char> stream;
  };
  struct Batch {
    std::vector<uint32_t> row, bytes;
    std::vector<uint64_t> time_ns, code, address;
    std::vector<uint8_t> operation;
    std::vector<Run> runs;
    void reserve(size_t count) {
      bytes.reserve(count);
      code.reserve(count);
      address.reserve(count);
      operation.reserve(count);
    }
    void resize(size_t count) {
      bytes.resize(count);
      code.resize(count);
      address.resize(count);
      operation.resize(count);
    }
  };

  void fill(Batch& batch) {
    size_t filled = 0;
    if (at_ < windows_.size()) batch.reserve(batch_);
    while (at_ < windows_.size()) {
      const Window& window = windows_[at_];
      const uint64_t recorded = window.record.recorded;
      if (!decoder_) {
        // A small window goes into one batch, whole; a longer one is looked at first.
        const bool fits = recorded <= batch_;
        if (fits && filled > 0 && recorded > batch_ - filled) break;
        if (recorded > most_accesses(window.stream.size(), window.record.encoding) ||
            (!fits && !is_sound(window.stream, recorded, window.record.encoding))) {
          damaged_rows_.push_back(static_cast<uint32_t>(at_));
          ++at_;
          continue;
        }
        decoder_.emplace(window.stream, window.record.encoding);
        windows_decoded.fetch_add(recorded != 0, std::memory_order_relaxed);
        done_ = 0;
      }
      const size_t room = batch_ - filled, part = std::min<uint64_t>(recorded - done_, room);
      batch.resize(filled + part);
      const size_t got = decoder_->next({batch.code.data() + filled, batch.address.data() + filled,
                                         batch.bytes.data() + filled, batch.operation.data() + filled},
                                        part);
      const bool is_whole = done_ + got == recorded;
      if (got != part || (is_whole && !decoder_->at_end())) {
        damaged_rows_.push_back(static_cast<uint32_t>(at_));
        ++at_;
        decoder_.reset();
        batch.resize(filled);
        continue;
      }
      if (part != 0) batch.runs.push_back({static_cast<uint32_t>(at_), static_cast<uint32_t>(part), done_});
      filled += part;
      done_ += part;
      if (is_whole) {
        ++at_;
        decoder_.reset();
      }
      if (filled == batch_) break;
    }
    batch.resize(filled);
  }

  nb::bytes payload_;
  size_t batch_, at_ = 0;
  uint64_t done_ = 0;
  std::vector<uint32_t> damaged_rows_;
  std::vector<Window> windows_;
  std::optional<StreamDecoder> decoder_;
};

using Words = Input<uint64_t>;

std::span<const ml_window> windows_of(const nb::bytes& fixed) {
  return {reinterpret_cast<const ml_window*>(fixed.c_str()), fixed.size() / sizeof(ml_window)};
}

// Columns of a packed batch, as AccessReader.next gives them. `fixed`: the records of its chunk without streams.
nb::dict unpack_accesses(const Words& words, const nb::bytes& fixed) {
  const auto windows = windows_of(fixed);
  std::vector<uint32_t> row, bytes;
  std::vector<uint64_t> time_ns, code, address;
  std::vector<uint8_t> operation;
  {
    nb::gil_scoped_release unlocked;
    const Packed packed(view(words));
    const size_t count = packed.count();
    row.resize(count), bytes.resize(count), time_ns.resize(count), code.resize(count), operation.resize(count);
    address.assign(packed.addresses(), packed.addresses() + count);
    packed.expand(0, count, code.data(), bytes.data(), operation.data());
    size_t at = 0;
    for (const Run& run : packed.runs()) {
      if (run.row >= windows.size()) throw nb::value_error("the batch is of another chunk");
      const Part times{&windows[run.row], 0, run.first, run.count, nullptr, nullptr, nullptr, nullptr};
      std::fill_n(row.begin() + static_cast<ptrdiff_t>(at), run.count, run.row);
      for (size_t i = 0; i < run.count; ++i) time_ns[at + i] = times.time_ns(i);
      at += run.count;
    }
  }
  nb::dict columns;
  columns["row"] = owned(std::move(row));
  columns["time_ns"] = owned(std::move(time_ns));
  columns["code"] = owned(std::move(code));
  columns["address"] = owned(std::move(address));
  columns["bytes"] = owned(std::move(bytes));
  columns["operation"] = owned(std::move(operation));
  return columns;
}

// What `add_windows` notes, of windows that are decoded already.
void add_window_uses(Replay& replay, uint32_t process, const nb::bytes& fixed, const std::vector<Words>& batches) {
  const auto windows = windows_of(fixed);
  std::vector<std::span<const uint64_t>> views;
  for (const Words& words : batches) views.push_back(view(words));
  nb::gil_scoped_release unlocked;
  for (const ml_window& window : windows) replay.code().add_stack_use(process, window.stack, window.begin_ns);
  for (const auto& words : views)
    each_packed_code(Packed(words), [&](uint32_t row, uint64_t pc) {
      if (row >= windows.size()) throw std::invalid_argument("the batch is of another chunk");
      if (windows[row].encoding == ML_ENUM_stream_encoding_PC_DELTA)
        replay.code().add_code_use(process, pc, windows[row].begin_ns);
    });
}

nb::bytes encode_stream(const Input<uint64_t>& codes, const Input<uint64_t>& addresses, const Input<uint32_t>& bytes,
                        const Input<uint8_t>& operations) {
  const size_t count = codes.size();
  const bool is_pc = bytes.size() == count && operations.size() == count && count != 0;
  const bool has_bytes = bytes.size() == count;
  if (addresses.size() != count || (!is_pc && ((!has_bytes && bytes.size() != 0) || operations.size() != 0)))
    throw nb::value_error("the columns have one length; operations are empty for site_delta, and bytes may be");
  std::vector<unsigned char> stream(count * 25 + ML_STREAM_MAX_ACCESS);
  auto state = std::make_unique<ml_stream>();  // zeros
  ml_stream_begin(state.get());
  unsigned char* at = stream.data();
  for (size_t i = 0; i < count; ++i)
    at = is_pc ? ml_stream_add_pc(state.get(), at, codes.data()[i], addresses.data()[i], bytes.data()[i],
                                  operations.data()[i])
         : has_bytes && bytes.data()[i] != 0
             ? ml_stream_add_site_sized(state.get(), at, codes.data()[i], addresses.data()[i], bytes.data()[i])
             : ml_stream_add_site(state.get(), at, codes.data()[i], addresses.data()[i]);
  return nb::bytes(reinterpret_cast<const char*>(stream.data()), static_cast<size_t>(at - stream.data()));
}

#if defined(__x86_64__)
ML_SEGMENTS_VECTORS void add_by_vectors(ml_segments& segments, const ml_segments_entry* entry, ml_segments_at& at,
                                        uint64_t site, const uint64_t* words, unsigned count) {
  ml_segments_add_known_vectors(&segments, entry, &at, site, words, count);
}
bool has_vectors() { return __builtin_cpu_supports("avx2"); }
#else
void add_by_vectors(ml_segments& segments, const ml_segments_entry* entry, ml_segments_at& at, uint64_t site,
                    const uint64_t* words, unsigned count) {
  ml_segments_add_known(&segments, entry, &at, site, words, count);
}
bool has_vectors() { return false; }
#endif

// Segments one after the other: site, words and form of each, and the words of all.
nb::bytes encode_segments(const Input<uint64_t>& sites, const Input<uint8_t>& counts, const Input<uint8_t>& forms,
                          const Input<uint64_t>& input, bool by_vectors) {
  if (by_vectors && !has_vectors()) throw nb::value_error("this CPU has no AVX2");
  const size_t count = sites.size();
  if (counts.size() != count || forms.size() != count) throw nb::value_error("the columns have one length");
  std::vector<unsigned char> names(count * ML_SEGMENTS_NAME_BYTES + 8);
  const size_t front = names.size() + ML_SEGMENTS_FRONT_BYTES;
  std::vector<unsigned char> stream(front + count * ML_SEGMENTS_WORD_BYTES + 8);
  auto state = std::make_unique<ml_segments>();  // zeros
  ml_segments_at at{names.data(), stream.data() + front, 0};
  std::vector<uint64_t> words(input.data(), input.data() + input.size());
  words.resize(words.size() + ML_SEGMENTS_BEYOND);
  size_t word = 0;
  for (size_t i = 0; i < count; ++i) {
    const unsigned n = counts.data()[i], form = forms.data()[i];
    if (n == 0 || n > ML_SEGMENTS_WORDS || form > 2 || input.size() - word < n)
      throw nb::value_error("a segment of 1 to 31 words");
    const uint64_t site = sites.data()[i], key = (site << 8 | form << 5 | n) + 1;
    const ml_segments_entry* known = key != 0 ? ml_segments_known(state.get(), site, key) : nullptr;
    if (known == nullptr) ml_segments_add(state.get(), &at, key, site, words.data() + word, n, form);
    else if (by_vectors) add_by_vectors(*state, known, at, site, words.data() + word, n);
    else ml_segments_add_known(state.get(), known, &at, site, words.data() + word, n);
    word += n;
  }
  if (count == 0) return nb::bytes("", 0);
  const unsigned char* first =
      ml_segments_join(names.data(), static_cast<size_t>(at.names - names.data()), stream.data() + front);
  return nb::bytes(reinterpret_cast<const char*>(first), static_cast<size_t>(at.words - first));
}

nb::dict traffic_columns(const AccessJoin& join, const std::vector<Traffic>& rows) {
  nb::dict columns;
  columns["group"] = column<uint32_t>(rows, [](const auto& r) { return r.group; });
  columns["function"] = column<uint32_t>(rows, [](const auto& r) { return r.function; });
  columns["recorded"] = column<uint64_t>(rows, [](const auto& r) { return r.recorded; });
  columns["windows"] = column<uint64_t>(rows, [](const auto& r) { return r.units; });
  const auto estimate = [&](const char* name, auto member) {
    columns[name] = column<double>(rows, [&](const auto& r) { return (r.*member).sum; });
    columns[(std::string(name) + "_error").c_str()] =
        column<double>(rows, [&](const auto& r) { return join.standard_error(r.*member); });
  };
  estimate("loads", &Traffic::loads);
  estimate("stores", &Traffic::stores);
  estimate("load_bytes", &Traffic::load_bytes);
  estimate("store_bytes", &Traffic::store_bytes);
  estimate("accesses", &Traffic::accesses);
  estimate("bytes", &Traffic::bytes);
  return columns;
}

nb::dict code_traffic_columns(const AccessJoin& join) {
  const auto& rows = join.by_code();
  nb::dict columns;
  columns["code"] = column<uint32_t>(rows, [](const auto& r) { return r.code; });
  columns["recorded"] = column<uint64_t>(rows, [](const auto& r) { return r.recorded; });
  columns["windows"] = column<uint64_t>(rows, [](const auto& r) { return r.units; });
  const auto estimate = [&](const char* name, auto member) {
    columns[name] = column<double>(rows, [&](const auto& r) { return (r.*member).sum; });
    columns[(std::string(name) + "_error").c_str()] =
        column<double>(rows, [&](const auto& r) { return join.standard_error(r.*member); });
  };
  estimate("accesses", &CodeTraffic::accesses);
  estimate("bytes", &CodeTraffic::bytes);
  estimate("split", &CodeTraffic::split);
  estimate("narrow", &CodeTraffic::narrow);
  estimate("narrow_sequential", &CodeTraffic::narrow_sequential);
  return columns;
}

}  // namespace

void add_windows(memlens::replay::CodeResolver& code, uint32_t process, std::span<const unsigned char> payload) {
  WindowWalker walker;
  memlens::replay::each_variable_record<ml_window>(
      payload, [&](const ml_window& window, auto) { code.add_stack_use(process, window.stack, window.begin_ns); });
  each_window_code(payload, walker,
                   [&](const ml_window& window, uint64_t pc) { code.add_code_use(process, pc, window.begin_ns); });
}

// Pages of some windows of a payload, evenly spread over it, each page once; and when the last of these windows ended.
static nb::tuple window_pages(const nb::bytes& payload, uint64_t page_bytes, uint64_t about_accesses) {
  uint64_t recorded = 0, time_ns = 0;
  memlens::replay::each_variable_record<ml_window>(view(payload),
                                                   [&](const ml_window& window, auto) { recorded += window.recorded; });
  const uint64_t step = std::max<uint64_t>(1, recorded / std::max<uint64_t>(about_accesses, 1));
  std::vector<uint64_t> pages;
  uint32_t row = 0;
  WindowWalker walker;
  memlens::replay::each_variable_record<ml_window>(view(payload), [&](const ml_window& window, auto stream) {
    if (row++ % step != 0) return;
    walker.walk_window(window, row, stream, [&](const Part& part) {
      uint64_t before = 1;
      for (size_t i = 0; i < part.count; ++i)
        if (const uint64_t page = part.address[i] & ~(page_bytes - 1); page != before) pages.push_back(before = page);
      time_ns = std::max(time_ns, window.end_ns);
    });
  });
  std::sort(pages.begin(), pages.end());
  pages.erase(std::unique(pages.begin(), pages.end()), pages.end());
  return nb::make_tuple(pages, time_ns);
}

void bind_trace(nb::module_& module) {
  module.def("window_pages", &window_pages, "payload"_a, nb::kw_only(), "page_bytes"_a, "about_accesses"_a,
             "(pages that some windows of a payload touch, time of the last one)");
  module.def("window_headers", &window_headers, "payload"_a,
             "(fixed parts of the window records of a payload, where each stream begins in it)");
  module.def(
      "encode_stream", &encode_stream, "codes"_a, "addresses"_a, "bytes"_a, "operations"_a,
      "A delta stream as the emulator's plugin writes it; site_delta when operations are empty; bytes are then those of accesses whose site does not tell them, else 0.");
  module.def(
      "encode_segments", &encode_segments, "sites"_a, "counts"_a, "forms"_a, "words"_a, "by_vectors"_a = false,
      "A segment stream as traced programs write it: first site, number of words and form of each segment, and the words of all. by_vectors: with the instructions that they use where the CPU has them.");
  module.def(
      "is_sound_stream",
      [](const nb::bytes& stream, uint64_t recorded, int encoding) {
        return is_sound(view(stream), recorded, static_cast<uint8_t>(encoding));
      },
      "stream"_a, "recorded"_a, "encoding"_a);
  module.def("unpack_accesses", &unpack_accesses, "words"_a, "fixed"_a,
             "Columns of a packed batch; fixed: the records of its chunk without streams.");
  module.def("add_window_uses", &add_window_uses, "replay"_a, "process"_a, "fixed"_a, "batches"_a,
             "Code and stacks of windows that are decoded already, for the replay to name.");
  module.def(
      "windows_decoded", [] { return windows_decoded.load(std::memory_order_relaxed); },
      "How many window streams this process has decoded.");
  nb::class_<AccessReader>(module, "AccessReader")
      .def(nb::init<nb::bytes, size_t>(), "payload"_a, nb::kw_only(), "batch_accesses"_a = size_t{1} << 15)
      .def("next", &AccessReader::next, "Columns of the next accesses, None at the end.")
      .def("next_packed", &AccessReader::next_packed, "The same, packed: see unpack_accesses.")
      .def_prop_ro("damaged_rows", &AccessReader::damaged_rows, "Their rows in the payload.")
      .def_prop_ro("damaged", &AccessReader::damaged, "Windows left out so far.");
  nb::class_<AccessJoin>(module, "AccessJoin")
      .def(
          "__init__",
          [](AccessJoin* self, const ObjectTable& objects, const Replay& replay, const Input<uint32_t>& group_of_object,
             const Input<uint32_t>& function_of_code, const Input<uint64_t>& unit_executed,
             const Input<uint32_t>& unit_parts) {
            new (self)
                AccessJoin(objects, replay.code().code_index(), copied(group_of_object), copied(function_of_code));
            self->set_units(copied(unit_executed), copied(unit_parts));
          },
          nb::keep_alive<1, 2>(), nb::keep_alive<1, 3>(), nb::kw_only(), "objects"_a, "replay"_a, "group_of_object"_a,
          "function_of_code"_a, "unit_executed"_a, "unit_parts"_a)
      .def(
          "add",
          [](AccessJoin& self, uint32_t process, const nb::bytes& payload, const Input<uint32_t>& units,
             const Input<uint32_t>& images) {
            const auto bytes = view(payload);
            const auto numbers = view(units), of_image = view(images);
            nb::gil_scoped_release unlocked;
            self.add(process, bytes, numbers, of_image);
          },
          "process"_a, "payload"_a, "units"_a, "images"_a,
          "Windows of one chunk, the unit of each, and the range of sites that its numbers belong to.")
      .def(
          "add_decoded",
          [](AccessJoin& self, uint32_t process, const nb::bytes& fixed, const Input<uint8_t>& damaged,
             const std::vector<Words>& batches, const Input<uint32_t>& units, const Input<uint32_t>& images) {
            const auto windows = windows_of(fixed);
            std::vector<std::span<const uint64_t>> views;
            for (const Words& words : batches) views.push_back(view(words));
            const auto is_damaged = view(damaged);
            const auto numbers = view(units), of_image = view(images);
            nb::gil_scoped_release unlocked;
            const std::vector<Packed> packed(views.begin(), views.end());
            self.add_decoded(process, windows, is_damaged, packed, numbers, of_image);
          },
          "process"_a, "fixed"_a, "damaged"_a, "batches"_a, "units"_a, "images"_a,
          "The same of windows that are decoded already.")
      .def(
          "set_sites",
          [](AccessJoin& self, const Input<uint32_t>& code, const Input<uint32_t>& bytes,
             const Input<uint8_t>& operation, const Input<uint32_t>& first, const Input<uint32_t>& end,
             const Input<uint64_t>& number) {
            if (first.size() != end.size() || first.size() != number.size())
              throw nb::value_error("the columns of ranges have one length");
            std::vector<SiteRange> ranges;
            for (size_t i = 0; i < first.size(); ++i)
              ranges.push_back({first.data()[i], std::max(first.data()[i], end.data()[i]), number.data()[i]});
            self.set_sites({copied(code), copied(bytes), copied(operation)}, std::move(ranges));
          },
          nb::kw_only(), "code"_a, "bytes"_a, "operation"_a, "first"_a, "end"_a, "number"_a,
          "What the sites of traces mean, and which of them belong to each image.")
      .def("finish", &AccessJoin::finish)
      .def("by_pair", [](const AccessJoin& self) { return traffic_columns(self, self.by_pair()); })
      .def("by_group", [](const AccessJoin& self) { return traffic_columns(self, self.by_group()); })
      .def("by_function", [](const AccessJoin& self) { return traffic_columns(self, self.by_function()); })
      .def("by_code", &code_traffic_columns)
      .def_prop_ro("totals", [](const AccessJoin& self) {
        const JoinTotals& totals = self.totals();
        nb::dict result;
        result["windows"] = totals.units;
        result["recorded"] = totals.recorded;
        result["executed"] = totals.executed;
        result["covered"] = totals.covered;
        result["damaged_windows"] = totals.damaged_windows;
        result["damaged_executed"] = totals.damaged_executed;
        result["without_code"] = totals.without_code;
        return result;
      });
}
