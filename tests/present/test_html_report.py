"""The HTML page: escaping, self-containment, one of everything that a view can declare, and captures of all kinds.

Some tests record a workload; the last ones load the page in headless Chromium. Everything else needs neither.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from conftest import ROOT, marked_line, needs_faults, workload_path

import memlens
from memlens import registry
from memlens.present import _charts, html, terminal
from memlens.present._drawings import DRAWINGS
from memlens.results import Finding, Quality, Report, Result
from memlens.view import Absence, Chart, Figure, Series, Table, View, detail, key, measure

sys.path.insert(0, str(ROOT / "tests" / "goldens"))

import make

NAMES = sorted(path.name.removesuffix(".json.gz") for path in make.HERE.glob("*.json.gz"))

MIB = 1 << 20
TEMPLATE = "std::vector<int>::push_back(int&&)"
HOSTILE = "</script><img src=x onerror=alert(1)>\"'"
VOID = {"meta", "link", "br", "hr", "img", "input", "col", "base"}


# ---- hand-built reports ------------------------------------------------------------
def a_meta(**changes: Any) -> dict[str, Any]:
    meta: dict[str, Any] = {
        "memlens_version": "9.8.7",
        "state": "complete",
        "command": ["/opt/solver", "--input", HOSTILE],
        "started": "2026-01-02T03:04:05.678+00:00",
        "begin_ns": 1_000_000_000,
        "machine": {
            "host": "node17",
            "cpu": "Some CPU",
            "cpus": 64,
            "numa_nodes": [{"node": 0}, {"node": 1}],
            "memory_bytes": 256 << 30,
            "kernel": "6.1.0",
            "architecture": "x86_64",
        },
        "collectors": {"faults": {"stacks": "fp", "single": False}, "timeline": {"rate_hz": 10.0}},
        "unsupported": [],
        "wall_s": 2.5,
        "wait_status": 0,
        "session": {"include_kernel": True, "stacks": 40},
        "rusage": {"user_s": 1.0, "system_s": 0.5},
        "quality": {"stack": "fp"},
    }
    return meta | changes


MEASURED = View(
    title="Things",
    order=1,
    headline="{held} held by {names}[, {lost} lost]",
    figures=(
        Figure(name="held", label="held", kind="bytes", help="What is there."),
        Figure(name="names", label="names", kind="count"),
        Figure(name="lost", label="lost", kind="count", show="nonzero"),
        Figure(name="rate", label="rate", kind="per_s", reason="why"),
        Figure(name="why", label="why", kind="text"),
        Figure(name="limit", label="limit", kind="bytes"),
    ),
    charts=(
        Chart(name="over time", title="Held over time", kind="timeline", x_kind="time_s", y_kind="bytes", limit="limit", series=(
            Series(label="held", table="over_time", x="time_s", y="held"), Series(label="asked", table="over_time", x="time_s", y="asked"))),
        Chart(name="many", title="Each alone", kind="timeline", x_kind="time_s", y_kind="number", series=tuple(
            Series(label=f"s{n}", table="many", x="time_s", y="y", where=(("n", n),)) for n in range(3))),
        Chart(name="stacked", title="Events", kind="timeline", stacked=True, x_kind="time_s", y_kind="per_s", drawing="fault_classes", series=(
            Series(label="first", table="bins", x="time_s", y="first"), Series(label="copy", table="bins", x="time_s", y="copy"))),
        Chart(name="stacks", title="By stack", kind="tree", table="stacks", y_kind="bytes", role="detail",
              columns=(("frames", "frames"), ("weight", "bytes"), ("count", "samples"))),
        Chart(name="shares", title="Shares", kind="bars", table="rows", columns=(("label", "function"), ("value", "bytes"))),
        Chart(name="users", title="Users", kind="matrix", table="pairs", x_label="used by", y_label="made by",
              columns=(("row", "a"), ("column", "b"), ("value", "n"))),
        Chart(name="places", title="Places", kind="scatter", table="pairs", x_label="a", y_label="b", columns=(("label", "n"), ("x", "a"), ("y", "b"))),
        Chart(name="gone", title="Nothing", kind="timeline", series=(Series(label="x", table="no such table", x="x", y="y"),)),
    ),
    tables=(
        Table(name="rows", title="By function", help="what each holds", sort="-bytes", leads_to="faults", columns=(
            key("function", "function", "code"),
            measure("bytes", "bytes", "bytes", error="bytes_error"), measure("bytes", "share", "bytes", of="figures.held", bar=True),
            measure("life_ns", "life", "ns", null="to the end"), measure("rate", "rate", "share", low="low", high="high", reason="why"),
            measure("frames", "called from", "frames"), detail("thread", "thread", "thread", beside=("name",)), detail("address", "address", "address"),
        )),
        Table(name="kinds", title="By kind", role="detail", columns=(key("kind", "kind"), measure("n", "number", "count"))),
        Table(name="nested", title="Nested", table="nested", depth="depth", columns=(key("name", "name", "region"), measure("n", "n", "count"))),
        Table(name="none", title="None", table="empty", empty="Nothing was there.", columns=(key("x", "x"),)),
    ),
    remarks=("A thing is a thing.",),
)  # fmt: skip


def a_result(name: str = TEMPLATE, rows: int = 40, **figures: Any) -> Result:
    """A result with one of everything that a view can declare."""
    listed = [
        {"function": f"{name} {n}", "module": "/opt/solver", "file": "/src/grid.cpp", "line": 100 + n, "bytes": (rows - n) * MIB,
         "bytes_error": 0.25 * MIB if n == 0 else None, "life_ns": None if n == 1 else 1500.0, "rate": None if n == 2 else 0.5, "low": 0.1,
         "high": 0.4, "why": "too few" if n == 2 else None, "frames": [name, "main"] * 30, "thread": 77, "name": "worker", "address": 0x7F00_0000}
        for n in range(rows)
    ]  # fmt: skip
    return Result(
        "things",
        {"held": 96 * MIB, "names": 3, "lost": 0, "rate": None, "why": "the clock stopped", "limit": 128 * MIB} | figures,
        {
            "rows": pa.Table.from_pylist(listed),
            "kinds": pa.table({"kind": ["a", "b"], "n": [1, 2]}),
            "nested": pa.table({"name": ["outer", "inner"], "depth": [0, 1], "n": [2, 1]}),
            "empty": pa.table({"x": pa.array([], pa.string())}),
            "over_time": pa.table({"time_s": [0.0, 0.5, 1.0], "held": [MIB, 96 * MIB, 64 * MIB], "asked": [MIB, 90 * MIB, 90 * MIB]}),
            "many": pa.table({"n": [0, 1, 2], "time_s": [0.1, 0.1, 0.1], "y": [1.0, 2.0, 3.0]}),
            "bins": pa.table({"time_s": [0.0, 1.0], "first": [90, 0], "copy": [0, 10]}),
            "stacks": pa.Table.from_pylist([{"frames": [name, "main"], "bytes": 5 * MIB, "samples": 3}, {"frames": [], "bytes": MIB, "samples": 1}]),
            "pairs": pa.table({"a": [1, 2], "b": [2, 2], "n": [30, 10]}),
        },
        Quality(exact=False, notes=("A peak may be shorter than the interval.",)),
    )  # fmt: skip


def everything(name: str = TEMPLATE, **figures: Any) -> dict[str, Result]:
    return {"things": a_result(name, **figures)}


def as_they_are() -> dict[str, Result]:
    """Results without a view of their own, and without rows."""
    return {
        "row_misses": Result("row_misses", {"missed_bytes": MIB}, {"by_row": pa.table({"row": ["<r>"], "count": [5]})}, Quality()),
        "nothing": Result("nothing", {}, {"t": pa.table({}), "u": pa.table({"x": pa.array([], pa.int64())})}, Quality()),
    }  # fmt: skip


def a_finding(**changes: Any) -> Finding:
    fields: dict[str, Any] = {
        "name": "fault_storm",
        "severity": "high",
        "claim": f"Most faults come from {TEMPLATE}.",
        "evidence": {
            "placed_bytes": 4 * MIB,
            "faults_per_cpu_s": 1234.5,
            "thread": 13233,
            "sql": 'SELECT "class" FROM faults WHERE x < 1',
        },
        "remedy": "Keep the buffer & reuse it.",
    }
    return Finding(**(fields | changes))


def a_report(**changes: Any) -> Report:
    fields: dict[str, Any] = {
        "title": f"solver --input {HOSTILE}",
        "meta": a_meta(),
        "results": everything(),
        "findings": [a_finding()],
        "quality": Quality(),
    } | changes
    return Report(**({"views": {"things": MEASURED} if "things" in fields["results"] else {}} | fields))


class Outline(HTMLParser):
    """Checks that tags balance; collects ids, text outside script and style, and attribute values."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.text = ""
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.ids += [value or "" for name, value in attrs if name == "id"]
        self.links += [value or "" for name, value in attrs if name in ("href", "src", "xlink:href", "data", "action")]
        assert not any(name.startswith("on") for name, _ in attrs), f"event attribute on <{tag}>"
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open[-1] == tag, f"</{tag}> closes {self.open[-3:]}"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] not in ("script", "style"):
            self.text += data


