"""Allocations and first touches are shown at the place that a programmer would name, with what stood between."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import needs_faults, run_memlens

import memlens
from memlens.capture.model.call_stacks import LIBRARY_NAMES, call_stacks, plain_name

Record = Callable[..., memlens.Capture]

WRAPPED = r"""
#include <stdlib.h>
#include <string.h>
#define OWN __attribute__((noinline))
static void *kept[64];
static int n_kept;
OWN static void *keep(void *p) { kept[n_kept++ % 64] = p; __asm__ volatile("" ::: "memory"); return p; }
/* Named as malloc is; a pool for many users; a maker of one kind of object. */
OWN void *zmalloc(size_t n) { void *p = malloc(n); memset(p, 1, n); __asm__ volatile("" ::: "memory"); return p; }
OWN void *pool_get(size_t n) { void *p = malloc(n); __asm__ volatile("" ::: "memory"); return p; }
OWN void *make_node(void) { void *p = malloc(100000); __asm__ volatile("" ::: "memory"); return p; }
OWN void dict(void) { keep(zmalloc(3 << 20)); __asm__ volatile("" ::: "memory"); }
OWN void list(void) { keep(zmalloc(1 << 20)); __asm__ volatile("" ::: "memory"); }
#define USER(name, n) OWN void name(void) { keep(pool_get(n)); __asm__ volatile("" ::: "memory"); }
USER(user_a, 70000) USER(user_b, 80000) USER(user_c, 90000) USER(user_d, 100000) USER(user_e, 110000)
#define NODE(name) OWN void name(void) { keep(make_node()); __asm__ volatile("" ::: "memory"); }
NODE(tree_a) NODE(tree_b) NODE(tree_c) NODE(tree_d) NODE(tree_e)
int main(void) {
  dict(); list();
  user_a(); user_b(); user_c(); user_d(); user_e();
  tree_a(); tree_b(); tree_c(); tree_d(); tree_e();
  return 0;
}
"""

CONTAINER = r"""
#include <cstdio>
#include <vector>
template <class T> struct pvector {
  T *data; size_t n;
  __attribute__((noinline)) explicit pvector(size_t count) : data(new T[count]), n(count) {}
  __attribute__((noinline)) ~pvector() { delete[] data; }
};
__attribute__((noinline)) long ranks() { pvector<double> v(300000); for (size_t i = 0; i < v.n; i++) v.data[i] = i; return v.data[7]; }
__attribute__((noinline)) long depths() { pvector<int> v(500000); for (size_t i = 0; i < v.n; i++) v.data[i] = i; return v.data[7]; }
__attribute__((noinline)) long filled() { std::vector<long> v(200000, 3); return v[11]; }
int main() { printf("%ld\n", ranks() + depths() + filled()); }
"""


def built(directory: Path, text: str, *flags: str, compiler: str = "gcc", suffix: str = "c") -> Path:
    source, program = directory / f"program.{suffix}", directory / "program"
    source.write_text(text)
    subprocess.run([compiler, "-O2", "-g", *flags, str(source), "-o", str(program)], check=True, capture_output=True)
    return program


def sites(capture: memlens.Capture) -> dict[str, dict[str, Any]]:
    rows = memlens.analyses.run("objects", capture).tables["by_site"].to_pylist()
    return {plain_name(row["function"] or ""): row for row in rows}


def test_allocations_belong_to_the_callers_of_wrappers(record: Record, tmp_path: Path) -> None:
    """By the source: zmalloc and pool_get allocate for others, make_node makes one kind of object."""
    capture = record(built(tmp_path, WRAPPED))
    rows = sites(capture)
    assert {"dict", "list", "user_a", "user_b", "user_c", "user_d", "user_e", "make_node"} <= set(rows)
    assert not {"zmalloc", "pool_get", "main", "tree_a"} & set(rows)
    assert rows["dict"]["allocated_bytes"] == 3 << 20 and rows["dict"]["via"] == "zmalloc"
    assert rows["user_c"]["via"] == "pool_get" and rows["make_node"]["via"] is None
    assert rows["make_node"]["allocations"] == 5 and rows["user_e"]["allocated_bytes"] == 110000
    assert {name for _, name in call_stacks(capture).wrappers} == {"pool_get"}


def test_constructors_are_wrappers_of_what_they_allocate(record: Record, tmp_path: Path) -> None:
    rows = sites(record(built(tmp_path, CONTAINER, compiler="g++", suffix="cpp")))
    assert rows["ranks"]["allocated_bytes"] == 2400000 and rows["ranks"]["via"] == "pvector::pvector"
    assert rows["depths"]["allocated_bytes"] == 2000000 and rows["depths"]["via"] == "pvector::pvector"
    assert rows["filled"]["allocated_bytes"] == 1600000
    assert "pvector::pvector" not in rows and not any("operator new" in name for name in rows)


def test_frames_to_skip_are_the_users(record: Record, tmp_path: Path) -> None:
    capture = record(built(tmp_path, WRAPPED))
    report = memlens.analyses.report(capture, skip_frames="^make_node$|^user_[ab]$")
    names = {row["function"] for row in report.results["objects"].tables["by_site"].to_pylist()}
    assert {"tree_a", "tree_e", "main", "user_c"} <= names and not {"make_node", "user_a", "user_b"} & names
    shown = run_memlens(
        "report",
        str(capture.path),
        "--skip-frames",
        "^make_node$",
        "--rows",
        "30",
        env={**os.environ, "COLUMNS": "200"},
    )
    assert shown.returncode == 0 and "tree_c" in shown.stdout and "via make_node" in shown.stdout
    refused = run_memlens("report", str(capture.path), "--skip-frames", "(")
    assert refused.returncode == 64 and "regular expression" in refused.stderr


TOUCHING = r"""
#include <stdlib.h>
#include <string.h>
#define OWN __attribute__((noinline))
enum { MIB = 1 << 20 };
OWN char *clear_large(void) { char *p = malloc(24 * MIB); memset(p, 1, 24 * MIB); __asm__ volatile("" ::: "memory"); return p; }
OWN char *clear_small(void) { char *p = malloc(8 * MIB); memset(p, 2, 8 * MIB); __asm__ volatile("" ::: "memory"); return p; }
OWN char *by_hand(void) { char *p = malloc(4 * MIB); for (int i = 0; i < 4 * MIB; i += 4096) ((volatile char *)p)[i] = 1; return p; }
OWN long small_ones(void) { long s = 0; for (int i = 0; i < 40000; i++) s += ((char *)malloc(400))[0]; __asm__ volatile("" ::: "memory"); return s; }
int main(void) { return (clear_large()[9] + clear_small()[9] + by_hand()[1] + small_ones()) & 0; }
"""


@needs_faults
@pytest.mark.parametrize("flags", [(), ("-fomit-frame-pointer",)], ids=["default", "no frame pointers"])
def test_first_touches_of_the_c_library_belong_to_its_callers(
    record: Record, tmp_path: Path, flags: tuple[str, ...]
) -> None:
    """24, 8, 4 and 16 MiB by the source, whatever memset and malloc do inside; the sum over places is the exact total."""
    capture = record(built(tmp_path, TOUCHING, "-fno-builtin", *flags))
    result = memlens.analyses.run("first_touch", capture)
    rows = {row["function"]: row for row in result.tables["by_function"].to_pylist()}
    for function, mib in (("clear_large", 24), ("clear_small", 8), ("by_hand", 4), ("small_ones", 16)):
        assert rows[function]["bytes"] == pytest.approx(mib << 20, rel=0.25), (function, rows[function])
    assert rows["clear_large"]["estimated"] and not rows["by_hand"]["estimated"]
    assert "memset" in rows["clear_large"]["via"]
    assert not any(LIBRARY_NAMES.match(name or "") and row["bytes"] > 1 << 20 for name, row in rows.items())
    for table in ("by_function", "by_line"):
        assert sum(result.tables[table].column("bytes").to_pylist()) == result.figures["first_touched_bytes"]
        assert sum(result.tables[table].column("faults").to_pylist()) == result.figures["placing_faults"]


@pytest.mark.parametrize(
    "name",
    ["malloc", "zmalloc", "luaM_malloc_", "sqlite3Malloc", "xcalloc", "operator new(unsigned long)", "_int_malloc",
     "__memset_avx512_unaligned_erms", "memmove", "std::vector<int>::vector()", "void std::fill<int*>(int*)", "<alloc::vec::Vec<u8>>::push",
     "__GI___libc_malloc", "zmalloc_usable"],
)  # fmt: skip
def test_functions_of_libraries_are_no_places(name: str) -> None:
    assert LIBRARY_NAMES.match(name) or name.startswith("__GI_")


@pytest.mark.parametrize(
    "name", ["main", "memory_pool_init", "strategy", "allocate_matrix", "standard", "mallocated_total", "copy"]
)
def test_functions_of_programs_are_places(name: str) -> None:
    assert not LIBRARY_NAMES.match(name)


NO_PIE = r"""
#include <stdlib.h>
void *(*volatile get)(size_t) = malloc;
int main(void) { long s = 0; for (int i = 0; i < 3000; i++) { char *p = get(1000 + i % 9); p[3] = 1; s += p[3]; free(p); } return s != 3000; }
"""
OWN_MALLOC = r"""
#include <stddef.h>
static char pool[1 << 22];
static size_t at;
void *malloc(size_t n) { void *p = pool + at; at += (n + 31) & ~15ul; return p; }
void free(void *p) { (void)p; }
void *calloc(size_t a, size_t b) { return malloc(a * b); }
void *realloc(void *p, size_t n) { (void)p; return malloc(n); }
int main(void) { for (int i = 0; i < 1000; i++) ((char *)malloc(100))[0] = 1; return 0; }
"""


@pytest.mark.parametrize(
    ("text", "flags", "own"),
    [
        (NO_PIE, ("-fno-pie", "-no-pie"), False),
        (NO_PIE, ("-fno-pie", "-no-pie", "-fno-plt", "-Wl,-z,now"), False),
        (OWN_MALLOC, ("-fno-pie", "-no-pie", "-fno-builtin"), True),
        (OWN_MALLOC, ("-fno-builtin", "-Wl,--export-dynamic"), True),
    ],
)
def test_only_a_malloc_of_its_own_is_called_so(
    record: Record, tmp_path: Path, text: str, flags: tuple[str, ...], own: bool
) -> None:
    """A non-PIE program that takes malloc's address exports its PLT entry under that name: that is no malloc."""
    capture = record(built(tmp_path, text, *flags), options=("--sample-bytes", "0"))
    assert any("its own malloc" in note for note in capture.quality.notes) == own
    allocations = memlens.analyses.run("objects", capture).figures["allocations"]
    assert allocations == 0 if own else allocations >= 3000
