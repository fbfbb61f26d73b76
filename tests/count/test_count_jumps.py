"""Regions that a longjmp leaves are closed where control comes back, and only those."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from count_runs import levels_and_clangs, needs_clang
from test_count_exact import ask, build, counted

JUMPS = Path(__file__).resolve().parent / "hard" / "jumps.c"
ROUNDS = 4
WRITTEN = {
    # words by region and round: what `work` wrote there, and one for each `fail` on the way to the jump
    "decode": 10 + 4,
    "attempt": 10 + 4,
    "around": 4 + 20,
    "outer / inner / innermost": 5 + 1,
    "outer": 30,
    "looping": 10 * (3 + 1),
    "by_signal": 7,
    "by header": 11 + 3,
    "both ways": 12 + 3 + 13,
    "whole_function": 2 + 40,
    "inner_function": 2 + 2,
    "": 100 + 500 + 100 + 60 + 10,
}

pytestmark = needs_clang


@levels_and_clangs("-O0", "-O2", with_all="-O2")
@pytest.mark.parametrize("sampling", ["", "--count=every=1000000"])
def test_a_longjmp_closes_what_was_begun_after_its_setjmp(
    tmp_path: Path, level: str, clang: str, sampling: str
) -> None:
    program = build(
        [JUMPS], tmp_path / "jumps", level, "--memlens-verify",
        "--memlens-functions=^(whole_function|inner_function)$", clang=clang, cxx=False,
    )  # fmt: skip
    output, status, capture = counted(tmp_path, "jumps", [str(program)], *([sampling] if sampling else []))
    assert (output, status) == ("done\n", 0)
    times = ask(
        capture, "SELECT region, sum(entered)::BIGINT e, sum(abandoned)::BIGINT a FROM region_times GROUP BY ALL"
    )
    entered = {row["region"]: row["e"] for row in times if row["region"]}
    per_round = {"looping": 10, "last": 0.25}
    assert entered == {
        name: int(ROUNDS * per_round.get(name, 1)) for name in [*filter(None, WRITTEN), "outer / inner", "last"]
    }
    kept = {"around", "outer", "both ways", "whole_function", "last"}
    assert {row["region"] for row in times if row["a"]} == set(entered) - kept
    if sampling:
        return
    words: Counter[str] = Counter()
    for row in ask(
        capture,
        "SELECT region, written_bytes - stack_written_bytes AS w FROM site_counts WHERE function IN ('work', 'fail')",
    ):
        words[row["region"] or ""] += row["w"] // 8
    assert words == {**{name: ROUNDS * n for name, n in WRITTEN.items()}, "last": 1000}