# ---- structure -----------------------------------------------------------------------
def test_registry_offers_the_presenter() -> None:
    descriptor = registry.all_of("presenter")["html"]
    assert descriptor.suffix == ".html"
    assert descriptor.render(a_report()).startswith("<!doctype html>")


@pytest.mark.parametrize("results", [{}, as_they_are(), everything()], ids=["none", "as they are", "full"])
def test_tags_balance_and_ids_are_unique(results: dict[str, Result]) -> None:
    outline = Outline(html.render(a_report(results=results)))
    assert len(outline.ids) == len(set(outline.ids))
    assert outline.tags.count("h1") == 1
    targets = [link.removeprefix("#") for link in outline.links]
    assert set(targets) <= set(outline.ids)


@pytest.mark.parametrize("name", NAMES)
def test_pages_of_all_kinds_of_captures_are_sound(name: str, tmp_path: Path) -> None:
    report = memlens.analyses.report(memlens.open(make.opened(name, tmp_path)))
    page = html.render(report)
    outline = Outline(page)
    assert len(outline.ids) == len(set(outline.ids))
    assert all(link.startswith("#") and link[1:] in outline.ids for link in outline.links)
    assert ">None<" not in page and ">nan<" not in page
    shown = [one for one in report.results if not report.views[one].silent]
    places = [
        page.index(f'<section id="{one.replace("_", "-")}">')
        for one in sorted(shown, key=lambda n: report.views[n].order)
    ]
    assert places == sorted(places) and shown
    for one in report.results.keys() - set(shown):
        assert f'<section id="{one.replace("_", "-")}"' not in page


