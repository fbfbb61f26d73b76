"""The HTML page on hand-built reports: escaping, self-containment, every section with and without data.

Some tests record a workload; the last ones load the page in headless Chromium. Everything else needs neither.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from conftest import marked_line, needs_faults, workload_path

import memlens
from memlens import registry
from memlens.present import _charts, _markup, html, terminal
from memlens.results import Finding, Quality, Report, Result

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


def a_capacity(**figures: Any) -> Result:
    return Result(
        "capacity",
        {
            "peak_rss_bytes": 96 * MIB,
            "median_rss_bytes": 64 * MIB,
            "peak_pss_bytes": 90 * MIB,
            "kernel_peak_rss_bytes": None,
            "peak_anon_huge_bytes": 0,
            "limit_bytes": 128 * MIB,
            "limit_kind": "cgroup",
            "readings": 3,
            "mean_interval_s": 0.5,
            "duration_s": 2.0,
        }
        | figures,
        {
            "over_time": pa.table({"time_s": [0.0, 0.5, 1.0], "rss_bytes": [MIB, 96 * MIB, 64 * MIB]}),
            "pss_over_time": pa.table({"time_s": [0.1], "pss_bytes": [90 * MIB]}),
            "by_process": pa.Table.from_pylist([a_process(number) for number in range(35)]),
            "by_node": pa.table({"node": [0, 1], "peak_bytes": [MIB, 3 * MIB]}),
        },
        Quality(exact=False, notes=("A peak may be shorter than the interval.",)),
    )


def a_process(number: int) -> dict[str, Any]:
    return {
        "process": number,
        "pid": 4000 + number,
        "name": "wörker<&>",
        "peak_rss_bytes": None if number else 96 * MIB,
        "begin_s": 0.1,
        "end_s": None,
        "threads": 2,
    }


def a_first_touch() -> Result:
    def rows(**keys: Any) -> pa.Table:
        return pa.Table.from_pylist([keys | {"bytes": 3 * MIB, "faults": 768, "threads": 1}])

    stacks = [
        {"frames": [TEMPLATE, "main"], "estimated_bytes": 2 * MIB, "estimated_faults": 80, "samples": 10},
        {"frames": ["memset", "main"], "estimated_bytes": MIB, "estimated_faults": 40, "samples": 5},
    ]
    placed = {"process": 1, "begin_ns": 0, "end_ns": 1_500_000_000, "address": 0x7F00_0000, "bytes": 4096}
    return Result(
        "first_touch",
        {"first_touched_bytes": 4 * MIB, "faults": 1024, "huge_bytes": 0, "named_share": 0.75, "threads": 2},
        {
            "by_function": rows(function=TEMPLATE, module="/opt/solver"),
            "by_line": rows(function=None, file="/src/./grid.cpp", line=17),
            "by_thread": pa.Table.from_pylist(
                [{"process": 1, "thread": 77, "bytes": 3 * MIB, "faults": 768, "name": None}]
            ),
            "by_node": rows(node=None),
            "by_area": rows(area="anonymous"),
            "placed_by_kernel": pa.Table.from_pylist([placed | {"huge": False, "area": "stack"}]),
            "stacks": pa.Table.from_pylist(stacks),
        },
        Quality(),
    )


def a_faults() -> Result:
    return Result(
        "faults",
        {
            "faults": 100,
            "own_faults": 7,
            "kernel_faults": 108,
            "faults_per_s": 50.0,
            "peak_faults_per_s": 90.0,
            "major_faults": 0,
        },
        {
            "by_class": pa.table({"class": ["first", "copy"], "faults": [90, 10], "new_bytes": [90 * 4096, 0]}),
            "by_function": pa.table(
                {"function": [TEMPLATE], "module": ["/opt/solver"], "class": ["first"], "faults": [90]}
            ),
            "over_time": pa.table({"time_s": [0.0, 1.0], "first": [90, 0], "copy": [0, 10]}),
        },
        Quality(),
    )


def a_site(number: int, **changes: Any) -> dict[str, Any]:
    row: dict[str, Any] = {
        "function": f"{TEMPLATE} {number}",
        "module": "/opt/solver",
        "file": "/src/grid.cpp",
        "line": 100 + number,
        "kind": "heap",
        "allocations": 1234.4,
        "allocated_bytes": 20 * MIB,
        "peak_bytes": 6 * MIB,
        "bytes_at_process_peak": 5 * MIB,
        "live": 2.0,
        "live_bytes": 3 * MIB,
        "releases": 100.0,
        "mean_lifetime_ns": 1500.0,
        "temporary": 617.2,
        "largest_bytes": MIB,
        "touched_bytes": 2 * MIB,
        "recycled_bytes": MIB,
        "never_touched_bytes": 7 * MIB,
        "stacks": 1,
        "sampled": True,
    }
    return row | changes


def an_object(number: int, **changes: Any) -> dict[str, Any]:
    row: dict[str, Any] = {
        "id": number,
        "process": 1,
        "kind": "heap",
        "name": None,
        "base": 0x7F00_0000,
        "bytes": 4 * MIB,
        "born_s": 0.25,
        "lifetime_s": 0.5,
        "released": True,
        "thread": 77,
        "function": "make_grid",
        "module": "/opt/solver",
        "file": "/src/grid.cpp",
        "line": 17,
        "touched_bytes": MIB,
        "recycled_bytes": MIB,
        "never_touched_bytes": 2 * MIB,
        "touching_threads": 3,
        "first_touch_thread": 99,
        "first_touch_function": "fill",
        "first_touch_file": "/src/fill.cpp",
        "first_touch_line": 8,
    }
    return row | changes


def an_objects(sites: int = 2, name: str = TEMPLATE, **figures: Any) -> Result:
    stacks = [
        {"frames": [name, "main"], "bytes_at_process_peak": 5 * MIB, "allocated_bytes": 9 * MIB, "allocations": 10.5},
        {"frames": [], "bytes_at_process_peak": MIB, "allocated_bytes": MIB, "allocations": 1.0},
    ]
    curve = [(1, "heap", 0.1, MIB), (1, "heap", 0.5, 9 * MIB), (1, "mmap", 0.2, 4 * MIB), (0, "heap", 0.1, 4096)]
    leak = {"function": name, "module": "/opt/solver", "file": None, "line": None, "process": 1}
    return Result(
        "objects",
        {
            "peak_heap_bytes": 9 * MIB,
            "peak_heap_process": 1,
            "peak_heap_s": 0.5,
            "peak_mmap_bytes": 4 * MIB,
            "allocations": 2_708_425.6,
            "allocated_bytes": 21 * MIB,
            "temporary_allocations": 2_031_319.2,
            "leaked_bytes": 3 * MIB,
            "leaked_objects": 2.0,
            "never_touched_bytes": 11 * MIB,
            "peak_heap_bytes_error": 0.25 * MIB,
            "allocations_error": 54_000.0,
            "allocated_bytes_error": 0.5 * MIB,
            "leaked_bytes_error": 0.75 * MIB,
            "objects_recorded": 500,
            "sample_bytes": 512 << 10,
            "processes": 2,
        }
        | figures,
        {
            "by_site": pa.Table.from_pylist(
                [a_site(number, function=f"{name} {number}") for number in range(sites)]
                + [a_site(sites, kind="mmap", sampled=False, mean_lifetime_ns=None, touched_bytes=None)]
            ),
            "largest": pa.Table.from_pylist(
                [an_object(0, name=f"grid {name}", kind="tag", released=False)] + [an_object(n) for n in range(40)]
            ),
            "leaks": pa.Table.from_pylist(
                [leak | {"live": 2.0, "live_bytes": 3 * MIB, "sampled": True, "frames": [name, "main"] * 30}]
            ),
            "stacks": pa.Table.from_pylist(stacks),
            "over_time": pa.Table.from_pylist(
                [dict(zip(("process", "kind", "time_s", "bytes"), point, strict=True)) for point in curve]
            ),
            "by_process": pa.table({"process": [0, 1]}),
        },
        Quality(exact=False),
    )


def a_regions(name: str = TEMPLATE) -> Result:
    row: dict[str, Any] = {
        "name": name,
        "kind": "region",
        "executions": 40,
        "threads": 2,
        "seconds": 1.5,
        "self_seconds": 0.5,
        "longest_s": 0.04,
        "faults": 4321,
        "first_touched_bytes": 5 * MIB,
        "allocations": 77.7,
        "allocated_bytes": MIB,
        "peak_rss_bytes": None,
        "rss_growth_bytes": -2048,
        "unfinished": 1,
    }
    rows = [row, row | {"name": "load", "kind": "phase", "seconds": 0.0, "self_seconds": 0.0}]
    return Result("regions", {"regions": 1, "phases": 1}, {"by_name": pa.Table.from_pylist(rows)}, Quality())


def everything() -> dict[str, Result]:
    return {
        "capacity": a_capacity(),
        "objects": an_objects(),
        "first_touch": a_first_touch(),
        "faults": a_faults(),
        "regions": a_regions(),
    }


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
        "results": {"capacity": a_capacity(), "first_touch": a_first_touch(), "faults": a_faults()},
        "findings": [a_finding()],
        "quality": Quality(),
    }
    return Report(**(fields | changes))


def empty_results() -> dict[str, Result]:
    """What analyses give for a program that ended at once: every table without rows or without columns."""
    return {
        "capacity": Result(
            "capacity",
            {
                "peak_rss_bytes": 0,
                "median_rss_bytes": 0,
                "limit_bytes": 0,
                "limit_kind": "machine",
                "duration_s": 0.0,
            },
            {
                "over_time": pa.table({"time_s": pa.array([], pa.float64()), "rss_bytes": pa.array([], pa.int64())}),
                "by_process": pa.table({}),
            },
            Quality(exact=False),
        ),
        "first_touch": Result(
            "first_touch",
            {"first_touched_bytes": 0, "faults": 0, "named_share": None, "threads": 0},
            {"by_function": pa.table({}), "stacks": pa.table({})},
            Quality(),
        ),
        "faults": Result(
            "faults",
            {
                "faults": 0,
                "kernel_faults": None,
                "faults_per_s": 0.0,
                "peak_faults_per_s": 0.0,
                "major_faults": 0,
            },
            {"by_class": pa.table({}), "over_time": pa.table({"time_s": [0.0, 0.0, 0.0]})},
            Quality(),
        ),
        "objects": Result("objects", {"peak_heap_bytes": 0}, {"by_site": pa.table({})}, Quality()),
        "regions": Result("regions", {}, {"by_name": pa.table({})}, Quality()),
    }


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


@pytest.mark.parametrize("results", [{}, empty_results(), everything()], ids=["none", "empty", "full"])
def test_tags_balance_and_ids_are_unique(results: dict[str, Result]) -> None:
    outline = Outline(html.render(a_report(results=results)))
    assert len(outline.ids) == len(set(outline.ids))
    assert outline.tags.count("h1") == 1
    targets = [link.removeprefix("#") for link in outline.links]
    assert set(targets) <= set(outline.ids)


def test_page_refers_to_nothing_outside_itself() -> None:
    page = html.render(a_report(results=everything()))
    assert not re.search(r"(?:src|href)\s*=\s*[\"']?\s*(?:https?:)?//", page, re.IGNORECASE)
    assert "@import" not in page
    assert all(target.startswith("#") for target in re.findall(r"url\(\s*['\"]?([^)]*)", page))
    assert all(link.startswith("#") for link in Outline(page).links)
    assert "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:" in page


def test_findings_come_before_measurements() -> None:
    page = html.render(a_report(results=everything()))
    names = ("findings", "quality", "figures", "capacity", "objects", "first-touch", "faults", "regions", "processes")
    order = [page.index(f'<section id="{name}"') for name in names]
    assert order == sorted(order)


def test_tables_have_scoped_headers_and_charts_have_descriptions() -> None:
    page = html.render(a_report(results=everything()))
    assert not re.search(r"<th(?![^>]*scope=)(?=[ >])", page)
    for chart in ("capacity", "faults-time", "stacks", "objects-1", "objects-0", "objects-held", "objects-made"):
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


# ---- sections ------------------------------------------------------------------------------
def test_finding_shows_claim_remedy_evidence_and_query() -> None:
    text = Outline(html.render(a_report())).text
    assert f"Most faults come from {TEMPLATE}." in text
    assert "Keep the buffer & reuse it." in text
    assert "4.0 MiB" in text
    assert "1,234/CPU s" in text
    assert "13233" in text
    assert 'memlens query CAPTURE "SELECT \\"class\\" FROM faults WHERE x < 1"' in text


def test_no_findings_is_a_sentence() -> None:
    assert "None: no rule of this version found anything" in html.render(a_report(findings=[]))


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


def test_bytes_carry_their_exact_number() -> None:
    assert f'<span title="{96 * MIB:,} bytes">96.0 MiB</span>' in html.render(a_report())


def test_limit_is_drawn_only_near_the_peak() -> None:
    near = html.render(a_report(results={"capacity": a_capacity(limit_bytes=4 * 96 * MIB)}))
    far = html.render(a_report(results={"capacity": a_capacity(limit_bytes=4 * 96 * MIB + 1)}))
    assert '<line class="limit"' in near
    assert '<line class="limit"' not in far
    assert "far above and not drawn" in far


def test_long_table_is_cut_and_says_how_to_get_the_rest() -> None:
    text = Outline(html.render(a_report())).text
    assert "5 more; see: memlens export CAPTURE -o DIR --tables processes" in text
    assert "4029" in text
    assert "4030" not in text


def test_fault_classes_are_explained_and_told_apart_without_colour() -> None:
    page = html.render(a_report())
    assert "a page of this process that was not there before" in page
    assert 'fill="url(#fill-copy)"' in page
    assert 'id="fill-copy"' in page


def test_sampled_stacks_say_so() -> None:
    text = Outline(html.render(a_report())).text
    assert "Sampled: one in 8 on average, 15 stacks by frame pointers; bytes are estimated." in text


def test_timeline_only_capture_says_why_the_rest_is_missing() -> None:
    entry = {"collector": "faults", "reason": "no permission <1>", "remedy": "sudo x"}
    meta = a_meta(collectors={"timeline": {"rate_hz": 10.0}}, unsupported=[entry])
    page = html.render(a_report(meta=meta, results={"capacity": a_capacity()}))
    assert '<section id="first-touch"' not in page
    assert '<section id="faults"' not in page
    assert "First touch and page faults not shown: the collector faults could not run: no permission &lt;1&gt;." in page


def test_faults_only_capture_says_why_memory_is_missing() -> None:
    meta = a_meta(collectors={"faults": {"stacks": "none"}})
    page = html.render(a_report(meta=meta, results={"faults": a_faults(), "first_touch": a_first_touch()}))
    assert "Memory over time and processes not shown: the collector timeline was not used" in page


def test_empty_tables_and_zero_figures_leave_sentences() -> None:
    text = Outline(html.render(a_report(results=empty_results(), findings=[]))).text
    for words in (
        "no reading of RSS",
        "No fault placed memory.",
        "There were no faults.",
        "No process was seen.",
    ):
        assert words in text


def test_tables_with_rows_but_zero_totals_do_not_divide() -> None:
    results = a_report().results
    results["first_touch"].figures["first_touched_bytes"] = 0
    results["faults"].figures["faults"] = 0
    results["capacity"].figures["peak_rss_bytes"] = 0
    zero = pa.table({"time_s": [0.0], "rss_bytes": [0]})
    results["capacity"].tables.update(over_time=zero, pss_over_time=pa.table({"time_s": [0.0], "pss_bytes": [0]}))
    results["capacity"].figures["duration_s"] = 0.0
    results["faults"].tables["over_time"] = pa.table({"time_s": [0.0], "first": [3]})
    Outline(html.render(a_report(results=results)))


def test_meta_without_any_field_renders() -> None:
    Outline(html.render(Report("x", {}, empty_results(), [], Quality())))


def test_result_without_a_view_of_its_own_is_shown_as_it_is() -> None:
    other = Result("row_misses", {"missed_bytes": MIB}, {"by_row": pa.table({"row": ["<r>"], "count": [5]})}, Quality())
    page = html.render(a_report(results={"row_misses": other}))
    assert '<section id="row-misses"><h2>Row misses</h2>' in page
    assert "&lt;r&gt;" in page


# ---- objects and regions ------------------------------------------------------------------------
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


def test_objects_show_their_key_figures_and_say_what_is_estimated() -> None:
    text = section(html.render(a_report(results=everything())), "objects")
    for words in (
        "Peak heapabout 9.0 MiBat 0.50 s ±6 %, wörker<&> (4001)",
        "Allocationsabout 2.70 Mof the heap, 75 % temporary ±4 %",
        "Never touched11.0 MiB",
        "Not freed at exitabout 3.0 MiBabout 2 heap objects ±50 %",
        "are sampled, one in 512 KiB of allocations: what is marked about or sampled is an estimate",
        "Recycled pages were touched before the object was born",
    ):
        assert words in text


def test_nothing_is_about_when_every_object_was_recorded() -> None:
    exact = dict.fromkeys(
        ("peak_heap_bytes_error", "allocations_error", "allocated_bytes_error", "leaked_bytes_error"), 0
    )
    results = everything() | {"objects": an_objects(sample_bytes=512 << 10, **exact)}
    page = html.render(a_report(results=results))
    assert 'class="about"' not in page
    assert "Peak heap9.0 MiB" in section(page, "objects")


def test_site_row_has_all_its_numbers() -> None:
    row = cells(html.render(a_report(results=everything())), "objects", "grid.cpp:100")
    assert row == [
        f"{TEMPLATE} 0grid.cpp:100", "heapsampled", "6.0 MiB", "5.0 MiB", "1,200", "20.0 MiB", "1.5 µs", "50.0 %",
        "1.0 MiB", "2.0 MiB", "7.0 MiB", "3.0 MiB",
    ]  # fmt: skip
    mapped = cells(html.render(a_report(results=everything())), "objects", "grid.cpp:102")
    assert mapped[1] == "mmap"
    assert mapped[6] == "to the end"
    assert mapped[9] == "–"


def test_largest_objects_say_who_touched_them_first() -> None:
    page = html.render(a_report(results=everything()))
    assert cells(page, "objects", "make_grid")[0].startswith(f"grid {TEMPLATE}")
    text = section(page, "objects")
    assert "thread 99fillfill.cpp:8" in text
    assert "1.0 MiB recycled, 2.0 MiB never touched" in text
    assert "470 more; see: memlens export CAPTURE -o DIR --tables objects" in text


def test_leaks_fold_their_frames_and_cut_deep_stacks() -> None:
    text = section(html.render(a_report(results=everything())), "objects")
    assert "60 frames" in text
    assert "… 20 more" in text


def test_the_process_with_the_largest_heap_is_drawn_and_others_are_folded() -> None:
    page = html.render(a_report(results=everything()))
    folded = re.search(r'<details><summary>([^<]*)</summary><figure>.*?id="(objects-\d)-title"', page, re.DOTALL)
    assert folded is not None
    assert folded.group(1).endswith("(4000): heap up to 4.0 KiB")
    assert folded.group(2) == "objects-0"
    assert page.index('id="objects-1-title"') < folded.start()


def test_curve_of_a_process_ends_with_it() -> None:
    ended = _charts.Series("heap", [0.0], [10], 1.0)
    chart = _charts.step_chart(ended, None, end_s=4.0, title="t")
    assert "H250.00" in chart
    assert "H1000" not in chart
    assert "&quot;end&quot;:1.0" in chart


def test_thousands_of_sites_with_long_names_leave_a_small_page() -> None:
    name = "std::map<" * 1500 + "int" + ">" * 1500
    results = everything() | {"objects": an_objects(sites=5000, name=name)}
    page = html.render(a_report(results=results))
    assert len(page) < 400_000
    assert "4,971 more; see: memlens report CAPTURE --json | jq .results.objects.tables.by_site" in Outline(page).text


HOSTILE_NAMES = [HOSTILE, "<script>alert(1)</script>", "a\ufffd\x00\x1b[31m", "'\"`&amp;", "]]>-->", "\u202egnp.exe"]


@pytest.mark.parametrize("name", HOSTILE_NAMES)
def test_hostile_names_of_sites_objects_and_regions_are_escaped(name: str) -> None:
    results = everything() | {"objects": an_objects(name=name), "regions": a_regions(name)}
    page = html.render(a_report(results=results))
    page.encode("utf-8")
    assert "<img" not in page
    assert page.count("<script>") == page.count("</script>") == 1
    assert not re.search("[\x00-\x08\x1b\u202e]", page)
    Outline(page)


def test_region_row_has_all_its_numbers() -> None:
    page = html.render(a_report(results=everything()))
    assert cells(page, "regions", TEMPLATE) == [
        TEMPLATE, "region", "40", "2", "1.5 s", "500.0 ms", "40.0 ms", "4,321", "5.0 MiB", "78", "–", "-2.0 KiB", "1",
    ]  # fmt: skip
    assert '<i style="width:33.33%"></i><i class="inner" style="width:66.67%"></i>' in page
    assert "numbers of allocations are estimates" in section(page, "regions")


def test_what_was_not_recorded_of_regions_is_a_dash_not_a_zero() -> None:
    page = html.render(a_report(results={"regions": a_regions()}))
    assert cells(page, "regions", TEMPLATE)[7:10] == ["–", "–", "–"]


def test_missing_and_empty_objects_and_regions_leave_sentences() -> None:
    page = html.render(a_report())
    assert '<section id="objects"' not in page
    assert '<section id="regions"' not in page
    assert "Objects not shown: the collector alloc was not used" in page
    page = html.render(a_report(results=empty_results()))
    for words in ("No allocation was seen.", "No object was seen.", "no object was seen.", "No call stack of a heap"):
        assert words in section(page, "objects")
    assert "The program named no region." in section(page, "regions")


def test_quality_and_header_say_how_objects_were_recorded() -> None:
    def text(**alloc: Any) -> str:
        return Outline(html.render(a_report(meta=a_meta(collectors={"alloc": alloc}), results=everything()))).text

    sampled = text(sample_bytes=512 << 10, large_bytes=64 << 10)
    assert "alloc (one in 512 KiB of small objects, all of 64.0 KiB and more)" in sampled
    assert "Objects of 64.0 KiB and more were all recorded, smaller ones sampled, one in 512 KiB" in sampled
    exact = text(sample_bytes=0, large_bytes=64 << 10)
    assert "alloc (every object)" in exact
    assert "Every object was recorded." in exact


def test_faults_say_that_those_of_our_own_library_are_left_out() -> None:
    page = html.render(a_report())
    assert "7 page faults on memory of memlens's own library" in section(page, "faults")
    assert "kernel's count 108 with 7 of memlens" in section(page, "figures")


def test_key_figures_have_heap_untouched_and_leaks_only_when_there_are_any() -> None:
    labels = ("Peak heap", "Never touched", "Not freed at exit")
    text = section(html.render(a_report(results=everything())), "figures")
    assert all(label in text for label in labels)
    none = an_objects(peak_heap_bytes=0, never_touched_bytes=None, leaked_bytes=0)
    text = section(html.render(a_report(results=everything() | {"objects": none})), "figures")
    assert not any(label in text for label in labels)


def test_counts_and_durations_have_fitting_units() -> None:
    assert _markup.whole_number(999_999) == "999,999"
    assert _markup.duration_cell(None, unknown="to the end") == '<td class="number" data-v="1e99">to the end</td>'
    assert ">2.5 ms<" in _markup.duration_cell(2.5e6)


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
    assert (row[0], row[2], row[4]) == (f"make_objectobject_use.c:{line}", "64.0 MiB", "2")
    assert (row[10], row[11]) == ("62.0 MiB", "64.0 MiB")
    text = section(page, "objects")
    assert "Peak heap64.0 MiB" in text  # exact: a short program records all its objects
    assert "31.0 MiB never touched" in text
    assert "touch_pages" in text


def test_recorded_churn_shows_short_lives_and_its_region(record: Any) -> None:
    page = page_of(record(workload_path("churn"), "--turns", "20000", options=("--sample-bytes", "0")))
    row = cells(page, "objects", "churn.c:")
    busy = next(row for row in (row, cells(page, "objects", "20,000")) if row[4] == "20,000")
    assert (busy[1], busy[5], busy[7], busy[8]) == ("heap", "4.9 MiB", "100 %", "256 B")
    assert cells(page, "regions", "hot")[1:4] == ["region", "1", "1"]
    assert "Every object was recorded." in Outline(page).text


def test_recorded_mapping_is_shown_beside_an_empty_heap(record: Any) -> None:
    page = page_of(record(workload_path("hash_map"), "--iterations", "1", "--mib", "16"))
    assert "Peak mmap16.0 MiB" in section(page, "objects")
    assert "mmap, mapped by the program" in section(page, "objects")
    row = cells(page, "objects", "map_or_fail")
    assert (row[1], row[2], row[11]) == ("mmap", "16.0 MiB", "–")


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
    assert "Memory over time not shown: the program wrote this capture itself" in text
    assert "First touch and page faults not shown: the program wrote this capture itself" in text
    assert "alloc (every object)" in text
    assert "None" not in text.replace("None: no rule", "")
    assert cells(page, "objects", "2,000")[4] == "2,000"
    assert cells(page, "regions", "hot")[7:9] == ["–", "–"]
    shown = io.StringIO()
    terminal.show(report, file=shown)
    assert "written by the program itself" in shown.getvalue()
    assert "None" not in shown.getvalue()
    assert "?" not in shown.getvalue()


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
@pytest.mark.parametrize("results", [{}, empty_results(), everything()], ids=["none", "empty", "full"])
def test_script_runs_in_a_browser_without_errors(tmp_path: Path, results: dict[str, Result]) -> None:
    dom, log = loaded(html.render(a_report(results=results)), tmp_path)
    assert re.search(r"<html[^>]*data-ready=\"1\"", dom), log
    assert "Uncaught" not in log
    assert "Content Security Policy" not in log
    assert "<img" not in dom


@needs_chromium
def test_sorting_filtering_and_read_outs_work(tmp_path: Path) -> None:
    steps = """<script>
    const table = document.querySelector("#processes table");
    const pid = table.tHead.rows[0].cells[0].querySelector("button");
    pid.click(); pid.click();
    const chart = document.querySelector("#capacity svg[data-series]");
    const box = chart.getBoundingClientRect();
    const to = {clientX: box.left + box.width * 0.3, clientY: box.top + 9, bubbles: true};
    chart.dispatchEvent(new PointerEvent("pointermove", to));
    const field = table.querySelector("input");
    field.value = "4007"; field.dispatchEvent(new Event("input"));
    document.documentElement.dataset.probe = JSON.stringify([
      table.tBodies[0].rows[0].cells[0].textContent,
      [...table.tBodies[0].rows].filter((row) => !row.hidden).length,
      chart.closest("figure").querySelector(".readout").textContent]);
    </script></body>"""
    dom, log = loaded(html.render(a_report()).replace("</body>", steps), tmp_path)
    assert "Uncaught" not in log
    assert 'data-probe="[&quot;4029&quot;,1,&quot;at 0.600 s: RSS 96.0 MiB, PSS 90.0 MiB&quot;]"' in dom


@needs_chromium
def test_folded_call_stacks_are_drawn_when_unfolded_and_sites_sort_by_number(tmp_path: Path) -> None:
    steps = """<script>
    const table = document.querySelector("#objects table.dense");
    table.tHead.rows[0].cells[6].querySelector("button").click();
    const svg = document.querySelector("svg[aria-labelledby^='objects-made']");
    svg.closest("details").open = true;
    svg.querySelectorAll("g").forEach((group) => group.classList.add("narrow")); // as where folded means no width
    svg.closest("details").dispatchEvent(new Event("toggle"));
    document.documentElement.dataset.probe = JSON.stringify([
      table.tBodies[0].rows[0].cells[6].textContent,
      svg.querySelectorAll("g").length > 2 && svg.querySelector("g.c0, g.c1, g.c2").classList.contains("narrow")]);
    </script></body>"""
    dom, log = loaded(html.render(a_report(results=everything())).replace("</body>", steps), tmp_path)
    assert "Uncaught" not in log
    assert 'data-probe="[&quot;to the end&quot;,false]"' in dom
