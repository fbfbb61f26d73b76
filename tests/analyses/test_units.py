"""One convention of units: amounts of bytes are binary, bandwidth is GB/s of 10^9 bytes a second, in every report and text."""

from __future__ import annotations

import ast
import html as markup
import io
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import ROOT, needs_faults, run_memlens
from count_tools import LOAD, STORE, CountBuilder, Function, Site
from emulate_tools import emulate, needs_emulation

import memlens
from memlens.present import html, terminal

AMOUNT = re.compile(r"\b[kKMGT]B\b(?!/s)")
"""A decimal amount: in no report."""
RATE = re.compile(r"\b(?:[kKMT]B|[KMGT]iB)/s")
"""A bandwidth in another unit than GB/s."""


def wrong(text: str) -> list[str]:
    return [text[max(0, m.start() - 40) : m.end() + 10] for what in (AMOUNT, RATE) for m in what.finditer(text)]


def reports(capture: memlens.Capture) -> str:
    """Terminal, page (its text and titles, without style and script) and findings."""
    report = memlens.analyses.report(capture)
    out = io.StringIO()
    terminal.show(report, file=out)
    page = re.sub(r"<(style|script)\b.*?</\1>", " ", html.render(report), flags=re.DOTALL)
    titles = " ".join(re.findall(r'(?:title|aria-label)="([^"]*)"', page))
    claims = " ".join(f"{one.claim} {one.remedy}" for one in report.findings)
    return "\n".join((out.getvalue(), markup.unescape(re.sub(r"<[^>]*>", " ", page)), markup.unescape(titles), claims))


@pytest.mark.parametrize("text", ["16 GB read", "1.2 MB", "3.4 GiB/s", "12 MB/s", "5 kB of"])
def test_the_check_finds_a_mixture(text: str) -> None:
    assert wrong(text)


def test_the_check_accepts_the_convention() -> None:
    assert not wrong("16 GiB at 12.3 GB/s, 4.0 KiB, GB/s")


@needs_faults
def test_report_and_diff_of_faults_and_objects_use_binary_amounts(
    record: Callable[..., memlens.Capture], workload: Callable[[str], str]
) -> None:
    """fault_storm has a finding, whose claim holds amounts."""
    captures = [record(workload("fault_storm"), "--iterations", "30"), record(workload("first_touch"))]
    text = reports(captures[0])
    assert "MiB" in text and not wrong(text)
    done = run_memlens("diff", captures[0].path, captures[1].path)
    assert "MiB" in done.stdout and not wrong(done.stdout)


def test_report_of_counts_uses_binary_amounts_and_gigabytes_a_second(tmp_path: Path) -> None:
    kernel = Function("kernel", sites=[Site(LOAD, 1), Site(STORE, 1, bytes=8)])
    builder = CountBuilder().module([kernel]).node(1, "solve").status()
    builder.counted({0: 10**9}, node=1).timed(1, counted_ns=10**9)
    builder.counted({0: 10**6}, node=1, thread=101).timed(1, counted_ns=10**9, thread=101)
    text = reports(builder.open(tmp_path / "c.memlens"))
    assert "GB/s" in text and "GiB" in text and not wrong(text)
    assert text.count("GB/s: 10^9 bytes a second") == 2, "once in each legend: terminal and page"


@needs_emulation
def test_report_of_an_emulated_run_uses_binary_amounts(tmp_path: Path, workload: Callable[[str], str]) -> None:
    capture, _ = emulate(tmp_path / "e.memlens", workload("copy_heavy"))
    text = reports(capture)
    assert "iB" in text and not wrong(text)


def test_no_text_of_the_program_or_the_docs_has_another_unit() -> None:
    """Texts that no capture above shows: claims of other findings, notes, errors."""
    found = []
    for path in (ROOT / "src" / "memlens").rglob("*.py"):
        tree = ast.parse(path.read_text())
        plain = {
            id(node.body[0].value)
            for node in ast.walk(tree)
            if isinstance(node, ast.Module | ast.FunctionDef | ast.ClassDef)
            and node.body
            and isinstance(node.body[0], ast.Expr)
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in plain:
                found += [(path.name, node.lineno, one) for one in wrong(node.value)]
    for path in (*(ROOT / "docs").glob("*.md"), ROOT / "README.md"):
        found += [(path.name, 0, text) for text in re.findall(r"\d ?[kMG]B\b(?!/s)", path.read_text())]
    assert not found