def test_every_chart_of_the_analyses_has_a_drawing(tmp_path: Path) -> None:
    """A chart with data is drawn; its drawing is registered."""
    drawn = set()
    for name in NAMES:
        report = memlens.analyses.report(memlens.open(make.opened(name, tmp_path)))
        page = html.render(report)
        for analysis, view in report.views.items():
            for chart in view.charts:
                assert chart.drawing in DRAWINGS or chart.kind in DRAWINGS, (analysis, chart.name)
                if not view.silent and f"<h3>{chart.title}</h3>" in page:
                    drawn.add((analysis, chart.name))
    assert {("capacity", "over_time"), ("faults", "over_time"), ("objects", "live"), ("objects", "held"), ("first_touch", "stacks"),
            ("locality", "miss_curve"), ("locality", "reuse_distance"), ("locality", "heat_map"), ("bandwidth", "over_time")} <= drawn  # fmt: skip


def test_page_refers_to_nothing_outside_itself() -> None:
    page = html.render(a_report(results=everything()))
    assert not re.search(r"(?:src|href)\s*=\s*[\"']?\s*(?:https?:)?//", page, re.IGNORECASE)
    assert "@import" not in page
    assert all(target.startswith("#") for target in re.findall(r"url\(\s*['\"]?([^)]*)", page))
    assert all(link.startswith("#") for link in Outline(page).links)
    assert "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:" in page


def test_findings_come_before_measurements() -> None:
    page = html.render(a_report())
    order = [page.index(f'<section id="{name}"') for name in ("findings", "quality", "things")]
    assert order == sorted(order)


