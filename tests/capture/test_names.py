"""Names and places as they are printed: demangled clones, files that belong to their lines, room for file and line."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from conftest import run_memlens
from count_tools import compile_counted

import memlens
from memlens.capture.model.symbols import known_places, readable
from memlens.present._names import fit, short_function

Record = Callable[..., memlens.Capture]
CLONES = ["_Z3foov._omp_fn.0", "_ZN9Generator4makeEv.omp_outlined", "_Z3fooi.isra.0", "_Z3fooi.constprop.0.isra.1", "_Z3fooi.cold",
          "_Z3fooi.part.0", "_Z3fooi.llvm.12345678", "_ZdlPvm", "_ZN9GeneratorIiE4makeEv.omp_outlined_debug__"]  # fmt: skip


@pytest.mark.skipif(shutil.which("c++filt") is None, reason="no c++filt; to run: sudo apt-get install binutils")
def test_clones_are_demangled_as_by_cxxfilt() -> None:
    shown = subprocess.run(["c++filt", *CLONES], capture_output=True, text=True, check=True).stdout.splitlines()
    assert [readable(name) for name in CLONES] == shown


def test_clones_with_other_suffixes_keep_them_beside_the_name() -> None:
    assert readable("_ZN9Generator4makeEv.omp_outlined.") == "Generator::make() [clone .omp_outlined.]"
    assert readable("_Z3fooi.Weird") == "foo(int) [clone .Weird]"
    assert readable("plain.isra.0") == "plain.isra.0" and readable("_Znot_a_name.x") == "_Znot_a_name.x"


LONG = "std::vector<double, std::allocator<double> > ns::combine<double, std::map<int, std::vector<float> > >(std::vector<double> const&, int)"


@pytest.mark.parametrize("width", range(16, 140, 3))
def test_names_fit_and_keep_file_and_line(width: int) -> None:
    for function in (
        LONG,
        "f",
        "T::operator->() const",
        "bool operator< <int>(int, int)",
        "main.cold",
        LONG + " [clone ._omp_fn.0]",
    ):
        text = fit(f"{function}  solver.cpp:1234", width + 8)
        assert len(text) <= width + 8 and (text.endswith("solver.cpp:1234") or width + 8 < 25)
        assert len(short_function(function, width)) <= width
        assert "combine" in short_function(function, width) or "combine" not in function or width < 24


def test_line_0_and_unknown_files_are_no_places() -> None:
    table = pa.table(
        {
            "file": ["a.c", "lvm.c", "<unknown file>", None],
            "line": pa.array([3, 0, 7, 0], pa.uint32()),
            "x": [1, 2, 3, 4],
        }
    )
    assert known_places(table).select(["file", "line"]).to_pylist() == [
        {"file": "a.c", "line": 3}, {"file": None, "line": 0}, {"file": None, "line": 0}, {"file": None, "line": 0}]  # fmt: skip


VECTOR = """
#include <cstdio>
#include <vector>
int main() {
  std::vector<float> a(1 << 18, 1.0f);
  float s = 0;
  for (int k = 0; k < 40; k++)
    for (size_t i = 0; i < a.size(); i++) s += a[i];
  printf("%g\\n", s);
}
"""


def test_every_line_of_a_counted_program_is_a_line_of_its_file(record: Record, tmp_path: Path) -> None:
    """`std::vector` is inlined into main: a line of its header is never shown with the file of main. Oracle: the files themselves."""
    source = tmp_path / "sc.cpp"
    source.write_text(VECTOR)
    capture = record(compile_counted(source, tmp_path / "sc", "-lstdc++"))
    report = json.loads(run_memlens("report", str(capture.path), "--json").stdout)
    seen = 0
    for result in report["results"].values():
        for rows in result["tables"].values():
            for row in rows:
                if isinstance(row, dict) and row.get("file") and "line" in row:
                    assert row["line"] > 0, row
                    if Path(row["file"]).exists():
                        seen += 1
                        assert row["line"] <= len(Path(row["file"]).read_text(errors="replace").splitlines()), row
    assert seen >= 4
    blocks = report["results"]["bandwidth"]["tables"]["by_block"]
    assert {Path(row["file"]).name for row in blocks if row["share"] > 0.5} <= {"sc.cpp", "stl_vector.h"}
    claims = " ".join(finding["claim"] for finding in report["findings"])
    assert "sc.cpp:8" in claims or "scalar_floats" not in {finding["name"] for finding in report["findings"]}
