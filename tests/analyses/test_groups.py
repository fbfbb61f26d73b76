"""What accesses are grouped by: loops, NUMA nodes, ranges of addresses, and any two dimensions crossed."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from builders import CaptureBuilder
from import_tools import imported

from memlens.analyses._groups import DIMENSIONS
from memlens.analyses.data_locality import locality
from memlens.errors import NoDataError, UsageError
from memlens.importing.memgaze import Structure

LOAD = 1
A, B = 0x20_0000, 0x100_0000


def touch(base: int, count: int, *, step: int = 64, pc: int = 0x1000) -> list[tuple[int, int, int, int]]:
    return [(pc, base + step * i, 8, LOAD) for i in range(count)]


def table(result: Any, by: str) -> list[dict[str, Any]]:
    return list(result.tables["by_" + by.replace(",", "_and_")].to_pylist())


# ---- ranges --------------------------------------------------------------------------------------------------------


def test_ranges_that_are_given_and_what_is_outside(tmp_path: Path) -> None:
    capture = (
        CaptureBuilder().window(10, [*touch(A, 100), *touch(B, 50), *touch(0x7000, 25)]).open(tmp_path / "a.memlens")
    )
    ranges = [(B, B + 50 * 64), (A, A + 40 * 64)]
    rows = {row["range_begin"]: row for row in table(locality(capture, by="range", ranges=ranges), "range")}
    assert {begin: row["recorded"] for begin, row in rows.items()} == {A: 40, B: 50, None: 60 + 25}
    assert rows[A]["range_bytes"] == 40 * 64 and rows[None]["range_bytes"] is None
    assert rows[B]["footprint"] == 50 and sum(row["share"] for row in rows.values()) == pytest.approx(1)


def test_ranges_of_one_size_cover_everything(tmp_path: Path) -> None:
    capture = CaptureBuilder().window(10, touch(A, 300)).open(tmp_path / "a.memlens")
    rows = table(locality(capture, by="range", range_bytes=4096), "range")
    wanted = Counter((A + 64 * i) & ~4095 for i in range(300))
    assert {row["range_begin"]: row["recorded"] for row in rows} == wanted
    assert {row["range_bytes"] for row in rows} == {4096}


def test_ranges_of_two_processes_are_two(tmp_path: Path) -> None:
    builder = CaptureBuilder().window(10, touch(A, 10)).window(10, touch(A, 20), process=2)
    rows = table(locality(builder.open(tmp_path / "a.memlens"), by="thread,range"), "thread,range")
    assert sorted((row["process"], row["range_begin"], row["recorded"]) for row in rows) == [(1, A, 10), (2, A, 20)]


def test_the_ends_of_the_address_space_are_ranges_too(tmp_path: Path) -> None:
    top = 2**64 - 4096
    capture = CaptureBuilder().window(10, touch(top, 64)).open(tmp_path / "a.memlens")
    rows = table(locality(capture, by="range", ranges=[(top, 2**64)]), "range")
    assert [(row["range_begin"], row["recorded"]) for row in rows] == [(top, 64)]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"ranges": [(10, 10)]}, "range of addresses: 0xa to 0xa"),
        ({"ranges": [(0, 100), (50, 200)]}, "ranges overlap at 0x32"),
        ({"range_bytes": 3000}, "3000 bytes are not a power of two"),
    ],
)
def test_wrong_ranges_are_told(tmp_path: Path, options: dict[str, Any], text: str) -> None:
    capture = CaptureBuilder().window(10, touch(A, 10)).open(tmp_path / "a.memlens")
    with pytest.raises(UsageError, match=text):
        locality(capture, by="range", **options)


# ---- NUMA nodes ----------------------------------------------------------------------------------------------------


def two_nodes() -> CaptureBuilder:
    builder = CaptureBuilder()
    builder.machine["numa_nodes"] = [{"node": n, "cpus": [n], "bytes": 1 << 33, "distances": [10, 20]} for n in (0, 3)]
    return builder


def test_accesses_go_to_the_node_of_their_page(tmp_path: Path) -> None:
    """Page 0 on node 0; page 1 first on 0, then moved to 3; page 2 gone when it was asked for; page 3 never asked for."""
    builder = two_nodes()
    for time, page, node in ((1, 0, 0), (1, 1, 0), (5, 1, 3), (2, 2, -2)):
        builder.add("placement", time_ns=time, evidence_ns=time, address=A + 4096 * page, node=node, page_shift=12)
    counts = (10, 20, 30, 40)
    for page, count in enumerate(counts):
        builder.window(100 * page, touch(A + 4096 * page, count, pc=0x1000 * (page + 1)), first_executed=1000 * page)
    rows = {
        row["node"]: row["recorded"] for row in table(locality(builder.open(tmp_path / "a.memlens"), by="node"), "node")
    }
    assert rows == {0: 10, 3: 20, None: 70}


def test_one_node_needs_no_asking_and_several_do(tmp_path: Path) -> None:
    rows = table(locality(CaptureBuilder().window(10, touch(A, 10)).open(tmp_path / "a.memlens"), by="node"), "node")
    assert [(row["node"], row["recorded"]) for row in rows] == [(0, 10)]
    with pytest.raises(NoDataError, match="does not record the NUMA nodes of its pages") as told:
        locality(two_nodes().window(10, touch(A, 10)).open(tmp_path / "b.memlens"), by="node")
    assert "page faults" in (told.value.hint or "")


# ---- loops ---------------------------------------------------------------------------------------------------------


def test_loops_of_a_structure_are_the_innermost_ones(tmp_path: Path) -> None:
    (tmp_path / "s").write_text(
        '<HPCToolkitStructure><LM n="/p" v="{}"><F n="/a.c"><P n="f" ln="f" l="3" v="{[0x10-0x11)}"><S l="4" v="{[0x10-0x14)}"/>'
        '<L l="5" f="/x/b.c" v="{[0x14-0x15)}"><S l="6" v="{[0x14-0x18)}"/><L l="7-9" v="{}"><S l="8" v="{[0x18-0x1c)}"/></L>'
        '<S l="9" v="{[0x1c-0x20)}"/></L></P><P n="g" l="20" v="{[0x40-0x41)}"><S l="22" v="{[0x44-0x48)}"/></P></F></LM></HPCToolkitStructure>'
    )
    structure = Structure(str(tmp_path / "s"))
    assert [structure.loop(pc) for pc in (0x10, 0x14, 0x18, 0x1C, 0x44, 0x99)] == [
        None,
        "b.c:5",
        "a.c:7",
        "b.c:5",
        None,
        None,
    ]
    assert structure.find(0x18) == ("f", "/a.c", 8)


STRUCTURE = (
    '<HPCToolkitStructure><LM n="/p" v="{}"><F n="/a.c"><P n="f" ln="f" l="3" v="{[0x10-0x11)}"><S l="4" v="{[0x10-0x14)}"/>'
    '<L l="5" v="{}"><S l="6" v="{[0x14-0x18)}"/><L l="7" v="{}"><S l="8" v="{[0x18-0x1c)}"/></L></L></P>'
    '<P n="g" l="20" v="{[0x40-0x41)}"><L l="21" v="{}"><S l="22" v="{[0x44-0x48)}"/></L></P></F></LM></HPCToolkitStructure>'
)


def looping(tmp_path: Path) -> Any:
    """An imported trace: 10 accesses in no loop, 20 in the outer one, 30 in the inner one, 40 in another function's."""
    lines = [(0x10, 10), (0x14, 20), (0x18, 30), (0x44, 40)]
    accesses = [(pc, A + 64 * (7 * i + pc)) for pc, count in lines for i in range(count)]
    text = [f"{pc:#x} {address:#x} 0 1.{n:09d} {1 + n // 25}\n" for n, (pc, address) in enumerate(accesses)]
    (tmp_path / "a.trace").write_text("".join(text))
    (tmp_path / "a.binanlys").write_text("".join(f"{pc:#x} 2 0x0 0x1 0x0\n" for pc, _ in lines))
    (tmp_path / "a.hpcstruct").write_text(STRUCTURE)
    return imported(tmp_path / "a.trace", tmp_path / "c.memlens", period=1000)