def test_tables_have_scoped_headers_and_charts_have_descriptions() -> None:
    page = html.render(a_report())
    assert not re.search(r"<th(?![^>]*scope=)(?=[ >])", page)
    for chart in (
        "things-over-time-0",
        "things-many-0",
        "things-many-2",
        "things-stacked-0",
        "things-stacks-0",
        "things-shares-0",
    ):
        assert f'<title id="{chart}-title">' in page
        assert f'<desc id="{chart}-desc">' in page


# ---- text from the capture --------------------------------------------------------------
def test_text_from_the_capture_is_escaped() -> None:
    page = html.render(a_report())
    assert "<img" not in page
    assert page.count("</script>") == 1
    assert "std::vector<int>" not in page
    assert "std::vector&lt;int&gt;::push_back(int&amp;&amp;)" in page
    text = Outline(page).text
    assert TEMPLATE in text
    assert HOSTILE in text


def test_undecodable_arguments_can_be_written_as_utf8() -> None:
    page = html.render(a_report(title="a\udc80\x00b", meta=a_meta(command=["a\udc80\x00b"])))
    assert "a\ufffd\ufffdb" in page.encode("utf-8").decode("utf-8")


@pytest.mark.parametrize(
    ("wait_status", "words"),
    [(0, "exit 0"), (3 << 8, "exit 3"), (11, "killed by signal 11 (SIGSEGV)"), (None, "still running")],
)
def test_ending_is_said_in_words(wait_status: int | None, words: str) -> None:
    assert words in Outline(html.render(a_report(meta=a_meta(wait_status=wait_status)))).text


def test_unfinished_recording_is_said() -> None:
    assert "did not finish" in html.render(a_report(meta=a_meta(state="recording")))


def test_header_names_machine_time_and_collectors() -> None:
    text = Outline(html.render(a_report())).text
    for words in (
        "Some CPU, 64 CPUs, 2 NUMA nodes, 256 GiB memory, Linux 6.1.0 x86_64",
        "2026-01-02 03:04:05 UTC",
        "2.50 s",
        "memlens 9.8.7",
        "timeline (10 readings a second)",
    ):
        assert words in text


# ---- findings and quality ------------------------------------------------------------------------------
def test_finding_shows_claim_remedy_evidence_and_query() -> None:
    finding = a_finding(affected_share=0.25, affected_of="CPU time", view="things.rows")
    page = html.render(a_report(findings=[finding]))
    text = Outline(page).text
    assert f"Most faults come from {TEMPLATE}." in text
    assert "Keep the buffer & reuse it." in text
    assert "25.0 % of CPU time" in text and '<a href="#things">' in page
    assert "4.0 MiB" in text
    assert "1,234/CPU s" in text
    assert "13233" in text
    assert 'memlens query CAPTURE "SELECT \\"class\\" FROM faults WHERE x < 1"' in text


def test_a_finding_does_not_lead_to_a_section_that_is_not_there() -> None:
    page = html.render(a_report(findings=[a_finding(affected_share=0.5, affected_of="faults", view="gone.rows")]))
    assert 'href="#gone"' not in page


def test_no_findings_is_a_sentence() -> None:
    assert "None: no finding of this version applies" in html.render(a_report(findings=[]))


def test_severity_is_said_in_words_not_only_by_colour() -> None:
    findings = [a_finding(severity=severity) for severity in ("high", "medium", "low")]
    text = Outline(html.render(a_report(findings=findings))).text
    assert all(words in text for words in ("▲ high", "◆ medium", "● low"))


def test_quality_shows_losses_notes_and_what_could_not_run() -> None:
    entry = {"collector": "faults", "reason": "perf_event_paranoid is 3", "remedy": "sudo sysctl a=1"}
    quality = Quality(exact=False, dropped_records=12, truncated=True, notes=("Ring <1> was full.",))
    text = Outline(html.render(a_report(quality=quality, meta=a_meta(unsupported=[entry])))).text
    for words in (
        "12 records dropped",
        "truncated",
        "Ring <1> was full.",
        "perf_event_paranoid is 3",
        "sudo sysctl a=1",
    ):
        assert words in text
    assert "A peak may be shorter than the interval." in text


def test_what_was_not_recorded_is_listed_with_the_command() -> None:
    absence = Absence(analysis="x", question="Which <x>?", reason="the capture has no x", provide="memlens record --x")
    text = section(html.render(a_report(absences=(absence,))), "absent")
    assert "Which <x>?" in text and "memlens record --x" in text


