"""Findings on memory traffic, on hand-made captures: each fires on the bad one and not on its good twin."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from builders import CaptureBuilder
from test_traffic import HEAP, jitted, program

import memlens
from memlens.analyses.findings._copies import is_copy_name
from memlens.capture.tables.sql import run_query
from memlens.results import Finding

MILLION = 1_000_000
F, G, COPY = 0x800000, 0x800100, 0x800200


def found(capture: memlens.Capture) -> dict[str, Finding]:
    findings = {finding.name: finding for finding in memlens.analyses.report(capture).findings}
    for finding in findings.values():
        assert finding.claim and finding.remedy and run_query(capture, finding.evidence["sql"]).num_rows > 0
    return findings


def base() -> CaptureBuilder:
    builder = jitted(program(), hot=F, other=G, memcpy=COPY)
    return builder.allocation(10, "malloc", HEAP, 1 << 20, stack=0)


def walk(pc: int, *, width: int, step: int, count: int = 300, first: int = HEAP) -> list[tuple[int, int, int, int]]:
    return [(pc, first + step * i, width, 1) for i in range(count)]


@pytest.mark.parametrize(
    ("width", "step", "others", "stack", "fires"),
    [
        (1, 1, 0, 0, True),
        (2, 2, 0, 0, True),
        (1, -1, 0, 0, True),  # backwards
        (1, 8, 0, 0, False),  # narrow, but one flag of each record
        (8, 8, 0, 0, False),
        (1, 1, 30 * MILLION, 0, False),  # not hot
        (1, 1, 0, 2 * MILLION, False),  # the stack's
    ],
)
def test_byte_wise(tmp_path: Path, width: int, step: int, others: int, stack: int, fires: bool) -> None:
    builder = base().code_count(F, loads=2 * MILLION, width=width, stack_loads=stack)
    builder.code_count(G, loads=MILLION + others, width=8)
    builder.window(100, walk(F, width=width, step=step, first=HEAP + 4096), executed=3000)
    findings = found(builder.open(tmp_path / "c.memlens"))
    assert ("byte_wise" in findings) == fires
    if fires:
        evidence = findings["byte_wise"].evidence
        assert evidence["narrow_accesses"] == 2 * MILLION and evidence["program_share"] == pytest.approx(2 / 3)
        assert evidence["sequential_share"] == pytest.approx(299 / 300)


@pytest.mark.parametrize(
    ("offset", "step", "width", "share"),
    [(60, 64, 8, 1.0), (0, 64, 8, None), (4, 8, 8, 0.125), (1, 32, 32, 0.5), (60, 8, 4, None), (33, 1024, 1, None)],
)
def test_split_lines(tmp_path: Path, offset: int, step: int, width: int, share: float | None) -> None:
    builder = base().code_count(F, loads=MILLION, width=width)
    for window in range(4):
        builder.window(100 + 1000 * window, walk(F, width=width, step=step, first=HEAP + offset, count=320),
                       executed=3200, first_executed=3200 * window)  # fmt: skip
    findings = found(builder.open(tmp_path / "c.memlens"))
    assert ("split_lines" in findings) == (share is not None)
    if share is not None:
        assert findings["split_lines"].evidence["split_share"] == pytest.approx(share, rel=0.02)
        assert findings["split_lines"].evidence["split_accesses"] == pytest.approx(share * 4 * 3200, rel=0.02)


def copying(copied: int, computed: int) -> CaptureBuilder:
    builder = base()
    builder.code_count(COPY, loads=copied // 2, stores=copied // 2, width=32).code_count(G, loads=computed, width=32)
    builder.stack(7, [COPY + 4, F + 0x10, G + 0x10]).stack(8, [G + 4, F])
    builder.window(100, walk(COPY, width=32, step=32), executed=9000, stack=7)
    builder.window(5000, walk(G, width=32, step=32), executed=1000, stack=8, first_executed=9000)
    return builder


@pytest.mark.parametrize(
    ("copied", "computed", "fires"), [(MILLION, MILLION, True), (MILLION, 9 * MILLION, False), (1000, 10, False)]
)
def test_copy_heavy_names_the_callers(tmp_path: Path, copied: int, computed: int, fires: bool) -> None:
    findings = found(copying(copied, computed).open(tmp_path / "c.memlens"))
    assert ("copy_heavy" in findings) == fires
    if fires:
        evidence = findings["copy_heavy"].evidence
        assert evidence["copied_share"] == 0.5 and evidence["functions"] == ["memcpy"]
        assert evidence["callers"] == ["hot"]


@pytest.mark.parametrize(("loads", "stores", "width", "label"), [(MILLION, MILLION, 32, "copy"), (0, MILLION, 32, "fill"),
                                                                 (MILLION, 0, 32, None), (MILLION, MILLION, 8, None)])  # fmt: skip
def test_copies_in_a_stripped_libc_are_known_by_what_they_do(
    tmp_path: Path, loads: int, stores: int, width: int, label: str | None
) -> None:
    builder = base().mapping(3, 0x700000 // 4096, 256, path="/lib/libc.so.6", inode=5, protection=5)
    if loads:
        builder.code_count(0x700100, loads=loads, width=width)
    if stores:
        builder.code_count(0x700120, stores=stores, width=width)
    builder.code_count(0x708000, loads=100, width=4)  # another function of libc
    findings = found(builder.open(tmp_path / "c.memlens"))
    assert ("copy_heavy" in findings) == (label is not None)
    if label:
        assert findings["copy_heavy"].evidence["functions"] == [f"{label} in libc.so.6 (no symbol)"]


@pytest.mark.parametrize(
    ("stack", "known", "others", "fires"),
    [
        (900_000, True, 0, True),
        (900_000, False, 0, False),
        (300_000, True, 0, False),
        (900_000, True, 10 * MILLION, False),
    ],
)
def test_stack_traffic(tmp_path: Path, stack: int, known: bool, others: int, fires: bool) -> None:
    builder = base().code_count(F, loads=MILLION, stack_loads=stack, stack_known=known).code_count(G, loads=1 + others)
    findings = found(builder.open(tmp_path / "c.memlens"))
    assert ("stack_traffic" in findings) == fires
    if fires:
        assert findings["stack_traffic"].evidence["stack_share"] == 0.9


def test_names_of_copies() -> None:
    copies = ("memcpy", "__memmove_avx_unaligned_erms", "__memcpy_generic", "__GI_memset", "bzero", "memset@plt", "stpncpy",
              "__memcpy_aarch64_simd", "_wordcopy")  # fmt: skip
    assert [name for name in copies if not is_copy_name(name)] == ["_wordcopy"]
    assert not any(map(is_copy_name, ("memcmp", "copy_rows", "strlen", "memorize", "settings", None)))


def test_reports_of_a_capture_without_faults_have_no_empty_sections(tmp_path: Path) -> None:
    import io

    from memlens.present import html, terminal

    builder = copying(MILLION, MILLION)
    builder.meta["collectors"] = {"emulate": {}}
    builder.event(20, "thread", thread=101).page_count(50, HEAP // 4096, order=1, stores=9)
    builder.page_count(60, HEAP // 4096, order=2, loads=90, thread=101)
    report = memlens.analyses.report(builder.open(tmp_path / "c.memlens"))
    for brief in (True, False):
        text = io.StringIO()
        terminal.show(report, file=text, brief=brief)
        shown = text.getvalue()
        assert "exact: every access counted; addresses: 6.0 % in 2 windows" in shown
        assert "Memory traffic" in shown and "memcpy" in shown and "First touch" not in shown and "Faults" not in shown
        assert "Pages used by other threads" in shown and "90.9 %" in shown
    page = html.render(report)
    for section in ("traffic", "accesses", "page-use"):
        assert f'<section id="{section}"' in page
    for section in ("first-touch", "faults", "capacity"):
        assert f'<section id="{section}"' not in page
    assert "addresses: 6.0 % in 2 windows" in page


def figures_of(capture: memlens.Capture) -> dict[str, Any]:
    return memlens.analyses.run("traffic", capture).figures


def test_counts_without_windows_say_so(tmp_path: Path) -> None:
    from memlens.present._units import addresses_in_words

    capture = base().code_count(F, loads=10).open(tmp_path / "c.memlens")
    assert addresses_in_words(figures_of(capture)) == "addresses: not recorded"
    assert set(memlens.analyses.report(capture).results) >= {"traffic"}
