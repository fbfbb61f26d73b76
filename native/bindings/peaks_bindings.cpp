// Python's view of the measurements of memlens calibrate.
#include "peaks_bindings.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <string>
#include <vector>

#include "peaks.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

#define PEAK_NAME(KIND, name) name,
constexpr const char* kind_names[ML_PEAK_KINDS] = {ML_PEAKS(PEAK_NAME)};
#undef PEAK_NAME

std::vector<std::string> kernels() {
  std::vector<std::string> names;
  for (unsigned number = 0; const struct ml_peak_kernels* found = ml_peak_kernels(number); number++)
    names.emplace_back(found->name);
  return names;
}

nb::dict measure(const std::vector<int>& cpus, const std::vector<std::string>& kinds, uint64_t bytes, int node,
                 bool huge_pages, uint64_t time_ns, unsigned kernel, uint64_t line_bytes) {
  ml_peak_request request{.cpus = cpus.data(),
                          .threads = cpus.size(),
                          .bytes = bytes / 8192 * 8192,
                          .node = node,
                          .huge_pages = huge_pages,
                          .kinds = 0,
                          .time_ns = time_ns,
                          .kernels = kernel,
                          .line_bytes = line_bytes};
  for (const std::string& name : kinds)
    for (int kind = 0; kind < ML_PEAK_KINDS; kind++)
      if (name == kind_names[kind]) request.kinds |= uint64_t{1} << kind;
  ml_peak_result result{};
  const char* step = "";
  int status = 0;
  {
    nb::gil_scoped_release unlocked;
    status = ml_peak_measure(&request, &result, &step);
  }
  if (status != 0) {
    PyErr_SetObject(PyExc_OSError, nb::make_tuple(-status, std::string(strerror(-status)), step).ptr());
    throw nb::python_error();
  }
  nb::dict found;
  for (int kind = 0; kind < ML_PEAK_KINDS; kind++) {
    const ml_peak_figure& figure = result.figures[kind];
    if (figure.windows == 0) continue;
    nb::dict values;
    values["best"] = figure.best;
    values["median"] = figure.median;
    values["worst"] = figure.worst;
    values["windows"] = figure.windows;
    found[kind_names[kind]] = values;
  }
  found["huge_bytes"] = result.huge_bytes == UINT64_MAX ? nb::none() : nb::object(nb::int_(result.huge_bytes));
  found["taken_ns"] = result.taken_ns;
  return found;
}

int check(unsigned number) {
  std::vector<char> memory(5 * 8192 + 4096);
  auto address = reinterpret_cast<uintptr_t>(memory.data());
  return ml_peak_kernels_check(number, reinterpret_cast<void*>((address + 4095) / 4096 * 4096), 5 * 8192);
}

}  // namespace

void bind_peaks(nb::module_& module) {
  nb::list names;
  for (const char* name : kind_names) names.append(name);
  module.attr("PEAK_KINDS") = nb::tuple(names);
  module.def("peak_kernels", &kernels, "Kernels that this processor can run, by number.");
  module.def("measure_peaks", &measure, nb::kw_only(), "cpus"_a, "kinds"_a, "bytes"_a = 0, "node"_a = -1,
             "huge_pages"_a = true, "time_ns"_a = 100000000, "kernel"_a = 0, "line_bytes"_a = 64,
             "Best, median and worst of each kind, for one pinned thread on each CPU with so many bytes.");
  module.def("check_peak_kernels", &check, "number"_a, "0: they do what they should; else the first that does not.");
}