# ---- sections ------------------------------------------------------------------------------
def section(page: str, name: str) -> str:
    """The text of one section of a page."""
    found = re.search(rf'<section id="{name}">.*?</section>', page, re.DOTALL)
    assert found is not None, f"no section {name}"
    return Outline(found.group(0)).text


def cells(page: str, name: str, first: str) -> list[str]:
    """The cells of the section's first row that holds a text."""
    found = re.search(rf'<section id="{name}">.*?</section>', page, re.DOTALL)
    assert found is not None
    for row in re.findall(r"<tr>(.*?)</tr>", found.group(0), re.DOTALL):
        if first in Outline(row).text:
            return [Outline(one).text for one in re.findall(r"<t[dh][ >].*?</t[dh]>", row, re.DOTALL)]
    raise AssertionError(f"no row with {first}")


def test_the_sentence_of_a_section_leaves_out_what_is_zero_and_carries_exact_bytes() -> None:
    page = html.render(a_report())
    assert "96.0 MiB held by 3" in section(page, "things") and "lost" not in section(page, "things")
    assert f'<span title="{96 * MIB:,} bytes">96.0 MiB</span>' in page
    assert "2 lost" in section(html.render(a_report(results=everything(lost=2))), "things")


def test_a_figure_that_is_not_known_says_why_and_is_no_number() -> None:
    shown = View(
        title="T",
        figures=(
            Figure(name="rate", label="rate", kind="per_s", show="always", reason="why"),
            Figure(name="why", label="w", kind="text"),
        ),
    )
    text = section(html.render(a_report(views={"things": shown})), "things")
    assert "rate–the clock stopped" in text


def test_a_row_has_all_its_numbers() -> None:
    page = html.render(a_report())
    first = cells(page, "things", "grid.cpp:100")
    assert first[0] == f"{TEMPLATE} 0grid.cpp:100"
    assert first[1:5] == ["40 MiB ±1 %", "41.7 %", "1.5 µs", "10.0 to 40.0 %"] or first[1:4] == [
        "40 MiB ±1 %",
        "41.7 %",
        "1.5 µs",
    ]
    assert first[6:] == ["77 worker", "0x7f000000"]
    assert cells(page, "things", "grid.cpp:101")[3] == "to the end"
    assert cells(page, "things", "grid.cpp:102")[4] == "10.0 to 40.0 %"
    assert f"{TEMPLATE} 2: too few" in section(page, "things")


def test_frames_are_folded_and_deep_stacks_cut() -> None:
    text = section(html.render(a_report()), "things")
    assert "60 frames" in text and "… 20 more" in text


def test_long_table_is_cut_and_says_how_to_get_the_rest() -> None:
    text = Outline(html.render(a_report())).text
    assert "10 more; see: memlens report CAPTURE --json | jq .results.things.tables.rows" in text
    assert "grid.cpp:129" in text and "grid.cpp:130" not in text


def test_details_are_folded_and_an_empty_table_is_a_sentence() -> None:
    page = html.render(a_report())
    assert "<summary>By kind (2 rows)</summary>" in page
    assert "Nothing was there." in section(page, "things")
    assert "Nothing</h3>" not in page  # a chart without a table


def test_nested_rows_are_indented() -> None:
    page = html.render(a_report())
    assert re.search(r'style="padding-left:1.4em" class="[^"]*">inner', page)


def test_two_series_share_a_chart_and_more_have_one_each() -> None:
    page = html.render(a_report())
    assert page.count('aria-labelledby="things-over-time-') == 1
    assert page.count('aria-labelledby="things-many-') == 3
    assert "limit, 128 MiB" in section(page, "things") and '<line class="limit"' in page
    assert "<summary>s2, at most 3</summary>" in page


def test_stacked_classes_are_told_apart_without_colour() -> None:
    page = html.render(a_report())
    assert 'fill="url(#fill-copy)"' in page and 'id="fill-copy"' in page


def test_matrix_shows_shares_of_all() -> None:
    assert cells(html.render(a_report()), "things", "40") is not None
    found = re.search(r"<h3>Users</h3>.*?</table>", html.render(a_report()), re.DOTALL)
    assert found is not None
    assert "75.0 %" in found.group(0) and "25.0 %" in found.group(0)


