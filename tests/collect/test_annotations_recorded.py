"""Regions, phases and tags of annotated programs, recorded: whatever way the program was built."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import run_memlens

import memlens

PROGRAM = r"""
#include <stdio.h>
#include <stdlib.h>
#include "memlens.h"
%(declare)s
int main(void) {
  double *matrix = malloc(80000);
  memlens_phase("setup");
  memlens_begin("outer");
  for (int i = 0; i < 3; i++) {
    memlens_begin("inner");
    for (int k = 0; k < 10000; k++) matrix[k] = i + k;
    memlens_end("inner");
  }
  memlens_tag("matrix", matrix, 80000);
  memlens_phase("solve");
  %(call)s
  memlens_untag(matrix);
  memlens_end("outer");
  printf("%%.0f\n", matrix[9999]);
  free(matrix);
  return 0;
}
"""
LIBRARY = r"""
#include "memlens.h"
void in_library(void) {
  memlens_begin("library");
  memlens_end("library");
}
"""
DLOPEN = {
    "declare": "#include <dlfcn.h>",
    "call": 'void *handle = dlopen("./liblater.so", RTLD_NOW); if (!handle) return 9;'
    ' void (*function)(void) = (void (*)(void))dlsym(handle, "in_library"); function(); dlclose(handle);',
}


def config(option: str) -> list[str]:
    done = run_memlens("config", option)
    assert done.returncode == 0
    return done.stdout.split()


def build(folder: Path, flags: list[str], *, dlopened: bool = False, libraries: list[str] | None = None) -> Path:
    source = folder / "program.c"
    source.write_text(PROGRAM % (DLOPEN if dlopened else {"declare": "", "call": ""}))
    program = folder / "program"
    command = ["cc", "-O2", "-g", *config("--cflags"), *flags, "-o", str(program), str(source), *(libraries or [])]
    subprocess.run(command, check=True, capture_output=True)
    if dlopened:
        (folder / "later.c").write_text(LIBRARY)
        subprocess.run(
            [
                "cc",
                "-O2",
                "-shared",
                "-fPIC",
                *config("--cflags"),
                "-o",
                str(folder / "liblater.so"),
                str(folder / "later.c"),
            ],
            check=True,
        )
    return program


def regions_of(capture: memlens.Capture) -> list[tuple[str, str, int, str | None, bool]]:
    return [
        (row["kind"], row["name"], row["depth"], row["parent"], row["open"])
        for row in sorted(capture.table("regions").to_pylist(), key=lambda row: (row["begin_ns"], row["depth"]))
    ]


EXPECTED = [
    ("phase", "setup", 0, None, False),
    ("region", "outer", 0, None, False),
    ("region", "inner", 1, "outer", False),
    ("region", "inner", 1, "outer", False),
    ("region", "inner", 1, "outer", False),
    ("phase", "solve", 0, None, True),
]
BUILDS = {
    "PIE": (["-fPIE", "-pie"], False),
    "no-PIE": (["-fno-PIE", "-no-pie"], False),
    "static": (["-static"], True),
    "static-PIE": (["-static-pie"], True),
    "O0": (["-O0"], False),
}


@pytest.mark.parametrize("name", BUILDS)
def test_regions_phases_and_tags(tmp_path: Path, name: str) -> None:
    flags, static = BUILDS[name]
    program = build(tmp_path, flags, libraries=config("--static-libs") if static else None)
    native = subprocess.run([program], capture_output=True, text=True, check=True)
    output = tmp_path / "c.memlens"
    done = run_memlens("record", "-q", "-o", output, "--", program)
    assert (done.returncode, done.stdout, done.stderr) == (0, native.stdout, "")
    capture = memlens.open(output)
    assert regions_of(capture) == EXPECTED
    tags = [row for row in capture.table("objects").to_pylist() if row["kind"] == "tag"]
    assert [(row["name"], row["bytes"]) for row in tags] == [("matrix", 80000)]
    assert tags[0]["died_ns"] is not None
    inside = tags[0]["base"] + 40000, (tags[0]["born_ns"] + tags[0]["died_ns"]) // 2
    found = capture.objects.find([inside[0]], [inside[1]], process=1, layer="tag")
    assert int(found[0]) == tags[0]["id"]


def test_a_static_program_without_the_archive_runs_and_says_why_there_is_nothing(tmp_path: Path) -> None:
    program = build(tmp_path, ["-static"])
    output = tmp_path / "c.memlens"
    done = run_memlens("record", "-q", "-o", output, "--", program)
    assert done.returncode == 0
    capture = memlens.open(output)
    assert capture.table("regions").num_rows == 0
    assert "statically linked" in next(r["reason"] for r in capture.meta["unsupported"] if r["collector"] == "alloc")
    # Started by something else it is counted: the shell has our library, this program has not.
    done = run_memlens("record", "-q", "--force", "-o", output, "--", "sh", "-c", f"{program}; true")
    assert done.returncode == 0
    notes = memlens.analyses.run("objects", memlens.open(output)).quality.notes
    assert any(note.startswith("1 processes ran without our library") and "program" in note for note in notes)


def test_regions_in_a_library_that_is_opened_later(tmp_path: Path) -> None:
    program = build(tmp_path, [], dlopened=True, libraries=["-ldl"])
    output = tmp_path / "c.memlens"
    done = run_memlens("record", "-q", "-o", output, "--", program, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    names = [row[1] for row in regions_of(memlens.open(output))]
    assert names == ["setup", "outer", "inner", "inner", "inner", "solve", "library"]


def test_a_python_program(tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(
        "import memlens\n"
        "import numpy as np\n"
        "a = np.ones(100_000)\n"
        "with memlens.region('solve'):\n"
        "    with memlens.tag('a', a):\n"
        "        total = a.sum()\n"
        "memlens.phase('end')\n"
        "print(total, memlens.is_recording(), hex(a.__array_interface__['data'][0]))\n"
    )
    native = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    assert native.stdout.split()[:2] == ["100000.0", "False"]
    output = tmp_path / "c.memlens"
    done = run_memlens("record", "-q", "-o", output, "--", sys.executable, script)
    total, recording, address = done.stdout.split()
    assert (total, recording) == ("100000.0", "True")
    capture = memlens.open(output)
    assert [row[:2] for row in regions_of(capture)] == [("region", "solve"), ("phase", "end")]
    tag = next(row for row in capture.table("objects").to_pylist() if row["kind"] == "tag")
    assert (tag["name"], tag["base"], tag["bytes"]) == ("a", int(address, 16), 800_000)
    under = capture.objects.find([tag["base"]], [tag["born_ns"]], process=tag["process"])
    under_row = capture.objects.table(under.astype("int64") - 1).to_pylist()[0]
    assert under_row["kind"] in ("heap", "mmap") and under_row["bytes"] >= 800_000


def test_without_a_recorder_each_process_writes_for_itself(tmp_path: Path) -> None:
    program = build(tmp_path, [])
    output = tmp_path / "own.memlens"
    (library,) = config("--preload")
    environment = {**os.environ, "LD_PRELOAD": library, "MEMLENS_OUTPUT": str(output), "MEMLENS_SAMPLE_BYTES": "0"}
    command = ["sh", "-c", f"{program}; {program}"]
    native = subprocess.run(command, capture_output=True, text=True, check=True)
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    assert (done.stdout, done.stderr) == (native.stdout, native.stderr)
    capture = memlens.open(output)
    assert capture.standalone and not capture.quality.truncated
    regions = capture.table("regions").to_pylist()
    assert len({row["process"] for row in regions}) == 2
    for process in {row["process"] for row in regions}:
        mine = [row["name"] for row in regions if row["process"] == process and row["kind"] == "region"]
        assert sorted(mine) == ["inner", "inner", "inner", "outer"]
    sizes = [row["bytes"] for row in capture.table("allocations").to_pylist() if row["operation"] == "malloc"]
    assert sizes.count(80000) == 2
    assert memlens.analyses.run("regions", capture).figures["regions"] == 2
    report = run_memlens("report", output)
    assert report.returncode == 0 and "outer" in report.stdout
