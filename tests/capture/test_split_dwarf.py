"""Split DWARF (-gsplit-dwarf): functions, lines and inlined frames from .dwo files and .dwp packages.

Oracles, address by address over the program's whole .text: the same program built without -gsplit-dwarf, and
llvm-symbolizer on the split program.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import needs_faults

import memlens
from memlens import _core

# Inlined calls with ranges of several pieces (cold parts), templates, namespaces, static functions, two units.
FIRST = r"""
#include <cstdio>
#include <cstdlib>
int other(int);
namespace ns {
struct S {
  int v;
  inline __attribute__((always_inline)) int get(int k) {
    if (__builtin_expect(k > 1000, 0)) {
      puts("big");
      abort();
    }
    return v * k;
  }
  int sum(int n) {
    int s = 0;
    for (int i = 0; i < n; i++) s += get(i);
    return s;
  }
};
}
static inline __attribute__((always_inline)) int twice(int x) { return other(x) + other(x + 1); }
namespace { __attribute__((noinline)) int local(int n) { ns::S s{n}; return s.sum(n) + twice(n); } }
int main(int argc, char **) {
  int total = 0;
  for (int i = 0; i < argc * 10; i++) total += local(i);
  return total & 1;
}
"""
SECOND = r"""
template <class T> static inline __attribute__((always_inline)) T mul(T a, T b) { volatile T c = a; c *= b; return c; }
__attribute__((noinline)) int other(int x) { return mul<int>(x, 3) + (int)mul<double>(x, 0.5); }
"""
COMPILERS = [("g++", 4), ("g++", 5), ("clang++-19", 4), ("clang++-19", 5)]
Frames = list[tuple[str, str, int]]


def run(folder: Path, *words: str) -> str:
    return subprocess.run(words, cwd=folder, check=True, capture_output=True, text=True, timeout=60).stdout


def build(folder: Path, compiler: str, *flags: str, sources: tuple[str, str] = (FIRST, SECOND)) -> Path:
    if shutil.which(compiler) is None:
        pytest.skip(f"no {compiler}")
    folder.mkdir(exist_ok=True)
    for name, text in zip(("first", "second"), sources, strict=True):
        (folder / f"{name}.cpp").write_text(text)
    run(folder, compiler, "-O2", *flags, "-c", "first.cpp", "second.cpp")
    run(folder, compiler, "first.o", "second.o", "-o", "program")
    return folder / "program"


def text_section(program: Path) -> tuple[int, int, int]:
    """(virtual address, file offset, bytes) of .text."""
    shown = run(program.parent, "readelf", "-SW", str(program))
    found = re.search(r" \.text +PROGBITS +([0-9a-f]+) ([0-9a-f]+) ([0-9a-f]+)", shown)
    assert found
    return int(found[1], 16), int(found[2], 16), int(found[3], 16)


def frames_of(program: Path) -> tuple[list[Frames], str]:
    """Frames of each address of .text, innermost first, and the note on missing files."""
    _, offset, size = text_section(program)
    module = _core.ModuleSymbols(str(program))
    assert module.status == "" and module.quality == "dwarf"
    resolved = module.resolve(list(range(offset, offset + size)))
    frames = [[(f[0], Path(f[1]).name, f[2]) for f in entry] for entry in resolved]
    return frames, module.split_note


def n_inlined(frames: list[Frames]) -> int:
    return sum(len(entry) > 1 for entry in frames)


def symbolizer_frames(program: Path, *options: str) -> list[Frames]:
    tool = shutil.which("llvm-symbolizer-19")
    if tool is None:
        pytest.skip("no llvm-symbolizer-19")
    begin, _, size = text_section(program)
    asked = "".join(f"{address:#x}\n" for address in range(begin, begin + size))
    shown = subprocess.run(
        [tool, "--obj", str(program), "--output-style=JSON", "--inlines", "--demangle", *options],
        input=asked, capture_output=True, text=True, check=True, timeout=60,
    ).stdout  # fmt: skip
    return [
        [(s["FunctionName"], Path(s["FileName"]).name, s["Line"]) for s in json.loads(line)["Symbol"]]
        for line in shown.splitlines()
    ]


def plain(name: str) -> str:
    """Without parameters, return types and clones: the tools write those of internal functions differently."""
    name = re.sub(r" \[clone [^]]*\]|\.(cold|part|isra|constprop)\b.*", "", name).replace("(anonymous namespace)::", "")
    return re.sub(r"[(<].*", "", name).split(" ")[-1].split("::")[-1]


def agreement(ours: list[Frames], theirs: list[Frames]) -> tuple[int, int]:
    """(addresses to which both give a function, of those with the same frames). Padding between functions has none."""

    def comparable(frames: Frames) -> Frames:
        return [(plain(function), file if line else "", line) for function, file, line in frames]

    compared = same = 0
    for mine, other in zip(ours, theirs, strict=True):
        assert bool(mine) == bool(other[0][0])
        if mine:
            compared += 1
            same += comparable(mine) == comparable(other)
    return compared, same


def package(program: Path, tool: str) -> None:
    """program.dwp from the .dwo files, which are then removed."""
    if shutil.which(tool) is None:
        pytest.skip(f"no {tool}")
    run(program.parent, tool, "-e", program.name, "-o", program.name + ".dwp")
    for part in program.parent.glob("*.dwo"):
        part.unlink()


@pytest.mark.parametrize(("compiler", "version"), COMPILERS)
def test_dwo_files_give_the_frames_of_ordinary_debug_information(compiler: str, version: int, tmp_path: Path) -> None:
    whole = build(tmp_path / "whole", compiler, f"-gdwarf-{version}")
    split = build(tmp_path / "split", compiler, f"-gdwarf-{version}", "-gsplit-dwarf")
    assert {part.name for part in split.parent.glob("*.dwo")} == {"first.dwo", "second.dwo"}
    expected, _ = frames_of(whole)
    frames, note = frames_of(split)
    assert frames == expected and note == ""
    assert n_inlined(frames) > 50
    compared, same = agreement(frames, symbolizer_frames(split))
    assert compared > 100 and same == compared


@pytest.mark.parametrize(
    ("compiler", "version", "tool"),
    # binutils' dwp makes packages of DWARF 4 only; neither tool makes one of GCC 12's DWARF 5.
    [("g++", 4, "dwp"), ("g++", 4, "llvm-dwp-19"), ("clang++-19", 4, "dwp"), ("clang++-19", 4, "llvm-dwp-19"),
     ("clang++-19", 5, "llvm-dwp-19")],
)  # fmt: skip
def test_packages_give_the_frames_of_dwo_files(compiler: str, version: int, tool: str, tmp_path: Path) -> None:
    split = build(tmp_path / "split", compiler, f"-gdwarf-{version}", "-gsplit-dwarf")
    expected, _ = frames_of(split)
    package(split, tool)
    frames, note = frames_of(split)
    assert frames == expected and note == "" and n_inlined(frames) > 50


@pytest.mark.parametrize(("compiler", "version"), COMPILERS)
def test_missing_and_stale_dwo_files_are_noted_and_lines_stay(compiler: str, version: int, tmp_path: Path) -> None:
    split = build(tmp_path / "split", compiler, f"-gdwarf-{version}", "-gsplit-dwarf")
    expected, _ = frames_of(split)
    other = build(tmp_path / "other", compiler, f"-gdwarf-{version}", "-gsplit-dwarf",
                  sources=(FIRST.replace("twice", "double_of"), SECOND))  # fmt: skip
    (split.parent / "first.dwo").write_bytes((other.parent / "first.dwo").read_bytes())
    frames, note = frames_of(split)
    assert "1 unit is missing" in note and "first.dwo: no unit with id" in note
    (split.parent / "first.dwo").unlink()
    (split.parent / "second.dwo").unlink()
    without, note = frames_of(split)
    assert "2 units is missing" in note and "first.dwo: not found" in note
    assert n_inlined(without) == 0 < n_inlined(frames) < n_inlined(expected)
    for found in (frames, without):
        for mine, full in zip(found, expected, strict=True):
            if full and full[0][2]:  # the innermost line is the line table's, which stays in the program
                assert mine[0][1:] == full[0][1:] and mine[0][0]


def test_dwo_files_are_found_beside_a_program_that_moved(tmp_path: Path) -> None:
    split = build(tmp_path / "split", "g++", "-g", "-gsplit-dwarf")
    expected, _ = frames_of(split)
    moved = tmp_path / "moved"
    split.parent.rename(moved)
    assert frames_of(moved / "program") == (expected, "")


def test_packages_are_found_in_debug_directories(tmp_path: Path) -> None:
    split = build(tmp_path / "split", "g++", "-gdwarf-4", "-gsplit-dwarf")
    _, offset, size = text_section(split)
    offsets = list(range(offset, offset + size))
    expected = _core.ModuleSymbols(str(split)).resolve(offsets)
    package(split, "dwp")
    below = Path(f"{tmp_path}/debug{split}.dwp")
    below.parent.mkdir(parents=True)
    (split.parent / "program.dwp").rename(below)
    assert _core.ModuleSymbols(str(split), debug_directories=[f"{tmp_path}/debug"]).resolve(offsets) == expected
    assert _core.ModuleSymbols(str(split)).resolve(offsets) != expected


@pytest.mark.parametrize(
    ("compiler", "flags"),
    [("g++", ("-gdwarf-5", "-gsplit-dwarf", "-fdebug-types-section", "-gz")), ("clang++-19", ("-g", "-gsplit-dwarf=single"))],
)  # fmt: skip
def test_type_units_compressed_sections_and_entries_in_the_object_file(
    compiler: str, flags: tuple[str, ...], tmp_path: Path
) -> None:
    expected, _ = frames_of(build(tmp_path / "whole", compiler, "-g"))
    assert frames_of(build(tmp_path / "split", compiler, *flags)) == (expected, "")


@needs_faults
def test_a_capture_has_inlined_frames_of_split_units_or_a_note(
    record: Callable[..., memlens.Capture], tmp_path: Path
) -> None:
    touch = """
    #include <cstdlib>
    inline __attribute__((always_inline)) void fill(char *p, long n) { for (long i = 0; i < n; i += 4096) ((volatile char *)p)[i] = 1; }
    int main() { fill((char *)malloc(8 << 20), 8 << 20); }
    """
    program = build(tmp_path / "split", "g++", "-g", "-gsplit-dwarf", sources=(touch, SECOND))

    def callers(capture: memlens.Capture) -> list[list[str]]:
        rows = capture.table("sites").to_pylist()
        return [
            row["inlined_into"]
            for row in rows
            if row["module"] == str(program) and row["function"] == "fill(char*, long)"
        ]

    capture = record(program)
    assert ["main (first.cpp:4)"] in callers(capture)
    assert not any("split debug" in note for note in capture.quality.notes)
    (program.parent / "first.dwo").unlink()
    capture = record(program)
    assert callers(capture) == []
    assert any("first.dwo: not found" in note for note in capture.quality.notes)