def test_zero_totals_do_not_divide() -> None:
    results = everything(held=0, limit=0)
    for name, column in (
        ("over_time", "held"),
        ("over_time", "asked"),
        ("bins", "first"),
        ("bins", "copy"),
        ("pairs", "n"),
        ("rows", "bytes"),
    ):
        table = results["things"].tables[name]
        at = table.column_names.index(column)
        results["things"].tables[name] = table.set_column(at, column, pa.array([0] * table.num_rows))
    Outline(html.render(a_report(results=results)))


def test_meta_without_any_field_renders() -> None:
    Outline(html.render(Report("x", {}, as_they_are(), [], Quality())))


def test_result_without_a_view_of_its_own_is_shown_as_it_is() -> None:
    page = html.render(a_report(results=as_they_are()))
    assert '<section id="row-misses"><h2>Row misses</h2>' in page
    assert "&lt;r&gt;" in page


def test_many_rows_with_long_names_leave_a_small_page() -> None:
    name = "std::map<" * 1500 + "int" + ">" * 1500
    page = html.render(a_report(results={"things": a_result(name, rows=500)}))
    assert len(page) < 900_000
    assert "470 more" in Outline(page).text


HOSTILE_NAMES = [HOSTILE, "<script>alert(1)</script>", "a\ufffd\x00\x1b[31m", "'\"`&amp;", "]]>-->", "\u202egnp.exe"]


@pytest.mark.parametrize("name", HOSTILE_NAMES)
def test_hostile_names_are_escaped(name: str) -> None:
    page = html.render(a_report(results=everything(name)))
    page.encode("utf-8")
    assert "<img" not in page
    assert page.count("<script>") == page.count("</script>") == 1
    assert not re.search("[\x00-\x08\x1b\u202e]", page)
    Outline(page)


# ---- recorded programs ------------------------------------------------------------------------------
def page_of(capture: memlens.Capture) -> str:
    page = html.render(memlens.analyses.report(capture))
    Outline(page)
    return page


@needs_faults
def test_recorded_sparse_objects_show_their_untouched_pages(record: Any) -> None:
    page = page_of(record(workload_path("object_use"), "--mode", "sparse", "--heap", "--mib", "32"))
    line = marked_line("object_use.c", "allocate: here")
    row = cells(page, "objects", f"object_use.c:{line}")
    assert row[0] == f"make_objectobject_use.c:{line}" and row[2] == "64.0 MiB"
    assert "62.0 MiB" in row and "peak heap 64.0 MiB" in section(
        page, "objects"
    )  # exact: a short program records all its objects


def test_recorded_churn_shows_short_lives_and_its_region(record: Any) -> None:
    page = page_of(record(workload_path("churn"), "--turns", "20000", options=("--sample-bytes", "0")))
    assert "20,000" in section(page, "objects")
    assert cells(page, "regions", "hot")[1:3] == ["region", "1"]


def test_capture_that_a_program_wrote_itself_is_shown_without_a_recorder(tmp_path: Path) -> None:
    from memlens.collect import preload

    if not preload.library().is_file():
        pytest.skip("libmemlens.so is not built: make build")
    output = tmp_path / "own.memlens"
    environment = os.environ | {
        "LD_PRELOAD": str(preload.library()),
        "MEMLENS_OUTPUT": str(output),
        "MEMLENS_SAMPLE_BYTES": "0",
    }
    subprocess.run([workload_path("churn"), "--turns", "2000"], env=environment, check=True, capture_output=True)
    report = memlens.analyses.report(memlens.open(output))
    assert report.title == "churn"
    page = html.render(report)
    text = Outline(page).text
    assert "written by the program itself, without a recorder" in text
    assert "None" not in text.replace("None: no finding", "")
    assert "2,000" in section(page, "objects")
    assert "–" in cells(page, "regions", "hot") or len(cells(page, "regions", "hot")) < 10  # no faults: no such columns
    shown = io.StringIO()
    terminal.show(report, file=shown)
    assert "written by the program itself" in shown.getvalue()
    assert "None" not in shown.getvalue()


