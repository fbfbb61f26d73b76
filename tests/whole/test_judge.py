"""The quick part of the standing judge (benchmarks/judge.py): Debian's programs beside the kernel's counts, heaptrack, lackey and cachegrind."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import MEMLENS, ROOT, needs_faults

sys.path.insert(0, str(ROOT / "benchmarks"))

from judging import accesses, findings, heap, kernel, outputs, programs
from judging.model import Missing, Row, fails, worst_first

QUICK = programs.named(None, quick=True)


def judged(rows: Iterator[Row | Missing]) -> list[Row]:
    """All rows; fails with those that do not hold, skips where nothing could be compared."""
    found = list(rows)
    compared = [row for row in found if isinstance(row, Row)]
    if not compared:
        pytest.skip("; ".join(sorted({row.why for row in found if isinstance(row, Missing)})))
    wrong = fails(compared)
    assert not wrong, "\n".join(
        f"{r.program}: {r.metric}: {r.reported}, {r.oracle} says {r.low} to {r.high}" for r in worst_first(wrong)
    )
    return compared


@needs_faults
def test_faults_and_peaks_are_the_kernels(tmp_path: Path) -> None:
    rows = judged(kernel.judge(MEMLENS, QUICK, tmp_path))
    assert {row.metric for row in rows} >= {"page faults", "peak RSS of the largest process", "exit status"}


def test_allocations_are_heaptracks(tmp_path: Path) -> None:
    chosen = [program for program in QUICK if program.name in ("sort", "sqlite3")]
    judged(heap.judge(MEMLENS, chosen, tmp_path, slow=False))


def test_accesses_are_lackeys(tmp_path: Path) -> None:
    """One program: lackey takes ten seconds for it."""
    chosen = [program for program in QUICK if program.name == "gzip"]
    judged(accesses.judge(MEMLENS, chosen, tmp_path))


def test_misses_are_cachegrinds(tmp_path: Path) -> None:
    judged(accesses.judge_misses(MEMLENS, sys.executable, tmp_path))


@needs_faults
def test_healthy_programs_have_no_findings_and_bad_ones_do(tmp_path: Path) -> None:
    judged(findings.judge(MEMLENS, QUICK, tmp_path, quick=True))


@needs_faults
def test_every_output_has_the_same_figures(tmp_path: Path) -> None:
    judged(outputs.judge(MEMLENS, sys.executable, QUICK[:2], tmp_path))


def test_a_difference_beyond_its_tolerance_fails() -> None:
    """The judge itself: a check that cannot fail proves nothing."""
    row = Row("p", "c", "m", 106, 99, 100, "o", 0.05)
    assert row.verdict == "FAILS" and row.error == pytest.approx(0.06)
    assert Row("p", "c", "m", 104.9, 99, 100, "o", 0.05).verdict == "holds"
    assert Row("p", "c", "m", 99.5, 99, 100, "o", 0.0).verdict == "holds"
    assert Row("p", "c", "m", 1, 0, 0, "o", 0.0).verdict == "FAILS"
    assert Row("p", "c", "m", None, 0, 0, "o", 0.0).verdict == "withheld"
    assert Row("p", "c", "m", 106, 99, 100, "o", 0.05, reason="known").verdict == "explained"


def test_examples_in_docstrings() -> None:
    import doctest

    from judging import compiled, model, page

    for module in (compiled, model, page):
        result = doctest.testmod(module)
        assert result.attempted and not result.failed, module.__name__
