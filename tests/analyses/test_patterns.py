"""Analysis `patterns`: against closed forms, a brute-force oracle, and the assembler; and findings on what only windows saw."""

from __future__ import annotations

import itertools
import platform
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from builders import CaptureBuilder
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_traffic import HEAP, jitted, program

import memlens
from memlens.analyses._chases import AARCH64, X86_64, loads_its_own_base
from memlens.analyses._offsets import in_words, of_words
from memlens.analyses.caches import Level
from memlens.analyses.patterns import access_patterns

LOAD, STORE = 1, 2
F, G = 0x800000, 0x800100
Access = tuple[int, int, int, int]


def base() -> CaptureBuilder:
    builder = jitted(program(), hot=F, other=G, memcpy=0x800200)
    return builder.allocation(10, "malloc", HEAP, 1 << 22, stack=0)


def walk(pc: int, step: int, count: int, *, first: int = HEAP, width: int = 8, operation: int = LOAD) -> list[Access]:
    return [(pc, first + step * i, width, operation) for i in range(count)]


def rows(result: Any, table: str, function: str = "hot") -> dict[str, Any]:
    mine = [row for row in result.tables[table].to_pylist() if row["function"] == function]
    assert len(mine) == 1
    return dict(mine[0])


def findings(capture: memlens.Capture) -> set[str]:
    return {finding.name for finding in memlens.analyses.report(capture).findings}


# ---- closed forms -------------------------------------------------------------------------------------------------
def test_a_walk_over_records_uses_one_field_of_each_line(tmp_path: Path) -> None:
    trace = walk(F, 64, 2000, first=HEAP + 24) * 2
    result = access_patterns(base().window(100, trace).open(tmp_path / "a.memlens"))
    row = rows(result, "by_function_and_object")
    assert (row["lines"], row["used_bytes"], row["addresses"], row["recorded"]) == (2000, 16000, 2000, 4000)
    # Lines leave the first cache before they come again; visits that begin in the last quarter may not be over.
    assert (row["visits"], row["visit_bytes"]) == (3000, 8)
    assert (row["step_bytes"], row["step_share"], row["step_offsets"]) == (64, 1, "24-31")
    one = rows(result, "by_instruction")
    assert (one["class"], one["stride_bytes"], one["same_address_share"], one["operation"]) == (
        "strided",
        64,
        0,
        "load",
    )
    assert one["misses"] == one["misses_full"] == 4000  # 512 lines, and never again within 1,999


def test_lines_of_one_set_miss_only_because_of_sets(tmp_path: Path) -> None:
    """64 lines 4096 bytes apart, ten times: 32 KiB of 8 ways have room for all, but in one set."""
    result = access_patterns(base().window(100, walk(F, 4096, 64) * 10).open(tmp_path / "a.memlens"))
    row = rows(result, "by_function_and_object")
    assert (row["misses"], row["misses_full"]) == (640, 64)
    assert row["sets"] == pytest.approx(1) and row["step_bytes"] == 4096
    padded = access_patterns(base().window(100, walk(F, 4160, 64) * 10).open(tmp_path / "b.memlens"))
    row = rows(padded, "by_function_and_object")
    assert (row["misses"], row["misses_full"]) == (64, 64) and row["sets"] == pytest.approx(64)


def test_a_sweep_just_above_a_cache_is_told_where_it_would_fit(tmp_path: Path) -> None:
    """600 lines swept ten times: every one misses 512 lines, none 640 after the first sweep."""
    result = access_patterns(base().window(100, walk(F, 64, 600) * 10).open(tmp_path / "a.memlens"))
    levels = {row["times"]: row for row in result.tables["levels"].to_pylist() if row["level"] == "L1"}
    assert [levels[times]["misses"] for times in (1.0, 1.125, 1.25, 2.0)] == [6000, 6000, 600, 600]
    assert result.figures["no_reuse"] == 600
    assert rows(result, "by_instruction")["near_misses"] == [5400, 0, 0]


def test_windows_are_visits_of_their_own_and_what_lies_between_is_unknown(tmp_path: Path) -> None:
    builder = base()
    for number in range(10):
        builder.window(1000 * number + 100, walk(F, 64, 100), executed=1000, first_executed=1000 * number, period=1000)
    result = access_patterns(builder.open(tmp_path / "a.memlens"))
    row = rows(result, "by_function_and_object")
    assert result.figures["no_reuse"] == 1000 and row["misses_full"] == 1000 and row["lines"] == 100
    assert row["accesses"] == pytest.approx(10_000) and not result.quality.exact


