"""`memlens import` of MemGaze: its own published trace against what its own analyser printed, and hand-made files."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from pathlib import Path

import pytest
from conftest import recordings
from hypothesis import given, settings
from hypothesis import strategies as st
from import_tools import accesses, imported

from memlens import _core, analyses
from memlens.errors import TraceError
from memlens.importing.memgaze import Structure, read_classes

NAME = "ubench-O3-n500k-buf8k-p100000"
PERIOD = 100_000


def published() -> Path:
    return recordings("memgaze-ubench")


def test_accesses_and_samples_are_those_of_the_file(tmp_path: Path) -> None:
    source = published() / f"{NAME}.trace"
    capture = imported(source, tmp_path / "c.memlens", period=PERIOD)
    lines = [line.split() for line in source.read_text().splitlines()]
    assert accesses(capture) == [(int(line[0], 16), int(line[1], 16), 0, "load") for line in lines]
    samples = Counter(line[4] for line in lines)
    windows = capture.table("windows").to_pylist()
    assert [row["recorded"] for row in windows] == list(samples.values())
    assert [row["first_executed"] for row in windows] == [int(number) * PERIOD for number in samples]
    assert all(row["executed"] == row["period"] == PERIOD and row["cpu"] == 2 for row in windows)
    first = float(lines[0][3])
    assert windows[0]["begin_ns"] == int(lines[0][3].replace(".", "")) and abs(windows[0]["begin_ns"] / 1e9 - first) < 1


def test_totals_are_those_that_memgazes_analyser_printed(tmp_path: Path) -> None:
    """Plain counts of its log: lines, loads that are no constants, loads with the implied ones, and the multiplier."""
    log = (published() / f"{NAME}.gold-oe").read_text()
    (recorded_loads, lines) = map(int, re.search(r"Total Loads:(\d+) Trace Size:(\d+)", log).groups())  # type: ignore[union-attr]
    windows, period, all_loads = map(int, re.search(r"#windows: (\d+) Period:(\d+) Total Lds:(\d+)", log).groups())  # type: ignore[union-attr]
    capture = imported(published() / f"{NAME}.trace", tmp_path / "c.memlens", period=period)
    table = capture.table("windows")
    recorded, implied = (sum(table.column(name).to_pylist()) for name in ("recorded", "implied_constant"))
    assert recorded == lines == 56_059
    assert recorded + implied == all_loads == 56_066
    classes = {row["pc"]: row["class"] for row in capture.table("import_sites").to_pylist()}
    by_class = Counter(classes.get(access[0]) for access in accesses(capture))
    assert recorded - by_class["constant"] == recorded_loads == 56_055
    # MemGaze counts changes from one sample to the next, without the sample of constants alone.
    assert table.num_rows == windows + 2 == 163
    executed = analyses.run("accesses", capture).figures["executed_accesses"]
    assert executed == table.num_rows * period


def test_static_classes_and_names_are_kept_and_shown(tmp_path: Path) -> None:
    capture = imported(published() / f"{NAME}.trace", tmp_path / "c.memlens", period=PERIOD)
    rows = {row["pc"]: row for row in capture.table("import_sites").to_pylist()}
    assert rows[0x3003BD]["class"] == "irregular" and rows[0x3003A5]["class"] == "strided"
    assert rows[0x300936]["class"] == "constant" and rows[0x300936]["implied_constants"] == 6
    assert rows[0x30069F]["class"] is None  # executed, but not classed
    assert {row["kind"] for row in rows.values()} == {"load", None}
    assert rows[0x300106]["function"] == "main_dyninst" and rows[0x300106]["line"] == 220
    assert rows[0x300106]["file"].endswith("/array.c") and rows[0x300106]["module"].endswith("ubench-500k_O3_PTW")
    sites = {row["file_offset"]: row for row in capture.table("sites").to_pylist()}
    assert sites[0x3003BD]["class"] == "irregular" and sites[0x300106]["function"] == "main_dyninst"
    functions = analyses.run("accesses", capture).tables["by_function"].to_pylist()
    assert functions[0]["function"] == "init_shuffle_dyninst"
    counted = sum(1 for line in (published() / f"{NAME}.trace").open() if line.startswith(("0x3003a5", "0x3003bd")))
    named = [pc for pc, row in rows.items() if row["function"] == "init_shuffle_dyninst"]
    assert {0x3003A5, 0x3003BD} <= set(named) and functions[0]["recorded"] >= counted


def test_addresses_that_may_lack_a_scale_are_told(tmp_path: Path) -> None:
    """The published trace has an int array walked by 1: its scale of 4 was left out by MemGaze's own tool."""
    capture = imported(published() / f"{NAME}.trace", tmp_path / "c.memlens")
    walked = [address for pc, address, _, _ in accesses(capture) if pc == 0x3003A5][:100]
    assert {after - before for before, after in itertools.pairwise(walked)} == {1}
    scales = {int(line.split()[0], 16): int(line.split()[3], 16) for line in (published() / f"{NAME}.binanlys").open()}
    scaled = sum(scales.get(access[0], 0) > 1 for access in accesses(capture))
    assert any(f"{scaled:,} of 56,059 accesses have an index register" in note for note in capture.quality.notes)