def test_accesses_by_loop(tmp_path: Path) -> None:
    rows = table(locality(looping(tmp_path), by="loop"), "loop")
    assert {(row["loop"], row["function"]): row["recorded"] for row in rows} == {
        (None, "f"): 10, ("a.c:5", "f"): 20, ("a.c:7", "f"): 30, ("a.c:21", "g"): 40,
    }  # fmt: skip


def test_a_capture_without_loops_says_so(tmp_path: Path) -> None:
    with pytest.raises(NoDataError, match="does not record the loops of its accesses") as told:
        locality(CaptureBuilder().window(10, touch(A, 10)).open(tmp_path / "a.memlens"), by="loop")
    assert "group by line" in (told.value.hint or "")


# ---- any two -------------------------------------------------------------------------------------------------------


def test_any_two_cross_and_add_up(tmp_path: Path) -> None:
    """Every pair of dimensions, each way round: the same accesses, each column once."""
    pairs = [f"{a},{b}" for a in DIMENSIONS for b in DIMENSIONS if a != b]
    result = locality(looping(tmp_path), by=pairs, range_bytes=4096)
    for pair in pairs:
        made = result.tables["by_" + pair.replace(",", "_and_")]
        assert len(set(made.column_names)) == len(made.column_names), pair
        assert sum(made.column("recorded").to_pylist()) == 100, pair
    keys = ("loop", "function", "range_begin", "footprint", "recorded")
    one, other = (
        {tuple(row[name] for name in keys) for row in table(result, by)} for by in ("loop,range", "range,loop")
    )
    assert one == other and len(one) > 4