def test_of_very_many_accesses_parts_are_looked_at_and_it_says_so(tmp_path: Path) -> None:
    builder = base().window(100, walk(F, 64, 3000) * 400)
    result = access_patterns(builder.open(tmp_path / "a.memlens"), most_accesses=600_000)
    assert (
        result.figures["looked_at"] == 4 * 131072 + (1_200_000 - 8 * 131072)
        and result.figures["recorded_accesses"] == 1_200_000
    )
    assert any("evenly spread" in note for note in result.quality.notes) and not result.quality.exact


# ---- brute force ------------------------------------------------------------------------------------------------------
def naive_distances(lines: list[int]) -> list[float]:
    stack: list[int] = []
    found = []
    for line in lines:
        found.append(float("inf") if line not in stack else float(stack.index(line)))
        if line in stack:
            stack.remove(line)
        stack.insert(0, line)
    return found


def naive_misses(lines: list[int], sets: int, ways: int) -> int:
    caches: list[list[int]] = [[] for _ in range(sets)]
    misses = 0
    for line in lines:
        mine = caches[line % sets]
        if line in mine:
            mine.remove(line)
        else:
            misses += 1
        mine.insert(0, line)
        del mine[ways:]
    return misses


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.tuples(st.integers(0, 40 * 64 - 1), st.sampled_from([1, 4, 8, 16])),
        min_size=2, max_size=200,
    )
)  # fmt: skip
def test_sums_are_those_of_a_naive_model(tmp_path: Path, accesses: list[tuple[int, int]]) -> None:
    number = next(numbers)
    trace = [(F, HEAP + offset, width, LOAD) for offset, width in accesses]
    levels = (Level(8 * 64, 2, name="L1"), Level(16 * 64, 0, name="L2"))
    result = access_patterns(base().window(100, trace).open(tmp_path / f"{number}.memlens"), levels=levels)
    lines = [(HEAP + offset) // 64 for offset, _ in accesses]
    distances = naive_distances(lines)
    one, row = rows(result, "by_instruction"), rows(result, "by_function_and_object")
    assert one["misses"] == naive_misses(lines, 4, 2)
    assert one["misses_full"] == sum(d >= 8 for d in distances)
    assert one["near_misses"] == [sum(8 <= d < 12 for d in distances), sum(16 <= d < 24 for d in distances)]
    same = sum(a[0] == b[0] for a, b in itertools.pairwise(accesses))
    assert one["same_address_share"] == pytest.approx(same / (len(accesses) - 1))
    assert row["lines"] == len(set(lines)) or any(o % 64 + w > 64 for o, w in accesses)
    assert row["used_bytes"] == len({offset + byte for offset, width in accesses for byte in range(width)})
    assert result.figures["no_reuse"] == len(set(lines))
    # A visit: all bytes of a line from one access at a distance of 8 lines or more to the next such.
    visits: list[tuple[int, set[int]]] = []
    last: dict[int, int] = {}
    for at, ((offset, width), line, distance) in enumerate(zip(accesses, lines, distances, strict=True)):
        if distance >= 8:
            last[line] = len(visits)
            visits.append((at, set()))
        begin = (HEAP + offset) % 64
        visits[last[line]][1].update(range(begin, min(64, begin + width)))
    counted = [used for at, used in visits if at < 3 * len(accesses) // 4]
    assert row["visits"] == len(counted)
    if counted:
        assert row["visit_bytes"] == pytest.approx(sum(map(len, counted)) / len(counted))


numbers = itertools.count()


@given(st.sets(st.integers(0, 300)))
def test_offsets_in_words_and_back(offsets: set[int]) -> None:
    assert of_words(in_words(offsets)) == sorted(offsets)


# ---- chases -----------------------------------------------------------------------------------------------------------
ENCODINGS = {
    X86_64: [("mov (%rax),%rax", True), ("mov 8(%rdi),%rdi", True), ("mov 0x1000(%r12),%r12", True), ("mov (%r13),%r13", True),
             ("mov (%rsp),%rsp", True), ("mov 16(%rbp),%rbp", True), ("mov (%r8),%rax", False), ("mov (%rax),%r8", False),
             ("mov (%rdi,%rax,8),%rax", False), ("mov (%rax,%rdi,8),%rax", False), ("mov %rax,(%rax)", False), ("mov (%rax),%eax", False),
             ("mov 0(%rip),%rbp", False), ("add (%rax),%rax", False), ("mov 8(%rdi),%rax", False), ("mov %rax,%rax", False),
             ("mov 0x1000,%rbp", False), ("movsd (%rax),%xmm0", False)],
    AARCH64: [("ldr x0, [x0]", True), ("ldr x5, [x5, #8]", True), ("ldur x7, [x7, #-8]", True), ("ldr x0, [x1]", False),
              ("ldr w0, [x0]", False), ("str x0, [x0]", False), ("ldr x0, [x1, x0, lsl #3]", False), ("ldr x3, [x0, #24]", False)],
}  # fmt: skip


@pytest.mark.parametrize(("machine", "prefix"), [(X86_64, ""), (AARCH64, "aarch64-linux-gnu-")])
def test_loads_of_their_own_base_are_known_by_their_bytes(tmp_path: Path, machine: int, prefix: str) -> None:
    """Each encoding is the assembler's own."""
    tools = [shutil.which(f"{prefix}{name}") for name in ("as", "objcopy")]
    if not all(tools):
        pytest.skip(f"{prefix}as is not installed; to run: make test, which installs it")
    if machine == X86_64 and platform.machine() != "x86_64":
        pytest.skip("as is that of this machine, which is not x86-64")
    for text, expected in ENCODINGS[machine]:
        (tmp_path / "a.s").write_text(text + "\n")
        subprocess.run([tools[0], tmp_path / "a.s", "-o", tmp_path / "a.o"], check=True)
        subprocess.run([tools[1], "-O", "binary", "-j", ".text", tmp_path / "a.o", tmp_path / "a.bin"], check=True)
        assert loads_its_own_base((tmp_path / "a.bin").read_bytes(), machine) == expected, text


def test_bytes_of_an_unknown_machine_or_too_few_are_no_chase() -> None:
    assert not loads_its_own_base(bytes.fromhex("488b00"), 243) and not loads_its_own_base(b"\x48", X86_64)
    assert not loads_its_own_base(b"", AARCH64)


# ---- findings where only windows were seen ----------------------------------------------------------------------------
def windows_of(traces: list[list[Access]]) -> CaptureBuilder:
    builder = base()
    for number, trace in enumerate(traces):
        builder.window(10_000 * number + 100, trace, executed=10_000, first_executed=10_000 * number, period=10_000)
    return builder


def few_bytes_used(path: Path, traces: list[list[Access]]) -> list[Any]:
    report = memlens.analyses.report(windows_of(traces).open(path))
    return [one for one in report.findings if one.name == "few_bytes_used"]


def test_few_bytes_used_is_reported_from_windows_of_fields_and_of_long_columns_only(tmp_path: Path) -> None:
    """Windows of 500 steps of 512 bytes: the same field each time, columns longer than the first cache, or columns that fit it."""
    field = [walk(F, 512, 500, first=HEAP + 512 * 500 * (n % 8) + 16) for n in range(40)]
    (found,) = few_bytes_used(tmp_path / "a.memlens", field)
    assert "only bytes 16-23 of every 512" in found.claim
    long = [walk(F, 512, 500, first=HEAP + 512 * 500 * (n % 8) + 8 * (n * 7 % 64)) for n in range(64 * 2)]
    (found,) = few_bytes_used(tmp_path / "b.memlens", long)
    assert found.evidence["sweep_lines"] > 512 and "Exchange the loops" in found.remedy
    # 100 rows: the next column finds their lines in the first cache.
    short = [
        [one for k in range(5) for one in walk(F, 512, 100, first=HEAP + 51_200 * (n % 80) + 8 * ((n * 7 + k) % 64))]
        for n in range(64 * 2)
    ]
    assert not few_bytes_used(tmp_path / "c.memlens", short)


def test_a_few_random_windows_of_a_large_object_do_not_make_it_sparse(tmp_path: Path) -> None:
    import numpy as np

    source = np.random.default_rng(5)

    def touched(count: int) -> list[list[Access]]:
        picks = source.integers(0, count, (40, 500))
        return [[(F, HEAP + 256 * int(i), 8, LOAD) for i in window] for window in picks]

    # 1,000 words in 1,000 lines (64 KB), each seen twenty times; or 16,384 that are seen once or twice.
    assert "sparse_hot_object" in findings(windows_of(touched(1000)).open(tmp_path / "a.memlens"))
    assert "sparse_hot_object" not in findings(windows_of(touched(16_384)).open(tmp_path / "b.memlens"))


@pytest.mark.parametrize(("lines", "told"), [(400, False), (600, True), (760, True), (1200, False), (20_000, True)])
def test_working_sets_just_above_a_cache(tmp_path: Path, lines: int, told: bool) -> None:
    """The first cache has 512 lines, the second 16,384: told from there to half as much again."""
    trace = walk(F, 64, lines) * max(3, 6000 // lines)
    assert ("just_above_cache" in findings(base().window(100, trace).open(tmp_path / "a.memlens"))) == told


@pytest.mark.parametrize(("same", "told"), [(1.0, True), (0.5, False)])
def test_loads_of_one_address(tmp_path: Path, same: float, told: bool) -> None:
    trace = []
    for i in range(4000):
        trace += [(F, HEAP + (0 if same == 1 or i % 2 else 64), 8, LOAD), (G, HEAP + 4096 + 8 * i, 8, STORE)]
    result = access_patterns(base().window(100, trace).open(tmp_path / "a.memlens"))
    assert (rows(result, "by_instruction")["same_address_share"] >= 0.99) == told