def test_without_a_period_windows_stand_for_themselves(tmp_path: Path) -> None:
    capture = imported(published() / f"{NAME}.trace", tmp_path / "c.memlens")
    windows = capture.table("windows").to_pylist()
    assert len(windows) == len({row["unit"] for row in windows}) == 163
    assert sum(row["executed"] for row in windows) == 56_066
    assert not capture.quality.exact
    assert any("sampling period was not given" in note for note in capture.quality.notes)


HEX = st.integers(0, 2**64 - 1)
LINE = st.tuples(HEX, HEX, st.integers(0, 3), st.integers(0, 10**9 - 1), st.integers(0, 4), st.integers(0, 40))


@settings(max_examples=100, deadline=None)
@given(st.lists(LINE, max_size=50), st.integers(1, 30), st.integers(0, 1000))
def test_any_trace_keeps_order_samples_and_implied_constants(
    lines: list[tuple[int, ...]], cut: int, period: int
) -> None:
    implied = {pc: extra for pc, _, _, _, _, extra in lines}
    reader = _core.MemgazeImport(process=1, period=period)
    for pc, extra in implied.items():
        reader.set_site(pc, implied_constants=extra, is_store=pc % 2 == 1)
    text = "".join(f"0x{pc:x} {a:x} {cpu} 17.{ns:09d} {sample}\n" for pc, a, cpu, ns, sample, _ in lines).encode()
    for at in range(0, len(text), cut):
        assert reader.feed(text[at : at + cut])
    assert reader.finish()
    groups: list[list[tuple[int, int, int]]] = []
    before = None
    for pc, address, cpu, _, sample, _ in lines:
        if before != (cpu, sample):
            groups.append([])
        before = (cpu, sample)
        groups[-1].append((pc, address, 2 if pc % 2 else 1))
    found = []
    import numpy as np

    from memlens.capture.store.layouts import layouts

    for _, payload, _, _, _ in reader.take(end=True):
        fixed, _ = _core.window_headers(payload)
        rows = np.frombuffer(fixed, dtype=layouts()["window"].dtype())
        columns = {"row": [], "code": [], "address": [], "operation": []}
        batches = _core.AccessReader(payload)
        while (batch := batches.next()) is not None:
            for name, values in columns.items():
                values.extend(batch[name].tolist())
        for number, row in enumerate(rows):
            group = [
                (pc, address, operation)
                for at, pc, address, operation in zip(*columns.values(), strict=True)
                if at == number
            ]
            found.append(group)
            constants = sum(implied[pc] for pc, _, _ in group)
            assert row["implied_constant"] == constants
            assert row["executed"] == (max(period, len(group) + constants) if period else len(group) + constants)
    assert found == groups and reader.samples == len(groups)


