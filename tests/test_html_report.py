"""The HTML page on hand-built reports: escaping, self-containment, every section with and without data.

The last tests load the page in headless Chromium; everything else needs no browser.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from memlens import registry
from memlens.present import _charts, html
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
            "steady_rss_bytes": 64 * MIB,
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
            "kernel_faults": 101,
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
                "steady_rss_bytes": 0,
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


@pytest.mark.parametrize("results", [{}, empty_results(), a_report().results], ids=["none", "empty", "full"])
def test_tags_balance_and_ids_are_unique(results: dict[str, Result]) -> None:
    outline = Outline(html.render(a_report(results=results)))
    assert len(outline.ids) == len(set(outline.ids))
    assert outline.tags.count("h1") == 1
    targets = [link.removeprefix("#") for link in outline.links]
    assert set(targets) <= set(outline.ids)


def test_page_refers_to_nothing_outside_itself() -> None:
    page = html.render(a_report())
    assert not re.search(r"(?:src|href)\s*=\s*[\"']?\s*(?:https?:)?//", page, re.IGNORECASE)
    assert "@import" not in page
    assert all(target.startswith("#") for target in re.findall(r"url\(\s*['\"]?([^)]*)", page))
    assert all(link.startswith("#") for link in Outline(page).links)
    assert "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:" in page


def test_findings_come_before_measurements() -> None:
    page = html.render(a_report())
    order = [
        page.index(f'<section id="{name}"') for name in ("findings", "quality", "figures", "capacity", "first-touch")
    ]
    assert order == sorted(order)


def test_tables_have_scoped_headers_and_charts_have_descriptions() -> None:
    page = html.render(a_report())
    assert not re.search(r"<th(?![^>]*scope=)(?=[ >])", page)
    for chart in ("capacity", "faults-time", "stacks"):
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


def loaded(page: str, directory: Path) -> tuple[str, str]:
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
    flags += ["--enable-logging=stderr", "--dump-dom", f"--user-data-dir={directory / 'profile'}"]
    done = subprocess.run([CHROMIUM, *flags, file.as_uri()], capture_output=True, text=True, timeout=120, check=True)
    return done.stdout, done.stderr


@needs_chromium
@pytest.mark.parametrize("results", [{}, empty_results(), a_report().results], ids=["none", "empty", "full"])
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
