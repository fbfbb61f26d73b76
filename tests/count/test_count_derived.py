"""Counts that variables of the program tell, and counts that follow from others, are exact: in all, and in each region."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from count_runs import each_clang_at_length, levels_and_clangs, needs_clang
from test_count_exact import as_counted, ask, build, counted, per_site, write_program

TOLD = Path(__file__).resolve().parent / "hard" / "told.c"

pytestmark = needs_clang
__all__ = ["as_counted"]  # used in every test here, too


@levels_and_clangs("-O2", with_all="-O2", slow=("-O1",))
def test_loops_that_variables_tell(tmp_path: Path, clang: str, level: str) -> None:
    output, status, capture = counted(
        tmp_path, "naive", [str(build([TOLD], tmp_path / "naive", level, "--memlens-naive", clang=clang, cxx=False))]
    )
    expected = per_site(capture)
    assert status == 0 and sum(row[1] for row in expected.values()) > 1_000_000
    for step in ("", "no-flow", "no-tallies", "no-callees", "no-publish", "no-keep,no-flow"):
        options = [f"--memlens-placement={step}"] if step else []
        made = build([TOLD], tmp_path / "made", level, "--memlens-verify", *options, clang=clang, cxx=False)
        again, status, capture = counted(tmp_path, "made", [str(made)])
        assert (again, status) == (output, 0)
        assert per_site(capture) == expected, step


def in_regions(capture: Path) -> Counter[tuple[str, str, int]]:
    rows = ask(capture, "SELECT region, function, site, executions FROM site_counts")
    found: Counter[tuple[str, str, int]] = Counter()
    for row in rows:
        found[row["region"], row["function"], row["site"]] += int(row["executions"])
    return Counter({key: count for key, count in found.items() if count})


@each_clang_at_length
def test_regions_have_counts_of_their_own(tmp_path: Path, clang: str) -> None:
    """What enters a block leaves it in the same region: sums of counters hold in each, however regions are left."""
    sources = write_program(tmp_path, seed=33, units=1, functions=25)
    flags = ("-O2", "-DREGIONS", "--memlens-no-versions")
    naive = build(sources, tmp_path / "naive", *flags, "--memlens-naive", clang=clang)
    few = build(sources, tmp_path / "few", *flags, clang=clang)
    for number, run in enumerate((["1"], ["5", "321"])):
        output, status, capture = counted(tmp_path, f"naive{number}", [str(naive), *run])
        again, same_status, other = counted(tmp_path, f"few{number}", [str(few), *run])
        assert (again, same_status) == (output, status)
        expected = in_regions(capture)
        assert len({region for region, _, _ in expected}) > 3
        assert in_regions(other) == expected
