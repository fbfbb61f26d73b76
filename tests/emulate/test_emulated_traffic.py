"""Traffic of real programs under the emulator, against the workloads' closed forms."""

from __future__ import annotations

import shutil
from collections.abc import Callable

import pytest
from conftest import marked_line, workload_path

import memlens
from memlens import registry

Record = Callable[..., memlens.Capture]
pytestmark = [
    pytest.mark.skipif(
        not registry.all_of("collector")["emulate"].available, reason="the collector emulate comes in a later version"
    ),
    pytest.mark.skipif(
        shutil.which("qemu-x86_64") is None, reason="no qemu-user; to run: sudo apt-get install qemu-user"
    ),
]
MIB = 1 << 20


def lines_of(capture: memlens.Capture, function: str) -> dict[int, dict[str, int]]:
    rows = memlens.analyses.run("traffic", capture).tables["by_line"].to_pylist()
    return {row["line"]: row for row in rows if row["function"] == function}


def test_byte_wise_loop_counts_equal_the_closed_form(record: Record) -> None:
    capture = record(workload_path("byte_wise"), "--passes", "3", options=("--emulate",))
    row = lines_of(capture, "cipher_bytes")[marked_line("byte_wise.c")]
    assert row["loads"] == row["stores"] == row["load_bytes"] == row["store_bytes"] == 3 * MIB
    assert row["narrow"] == 6 * MIB
    result = memlens.analyses.run("traffic", capture)
    assert result.quality.exact and result.figures["windows"] > 0


def test_split_loads_equal_the_closed_form(record: Record) -> None:
    capture = record(workload_path("split_lines"), "--passes", "40", options=("--emulate",))
    lines, marked = lines_of(capture, "sum_keys"), marked_line("split_lines.c")
    row = lines.get(marked) or lines[marked + 1]  # where the compiler folds the load into its use
    assert row["loads"] == 40 * 16384 and row["load_bytes"] == 8 * row["loads"]
    rows = memlens.analyses.run("accesses", capture).tables["by_instruction"].to_pylist()
    mine = next(r for r in rows if r["function"] == "sum_keys" and r["split"])
    assert mine["split"] == pytest.approx(mine["accesses"])


def test_estimates_by_function_agree_with_the_exact_counts(record: Record) -> None:
    """Windows of the same run: within five standard errors, and some per cent for their finite number."""
    capture = record(workload_path("copy_heavy"), options=("--emulate",))
    exact = {
        (row["function"], row["module"]): row["loads"] + row["stores"]
        for row in memlens.analyses.run("traffic", capture).tables["by_function"].to_pylist()
    }
    total = sum(exact.values())
    checked = 0
    for row in memlens.analyses.run("accesses", capture).tables["by_function"].to_pylist():
        truth = exact[row["function"], row["module"]]
        if truth < 0.05 * total or row["accesses_error"] is None:
            continue
        assert abs(row["accesses"] - truth) <= 5 * row["accesses_error"] + 0.03 * total
        checked += 1
    assert checked > 0


def test_accesses_go_to_the_buffer_that_main_allocated(record: Record) -> None:
    capture = record(workload_path("byte_wise"), options=("--emulate",))
    rows = memlens.analyses.run("accesses", capture).tables["by_object"].to_pylist()
    assert rows[0]["kind"] == "heap" and rows[0]["function"] == "main" and rows[0]["share"] > 0.5


def test_stack_of_a_function_is_told_from_the_rest(record: Record) -> None:
    capture = record(workload_path("stack_traffic"), options=("--emulate",))
    rows = memlens.analyses.run("traffic", capture).tables["by_function"].to_pylist()
    mine = [row for row in rows if row["function"] in ("fill", "look_up_local")]
    assert sum(row["stack_store_bytes"] for row in mine) >= 100_000 * 256
