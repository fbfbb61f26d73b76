"""Functions that the compiler plugin leaves without counters are told, with the reason; how often a function was called."""

from __future__ import annotations

import io
import platform
from pathlib import Path
from typing import Any

import pytest
from conftest import run_memlens
from count_tools import CALL, ENTRY_FLAG, LOAD, NAKED_FLAG, Block, CountBuilder, Function, Site, compile_counted

import memlens
from memlens.present import html, terminal

SOURCE = r"""
#include <stdio.h>
static volatile long cells[100];
static void first(void) { cells[0]++; }
static void helper_of_resolver(void) { cells[1]++; }
static void (*choose(void))(void) { helper_of_resolver(); return first; }
void chosen(void) __attribute__((ifunc("choose")));
__attribute__((noinline, no_profile_instrument_function)) void left_out(void) { cells[2]++; }
#ifdef __x86_64__
__attribute__((naked)) void bare(void) { __asm__("ret"); }
#else
void bare(void) {}
#endif
__attribute__((noinline)) void leaf(long i) { cells[i]++; }
__attribute__((noinline)) void loop(long n) { for (long i = 0; i < n; i++) cells[i % 100]++; }
__attribute__((noinline)) void rarely(long i) { if (i % 7 == 0) cells[0]++; }
int main(void) {
  chosen(); left_out(); bare();
  for (long i = 0; i < 42; i++) { leaf(i); rarely(i); }
  for (long i = 0; i < 3; i++) loop(1000);
  return 0;
}
"""


@pytest.fixture(scope="module", params=["", "--memlens-mix"])
def result(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("refused")
    (folder / "program.c").write_text(SOURCE)
    flags = [request.param] if request.param else []
    program = compile_counted(folder / "program.c", folder / "program", *flags)
    done = run_memlens("record", "-q", "-o", folder / "run.memlens", "--", program)
    assert done.returncode == 0, done.stderr
    return memlens.analyses.run("bandwidth", memlens.open(folder / "run.memlens")), bool(flags)


def test_each_refused_function_has_its_reason(result: tuple[Any, bool]) -> None:
    found = {row["function"]: row["reason"] for row in result[0].tables["refused"].to_pylist()}
    expected = {
        "choose": "ifunc resolver",
        "left_out": "excluded by its source",
        **({"bare": "naked"} if platform.machine() == "x86_64" else {}),
    }
    found.pop("helper_of_resolver", None)  # where it was not inlined
    assert found == expected
    assert all(row["file"].endswith("program.c") and row["line"] for row in result[0].tables["refused"].to_pylist())
    assert result[0].figures["refused_functions"] == result[0].tables["refused"].num_rows
    (note,) = (note for note in result[0].quality.notes if "have no counters" in note)
    assert "choose: ifunc resolver" in note and "left_out: excluded by its source" in note


def test_calls_are_known_where_a_counter_runs_as_often_anyway(result: tuple[Any, bool]) -> None:
    calls = {row["function"]: row["executions"] for row in result[0].tables["by_function"].to_pylist()}
    assert calls["leaf"] == 42
    # Nothing in these runs once a call, so without the mix no counter does.
    assert calls["rarely"] == (42 if result[1] else None)
    assert calls["loop"] in ((3,) if result[1] else (3, None))


# ---- hand-built ---------------------------------------------------------------------------------------------------------
def test_refused_functions_are_shown_and_calls_of_them_are_unseen(tmp_path: Path) -> None:
    counted = Function(
        "counted", sites=[Site(LOAD, 1), Site(CALL, 1, bytes=0, callee="bare")], flags=ENTRY_FLAG, blocks=[Block(1)]
    )
    bare = Function("bare", counters=[], groups=[[]], blocks=[], flags=NAKED_FLAG, line=7)
    builder = CountBuilder().module([counted, bare]).node(1, "solve").status()
    builder.counted({0: 5}, node=1).timed(1, counted_ns=100)
    report = memlens.analyses.report(builder.open(tmp_path / "c.memlens"))
    result = report.results["bandwidth"]
    assert [(row["callee"], row["calls"]) for row in result.tables["unseen"].to_pylist()] == [("bare", 5)]
    (row,) = result.tables["refused"].to_pylist()
    assert (row["function"], row["reason"], row["line"]) == ("bare", "naked", 7)
    (function,) = result.tables["by_function"].to_pylist()
    assert function["executions"] == 5
    out = io.StringIO()
    terminal.show(report, file=out)
    assert "1 functions have no counters" in " ".join(out.getvalue().split())
    assert "Left uncounted by the compiler plugin" in html.render(report)