# ---- charts -----------------------------------------------------------------------------------
def test_thinned_series_keeps_its_peak_and_its_end() -> None:
    values = [float(number % 97) for number in range(100_000)]
    values[54_321] = 1e6
    times, kept = _charts.thinned([float(number) for number in range(100_000)], values)
    assert len(times) <= _charts.MAX_POINTS
    assert times == sorted(times)
    assert max(kept) == 1e6
    assert times[-1] == 99_999


def test_icicle_children_fit_under_their_caller() -> None:
    stacks = [(("a", "main"), 60, 6), (("b", "main"), 30, 3), (("main",), 10, 1)]
    svg, remarks = _charts.icicle(stacks, title="t")
    boxes = re.findall(r'data-x="([\d.]+)" data-w="([\d.]+)"><title>(\w+)', svg)
    assert [(name, float(x), float(width)) for x, width, name in boxes[1:]] == [
        ("main", 0.0, 100.0),
        ("a", 0.0, 60.0),
        ("b", 60.0, 30.0),
    ]
    assert remarks == []


def test_deep_unbranched_stack_is_folded_so_that_its_leaf_is_visible() -> None:
    svg, remarks = _charts.icicle([(tuple(f"f{n}" for n in range(500)), 10, 1)], title="t")
    assert ">f0</text>" in svg
    assert "498 frames" not in svg and "497 frames" in svg
    assert "folded" in remarks[0]


def test_icicle_of_recursion_deeper_than_the_page_is_cut_with_a_remark() -> None:
    stacks = [(("x",) * depth, 10, 1) for depth in range(1, 400)]
    svg, remarks = _charts.icicle(stacks, title="t")
    assert svg.count("<rect") <= _charts.MAX_DEPTH + 1
    assert any("left out" in remark for remark in remarks)


# ---- in a browser --------------------------------------------------------------------------------
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="no chromium; to run: sudo apt-get install chromium")


def loaded(page: str, directory: Path, *more_flags: str) -> tuple[str, str]:
    """The DOM after the script ran, and the browser's log."""
    assert CHROMIUM is not None
    file = directory / "page.html"
    file.write_text(page, encoding="utf-8")
    flags = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--no-first-run",
        "--disable-background-networking",
    ]
    flags += ["--enable-logging=stderr", "--dump-dom", f"--user-data-dir={directory / 'profile'}", *more_flags]
    done = subprocess.run([CHROMIUM, *flags, file.as_uri()], capture_output=True, text=True, timeout=120, check=True)
    return done.stdout, done.stderr


@needs_chromium
@pytest.mark.parametrize("results", [{}, as_they_are(), everything()], ids=["none", "as they are", "full"])
def test_script_runs_in_a_browser_without_errors(tmp_path: Path, results: dict[str, Result]) -> None:
    dom, log = loaded(html.render(a_report(results=results)), tmp_path)
    assert re.search(r"<html[^>]*data-ready=\"1\"", dom), log
    assert "Uncaught" not in log
    assert "Content Security Policy" not in log
    assert "<img" not in dom


@needs_chromium
def test_sorting_filtering_and_read_outs_work(tmp_path: Path) -> None:
    steps = """<script>
    const table = document.querySelector("#things table.dense");
    const bytes = table.tHead.rows[0].cells[1].querySelector("button");
    bytes.click(); bytes.click();
    const chart = document.querySelector("#things svg[data-series]");
    const box = chart.getBoundingClientRect();
    const to = {clientX: box.left + box.width * 0.6, clientY: box.top + 9, bubbles: true};
    chart.dispatchEvent(new PointerEvent("pointermove", to));
    const first = table.tBodies[0].rows[0].cells[0].textContent;
    const field = table.querySelector("input");
    field.value = "grid.cpp:107"; field.dispatchEvent(new Event("input"));
    document.documentElement.dataset.probe = JSON.stringify([
      first.slice(-12),
      [...table.tBodies[0].rows].filter((row) => !row.hidden).length,
      chart.closest("figure").querySelector(".readout").textContent]);
    </script></body>"""
    dom, log = loaded(html.render(a_report()).replace("</body>", steps), tmp_path)
    assert "Uncaught" not in log
    assert 'data-probe="[&quot;grid.cpp:129&quot;,1,&quot;at 0.600 s: held 96.0 MiB, asked 90.0 MiB&quot;]"' in dom