def test_modules_stores_and_missing_companions(tmp_path: Path) -> None:
    (tmp_path / "a.trace").write_text(
        "DSO: <name> <id>\n/bin/with space 0\n/lib/b 1\nTRACE: <IP> <Addrs> <CPU> <time> <sampleID> <DSO_id>\n0x10 0x20 0 1.5 7 0\n0x11 0x30 0 1.6 7 1\n"
    )
    capture = imported(tmp_path / "a.trace", tmp_path / "c.memlens", period=10)
    notes = " ".join(capture.quality.notes)
    assert "no .binanlys was found" in notes and "several modules" in notes
    (tmp_path / "a.binanlys").write_text("0x10 90 0x0 0x0 0x2 0x5 main\n11 2 0x0 0x1 0x0\n")
    capture = imported(tmp_path / "a.trace", tmp_path / "d.memlens", period=10)
    assert accesses(capture) == [(0x10, 0x20, 0, "store"), (0x11, 0x30, 0, "load")]
    rows = {row["pc"]: row for row in capture.table("import_sites").to_pylist()}
    assert rows[0x10]["kind"] == "store" and rows[0x10]["function"] == "main" and rows[0x10]["class"] is None
    assert rows[0x11] | {"kind": "load", "class": "irregular", "implied_constants": 0} == rows[0x11]


BAD = ["0x10 0x20 0 1.5 x", "0x10 0x20 0", "0x10 0x20 0 1. 0", "zz 0x20 0 1.5 0", "0x10  0x20 0 1.5 0", "0x10 0x20 99999 1.5 0",
       "0x10 0x20 0 1.5 0 0 0", "0x10 0x20 -1 1.5 0"]  # fmt: skip


@pytest.mark.parametrize("line", BAD)
def test_a_malformed_line_is_named(tmp_path: Path, line: str) -> None:
    (tmp_path / "a.trace").write_text(f"0x10 0x20 0 1.5 0\n{line}\n0x10 0x30 0 1.5 0\n")
    with pytest.raises(TraceError, match=r"a\.trace, line 2: expected `INSTRUCTION ADDRESS CPU SECONDS SAMPLE"):
        imported(tmp_path / "a.trace", tmp_path / "c.memlens")
    capture = imported(tmp_path / "a.trace", tmp_path / "d.memlens", skip_malformed=True)
    assert [access[1] for access in accesses(capture)] == [0x20, 0x30] and not capture.quality.exact


def test_companions_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    for line in ("0x10 7 0x0 0x0 0x0", "0x10 1 0x0", "pc 1 0x0 0x0 0x0", "0x10 1 0x0 0x0 0xffffffffff"):
        (tmp_path / "b").write_text(f"0x1 0 0x0 0x0 0x0\n{line}\n")
        with pytest.raises(TraceError, match="line 2: expected `INSTRUCTION CLASS"):
            read_classes(str(tmp_path / "b"))
    with pytest.raises(TraceError, match="cannot read"):
        read_classes(str(tmp_path / "none"))
    (tmp_path / "s").write_text("<HPCToolkitStructure><LM")
    with pytest.raises(TraceError, match="is not a program structure"):
        Structure(str(tmp_path / "s"))


def test_a_structure_names_lines_functions_and_inlined_code(tmp_path: Path) -> None:
    (tmp_path / "s").write_text(
        '<HPCToolkitStructure><LM n="/p" v="{}"><F n="/a.c"><P n="f [p]" ln="f" l="3" v="{[0x10-0x11)}">'
        '<S l="4" v="{[0x10-0x14) [0x18-0x1a)}"/><A f="/b.h" n="g" l="9" v="{}"><S l="7" v="{[0x14-0x18)}"/></A>'
        '</P><P n="h" l="20" v="{[0x40-0x41)}"><L l="21"><C l="22" v="{[0x44-0x48)}" t="0x10"/></L></P></F></LM></HPCToolkitStructure>'
    )
    structure = Structure(str(tmp_path / "s"))
    assert structure.module == "/p"
    assert structure.find(0x10) == ("f", "/a.c", 4) == structure.find(0x19)
    assert structure.find(0x16) == ("g", "/b.h", 7)
    assert structure.find(0x30) == ("f", "/a.c", 0)  # in no line: the function that begins before
    assert structure.find(0x46) == ("h", "/a.c", 22)
    assert structure.find(0x1) == (None, None, 0)
