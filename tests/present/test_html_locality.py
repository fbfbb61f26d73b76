"""The sections Locality, Cache model and Shared lines of the HTML page, on traces whose answers are known by hand.

The last tests load the page in headless Chromium: nothing scrolls sideways, read-outs work from the keyboard.
"""

from __future__ import annotations

import io
import json
import re
from html import unescape
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from builders import CaptureBuilder
from conftest import run_memlens
from emulate_tools import build, emulate, needs_emulation
from hypothesis import given, settings
from hypothesis import strategies as st
from test_html_report import HOSTILE_NAMES, Outline, a_report, cells, loaded, needs_chromium, section
from test_locality import SOURCE

from memlens.analyses import views_of
from memlens.analyses._locality_view import with_curve
from memlens.analyses.caches import Level, cache_model
from memlens.analyses.data_locality import for_report, locality
from memlens.analyses.sharing import line_sharing
from memlens.present import _locality_charts, html, terminal
from memlens.results import Quality, Report, Result

LOAD, STORE = 1, 2
A, B = 0x10_0000, 0x80_0000
LEVELS = [Level(4096, 0, name="L1"), Level(1 << 20, 16, name="L2"), Level(32 << 20, 16, shared=True, name="L3")]
SECTIONS = ("locality", "caches", "sharing")


def sweep(count: int, *, base: int = A, step: int = 8) -> list[tuple[int, int, int, int]]:
    return [(0x1000, base + step * i, 8, LOAD) for i in range(count)]


def results_of(capture: Any) -> dict[str, Result]:
    return {
        "locality": locality(capture),
        "caches": cache_model(capture, levels=LEVELS, tlbs=[Level(64 * 4096, 4, name="TLB1")]),
        "sharing": line_sharing(capture),
    }


def report_of(results: dict[str, Result], **changes: Any) -> Report:
    return a_report(results=results, findings=[], views=views_of(results), **changes)


def page_of(results: dict[str, Result], **changes: Any) -> str:
    page = html.render(report_of(results, **changes))
    Outline(page)
    return page


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Result]:
    """800 words (100 lines), swept twice, every access recorded."""
    capture = (
        CaptureBuilder()
        .window(10, [*sweep(800), *sweep(800)], end_ns=10 + 64_000_000)
        .open(tmp_path_factory.mktemp("a") / "a.memlens")
    )
    return results_of(capture)


@pytest.fixture(scope="module")
def windows(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Result]:
    """4 windows that sweep 64 words (8 lines) twice, one access in ten recorded."""
    builder = CaptureBuilder()
    for number in range(4):
        trace = [*sweep(64), *sweep(64)]
        builder.window(1_000_000 * number, trace, executed=1280, first_executed=1280 * number, period=1280)
    return results_of(builder.open(tmp_path_factory.mktemp("w") / "w.memlens"))


@pytest.fixture(scope="module")
def fighting(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Result]:
    """Two threads write in turn: next to each other in one line, and to the same word of another, 200 times."""
    builder = CaptureBuilder()
    for thread, offset in ((100, 0), (101, 8)):
        trace = [access for _ in range(200) for access in ((0x1000, A + offset, 8, STORE), (0x1008, B, 8, STORE))]
        builder.window(10 + offset, trace, thread=thread, end_ns=10 + offset + 20 * 400)
    return results_of(builder.open(tmp_path_factory.mktemp("f") / "f.memlens"))


def charts(page: str, name: str) -> str:
    found = re.search(rf'<svg [^>]*aria-labelledby="{name}-title.*?</svg></div>', page, re.DOTALL)
    assert found is not None, f"no chart {name}"
    return found.group(0)


def said(chart: str) -> list[str]:
    """The read-outs of a chart, in order."""
    found = re.search(r'data-points="([^"]*)"', chart)
    assert found is not None
    return [text for _, text in json.loads(unescape(found.group(1)))]


# ---- locality ------------------------------------------------------------------------------------
def test_rows_of_a_sweep_have_the_numbers_of_its_closed_form(swept: dict[str, Result]) -> None:
    """6,400 bytes in 100 lines, half of the addresses new, 100 of 1,500 reuses at distance 99; 4 KiB hold 64 lines."""
    page = page_of(swept)
    assert cells(page, "locality", "unnamed") == [
        "(unnamed)[unknown]", "1,600", "100 %", "6.2 KiB", "0.5", "0 %", "6.6", "0 %", "1", "100", "1,500", "53.8", "1",
    ]  # fmt: skip
    text = section(page, "locality")
    assert "every access: 800 addresses, 6.2 KiB in 100 lines; 0.5 new addresses an access, classes inferred" in text
    assert "not seen" not in text and "few windows" not in text
    assert "reuse distance, mean6.6" in text


def test_miss_curve_of_a_sweep_falls_where_its_lines_fit(swept: dict[str, Result]) -> None:
    """Below 100 lines every line misses in both sweeps, 200 of 1,600; above, in the first: 100."""
    chart = charts(page_of(swept), "locality-miss-curve-0")
    by_size = dict(text.removesuffix(" miss").split(": ") for text in said(chart))
    assert by_size["64 B"] == by_size["4.0 KiB"] == by_size["5.7 KiB"] == "12.5 %"
    assert by_size["6.8 KiB"] == "6.2 %"  # 91 and 108 lines
    assert 'class="dotted"' not in chart  # nothing is uncertain


def test_histograms_of_a_sweep_add_up_to_all_accesses(swept: dict[str, Result]) -> None:
    page = page_of(swept)
    distances = said(charts(page, "locality-reuse-distance-0"))
    assert distances[0] == "0 blocks: 87.5 % of the accesses, 1,400 reuses"
    assert distances[7] == "64 to 127 blocks (4.0 KiB): 6.2 % of the accesses, 100 reuses"
    assert distances[8] == "first accesses to a block: 6.2 % of the accesses, 100"
    assert len(distances) == 9
    counts = [int(text.replace(",", "")) for text in re.findall(r"accesses, ([\d,]+)", " ".join(distances))]
    assert sum(counts) == 1600
    # Heights are shares: 1,400 and twice 100 of 1,600; the axis ends 12 % above the highest.
    drawn = re.findall(
        r'<rect class="(?:bar|unknown)"[^>]* height="([\d.]+)"', charts(page, "locality-reuse-distance-0")
    )
    assert [float(height) for height in drawn] == pytest.approx(
        [210 / 1.12, 210 / 1.12 / 14, 210 / 1.12 / 14], abs=0.01
    )


def test_sampled_runs_say_what_windows_cannot_see(windows: dict[str, Result]) -> None:
    """8 of 128 accesses of each window are its first to a line; the sweep before lies in another window."""
    page = page_of(windows)
    row = cells(page, "locality", "unnamed")
    assert row[4] == "0.5"  # 64 addresses in 128 accesses of each window
    assert row[7:9] == ["6.2 %", "yes"]
    text = section(page, "locality")
    assert "4 windows: 64 addresses" in text and "recorded accesses512executed accesses5,120" in text
    assert "few windows: the row is under-sampled" in text
    assert (
        said(charts(page, "locality-reuse-distance-0"))[-1]
        == "last use outside the window, not observable: 6.2 % of the accesses, 32"
    )
    assert said(charts(page, "locality-miss-curve-0"))[-1].endswith(": 0 to 6.2 % miss")
    assert 'class="dotted"' in charts(page, "locality-miss-curve-0")


def test_origin_of_classes_is_said(swept: dict[str, Result]) -> None:
    for origin, is_inferred in (("static", False), ("mixed", True), ("inferred", True)):
        figures = swept["locality"].figures | {"class_origin": origin}
        result = Result("locality", figures, swept["locality"].tables, Quality())
        text = section(page_of({"locality": result}), "locality")
        assert ("classes inferred" in text) == is_inferred and f"origin of classes{origin}" in text


def test_locality_without_data_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    capture = CaptureBuilder().window(10, sweep(50_000, step=64)).open(tmp_path / "a.memlens")
    result = for_report(capture, memory_limit_bytes=1)
    page = page_of({"locality": result})
    assert '<section id="locality"' not in page
    assert "left out" in section(page, "quality")


# ---- heat map ------------------------------------------------------------------------------------
def strokes(markup: str, tops: list[int], row_px: int) -> dict[tuple[int, int], int]:
    """The shade of each cell, decoded from the paths."""
    found: dict[tuple[int, int], int] = {}
    for shade, path in re.findall(r'<path class="h(\d)" d="([^"]*)"/>', markup):
        for begin, middle, count in re.findall(r"M(\d+) ([\d.]+)h(\d+)", path):
            row = tops.index(round(float(middle) - row_px / 2))
            for column in range(int(begin), int(begin) + int(count)):
                assert (row, column) not in found, "a cell is drawn twice"
                found[row, column] = int(shade)
    return found


@settings(max_examples=150, deadline=None)
@given(
    values=st.dictionaries(
        st.tuples(st.integers(0, 5), st.integers(0, 8)), st.integers(1, 1 << 40) | st.floats(0, 1e9), min_size=1
    ),
    gaps=st.lists(st.booleans(), min_size=5, max_size=5),
)
def test_heat_map_draws_each_cell_once_with_a_shade_of_its_level(
    values: dict[tuple[int, int], float], gaps: list[bool]
) -> None:
    layer = _locality_charts.Layer("accesses", "Accesses", values, "accesses")
    markup = _locality_charts.heat_layer(
        layer, [4096 * n for n in range(6)], [False, *gaps], 9, seconds=1.0, row_bytes=4096
    )
    row_px, tops = 14, []
    y = 0
    for gap in [False, *gaps]:
        y += 4 * gap
        tops.append(y)
        y += row_px
    drawn = strokes(markup, tops, row_px)
    assert set(drawn) == set(values)
    for one, first in values.items():
        for other, second in values.items():
            assert first > second or drawn[one] <= drawn[other], "more is never paler"
    letters = re.search(r'data-cells="([^"]*)"', markup).group(1).split(" ")  # type: ignore[union-attr]
    assert {(r, c) for r, row in enumerate(letters) for c, letter in enumerate(row) if letter != "."} == set(values)


@given(st.lists(st.integers(0, 1 << 40) | st.floats(0, 1e9), min_size=1))
def test_heat_levels_are_few_and_hold_their_values(values: list[float]) -> None:
    edges = _locality_charts.heat_edges(values)
    assert 1 <= len(edges) <= _locality_charts.HEAT_LEVELS and edges == sorted(set(edges))
    for value in values:
        level = _locality_charts.heat_level(value, edges)
        assert edges[level] <= value
        assert level + 1 == len(edges) or value < edges[level + 1]


def test_heat_map_of_two_ranges_folds_the_gap_between_them(tmp_path: Path) -> None:
    """A page swept in the first half of the time, another far away in the second half."""
    trace = [*sweep(512), *sweep(512, base=B)]
    result = locality(CaptureBuilder().window(0, trace, end_ns=64_000_000).open(tmp_path / "a.memlens"), heat_columns=4)
    page = page_of({"locality": result})
    found = re.search(r'data-rows="([^"]*)" data-row-bytes="(\d+)" data-part="([^"]*)"', page)
    assert found is not None and found.groups() == (f"{A:x},{B:x}", "4096", "0.016")
    maps = re.findall(r'data-cells="([^"]*)" data-levels="([^"]*)"', page)
    assert [cells for cells, _ in maps] == ["00.. ..00", "00.. ..00"]
    assert "256 accesses" in maps[0][1]
    assert "0 reuse distance mean" in maps[1][1]  # within a line 7 of 8 accesses are at distance 0
    assert page.count('class="fold"') == 2 and "(1 gap)" in section(page, "locality")
    assert "A cell is 4.0 KiB of addresses during 16.0 ms" in section(page, "locality")


def test_a_full_heat_map_leaves_a_small_page(swept: dict[str, Result]) -> None:
    """Every cell of the largest map, all different."""
    rows = [
        {"process": 1, "address": 65536 * r, "bytes": 65536, "begin_ns": 1000 * c, "end_ns": 1000 * (c + 1),
         "accesses": 1 + (r * 7919 + c * 104_729) % 65_521, "reuse_distance_mean": float((r * c * 31) % 977)}
        for r in range(128) for c in range(64)
    ]  # fmt: skip
    tables = swept["locality"].tables | {"heat_map": pa.Table.from_pylist(rows)}
    page = page_of({"locality": Result("locality", swept["locality"].figures, tables, Quality())})
    assert len(page) < 280_000


def test_shades_are_told_apart_by_lightness_alone_in_both_themes() -> None:
    """One hue for each layer, darker (on light) or brighter (on dark) step by step: no eye needs the colour."""
    style = html.resource("_html_style.css")
    light, dark = style.split("@media (prefers-color-scheme: dark)")[:2]

    def lightness(text: str, name: str) -> list[float]:
        found = []
        for number in range(_locality_charts.HEAT_LEVELS):
            code = re.search(rf"--{name}{number}: #([0-9a-f]{{6}})", text)
            assert code is not None
            parts = [int(code.group(1)[at : at + 2], 16) / 255 for at in (0, 2, 4)]
            linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
            y = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
            found.append(116 * y ** (1 / 3) - 16 if y > 0.008856 else 903.3 * y)
        return found

    for name in ("heat", "far"):
        down = lightness(light, name)
        assert all(a - b >= 7 for a, b in pairwise(down)), down
        up = lightness(dark, name)
        assert all(b - a >= 7 for a, b in pairwise(up)), up


# ---- cache model ------------------------------------------------------------------------------------
def test_levels_show_what_reaches_them_hits_and_misses(swept: dict[str, Result]) -> None:
    """L1 holds 64 of 100 lines and misses each line of both sweeps; L2 misses the first sweep. 6,400 bytes lie on 2 pages."""
    page = page_of(swept)
    assert cells(page, "caches", "4.0 KiB") == ["L1", "4.0 KiB", "", "12.5 %", "200", "0", "no", "cache"]
    assert cells(page, "caches", "1.0 MiB") == ["L2", "1.0 MiB", "", "6.2 %", "100", "16", "no", "cache"]
    assert cells(page, "caches", "32.0 MiB")[3:7] == ["6.2 %", "100", "16", "yes"]
    assert cells(page, "caches", "TLB1")[2:5] == ["64", "0.1 %", "2"]
    row = cells(page, "caches", "unnamed")
    assert row[:8] == ["(unnamed)[unknown]", "1,600", "12.5 %", "6.2 %", "6.2 %", "200", "100", "100"]
    assert row[-2:] == ["2", "0"]
    assert "Misses are those of a model, not measured" in section(page, "caches")


def test_the_curve_stands_beside_the_model_of_a_report(tmp_path: Path) -> None:
    """100 lines of a sweep, twice: a cache of 4 KiB misses 200 of 1,600 in both, one of 1 MiB 100."""
    capture = CaptureBuilder().window(10, [*sweep(800), *sweep(800)]).open(tmp_path / "a.memlens")
    results = results_of(capture)
    results["caches"] = with_curve(results["caches"], results)
    page = page_of(results)
    assert cells(page, "caches", "4.0 KiB")[:5] == ["L1", "4.0 KiB", "", "12.5 %", "12.5 %"]
    assert cells(page, "caches", "1.0 MiB")[:5] == ["L2", "1.0 MiB", "", "6.2 %", "6.2 %"]


def test_misses_by_line_are_shown_where_lines_are_known(tmp_path: Path) -> None:
    capture = CaptureBuilder().window(10, sweep(800)).open(tmp_path / "a.memlens")
    result = cache_model(capture, levels=LEVELS, tlbs=[])
    page = page_of({"caches": result})
    assert "By function" in section(page, "caches") and "<summary>By line (" in page  # a line without a file: folded
    assert "TLB" not in section(page, "caches")
    lines = result.tables["by_line"]
    named = lines.set_column(lines.column_names.index("file"), "file", pa.array(["sweep.c"] * lines.num_rows))
    page = page_of({"caches": Result("caches", result.figures, {**result.tables, "by_line": named}, result.quality)})
    assert "<summary>By line (" not in page and "sweep.c" in section(page, "caches")


# ---- sharing ------------------------------------------------------------------------------------
def test_bytes_of_shared_lines_are_drawn_for_each_thread(fighting: dict[str, Result]) -> None:
    """200 turns each: the line goes over at every access but the first."""
    page = page_of(fighting)
    row = cells(page, "sharing", f"{A:#x}")
    assert row[1:8] == [f"{A:#x}", "false", "100", "101", "399", "0-7", "8-15"]
    assert row[10:14] == ["0", "200", "0", "200"]
    assert cells(page, "sharing", f"{B:#x}")[2] == "true"
    # Four pixels a byte: thread 100 in the upper row, 101 beside it in the lower one.
    assert (
        '<rect class="bar" x="0" width="32" y="0" height="8"/><rect class="bar" x="32" width="32" y="11" height="8"/></svg>'
        in page
    )
    assert '<rect class="common" x="0" width="32" y="0" height="19"/></svg>' in page
    text = section(page, "sharing")
    assert "1 falsely (399 hand-overs), 1 truly (399 hand-overs)" in text


def test_sharing_of_one_thread_has_no_section(swept: dict[str, Result]) -> None:
    page = page_of(swept)
    assert '<section id="sharing"' not in page and 'href="#sharing"' not in page
    assert 'href="#locality"' in page and 'href="#caches"' in page


def test_sections_are_in_the_order_of_the_navigation(fighting: dict[str, Result]) -> None:
    page = page_of(fighting)
    places = [page.index(f'<section id="{name}"') for name in SECTIONS]
    assert places == sorted(places)
    assert re.findall(r"<nav.*?</nav>", page)[0].count("#locality") == 1


@pytest.mark.parametrize("name", HOSTILE_NAMES)
def test_hostile_names_are_escaped(fighting: dict[str, Result], name: str) -> None:
    def renamed(result: Result) -> Result:
        def of(table: pa.Table) -> pa.Table:
            for column in ("function", "module", "object"):
                if column in table.column_names:
                    at = table.column_names.index(column)
                    table = table.set_column(at, column, pa.array([name] * table.num_rows, pa.string()))
            return table

        return Result(
            result.name, result.figures, {key: of(table) for key, table in result.tables.items()}, result.quality
        )

    page = page_of({key: renamed(result) for key, result in fighting.items()})
    page.encode("utf-8")
    assert "<img" not in page
    assert page.count("<script>") == page.count("</script>") == 1
    assert not re.search("[\x00-\x08\x1b\u202e]", page)
    assert all(link.startswith("#") for link in Outline(page).links)


# ---- in a browser ------------------------------------------------------------------------------------
LONG = "std::unordered_map<std::pair<unsigned long, unsigned long>, std::vector<double>>::find_or_insert(unsigned long const&)"


def wide(results: dict[str, Result]) -> dict[str, Result]:
    """The same with long names, large numbers and errors: as wide as rows get."""
    changed = {}
    for key, result in results.items():
        tables = {}
        for name, table in result.tables.items():
            rows = table.to_pylist()
            for row in rows:
                row.update({k: LONG for k in ("function", "object") if k in row})
                row.update({k: "/opt/some/where/a_program_of_some_length" for k in ("module",) if k in row})
                if "under_sampled" in row:
                    row |= {"executed": 987_654_321.0, "footprint_bytes": 1023 << 20, "footprint_lines": 16_777_215, "growth": 0.000123,
                            "footprint_strided": 51, "footprint_irregular": 49, "irregular_percent": 49.0, "constant_percent": 33.3, "reuse_distance_mean": 123.4,
                            "reuse_distance_error": 1.5, "unobservable_percent": 88.8,
                            "window_growth": 0.000123, "window_irregular_percent": 49.0, "window_constant_percent": 33.3,
                            "window_reuse_distance_mean": 123.4, "window_reuse_distance_error": 1.5}  # fmt: skip
            tables[name] = pa.Table.from_pylist(rows, schema=table.schema) if rows else table
        changed[key] = Result(result.name, result.figures, tables, result.quality)
    return changed


def sideways(page: str, directory: Path, width: int) -> list[str]:
    """Captions of the tables that scroll sideways, and "page" where the page does, at a width of the window."""
    directory.mkdir()
    steps = """<script>
    const found = [...document.querySelectorAll("div.table")].filter((one) => one.scrollWidth > one.clientWidth + 1)
      .map((one) => one.closest("section").id + ": " + one.querySelector("caption").textContent);
    if (document.documentElement.scrollWidth > window.innerWidth) found.push("page");
    document.documentElement.dataset.probe = JSON.stringify([window.innerWidth, found]);
    </script></body>"""
    dom, log = loaded(page.replace("</body>", steps), directory, f"--window-size={width},900")
    assert "Uncaught" not in log
    probe = re.search(r'data-probe="([^"]*)"', dom)
    assert probe is not None, log
    inner, names = json.loads(unescape(probe.group(1)))
    assert inner == width
    return [name for name in names if name == "page" or name.split(":")[0] in SECTIONS]


@needs_chromium
def test_nothing_scrolls_sideways(tmp_path: Path, windows: dict[str, Result], fighting: dict[str, Result]) -> None:
    """In a narrow window tables scroll in their own boxes, the page does not."""
    results = wide({"locality": windows["locality"], "caches": windows["caches"], "sharing": fighting["sharing"]})
    page = page_of(results)
    assert sideways(page, tmp_path / "wide", 1280) == []
    assert "page" not in sideways(page, tmp_path / "narrow", 800)


@needs_chromium
def test_details_are_shown_on_request_without_a_script(tmp_path: Path, swept: dict[str, Result]) -> None:
    steps = """<script>
    const box = document.querySelector("#locality input.all"), cell = box.closest(".block").querySelector("td.detail");
    const found = [getComputedStyle(cell).display];
    document.querySelector(`label[for="${box.id}"]`).click();
    found.push(getComputedStyle(cell).display);
    document.documentElement.dataset.probe = JSON.stringify(found);
    </script></body>"""
    dom, log = loaded(page_of(swept).replace("</body>", steps), tmp_path)
    probe = re.search(r'data-probe="([^"]*)"', dom)
    assert probe is not None, log
    assert json.loads(unescape(probe.group(1))) == ["none", "table-cell"]


@needs_chromium
def test_read_outs_follow_the_keyboard_and_layers_change_without_a_script(
    tmp_path: Path, swept: dict[str, Result]
) -> None:
    steps = """<script>
    const key = (svg, name) => svg.dispatchEvent(new KeyboardEvent("keydown", {key: name, bubbles: true}));
    const of = (name) => document.querySelector("svg[aria-labelledby^='" + name + "']");
    const readout = (svg) => svg.closest("figure").querySelector(".readout").textContent;
    const curve = of("locality-miss-curve"), bars = of("locality-reuse-distance"), heat = of("heat-accesses");
    const found = [curve.tabIndex, heat.tabIndex];
    key(curve, "ArrowRight"); found.push(readout(curve));
    key(bars, "ArrowRight"); found.push(readout(bars));
    key(heat, "ArrowRight"); found.push(readout(heat));
    heat.dispatchEvent(new Event("blur")); found.push(readout(heat));
    const shown = () => ["accesses", "distance"].map((name) => getComputedStyle(document.querySelector(".layer." + name)).display);
    found.push(shown());
    document.querySelector("label[for='heat-distance']").click();
    found.push(shown());
    document.documentElement.dataset.probe = JSON.stringify(found);
    </script></body>"""
    dom, log = loaded(page_of(swept).replace("</body>", steps), tmp_path)
    assert "Uncaught" not in log and "Content Security Policy" not in log
    probe = re.search(r'data-probe="([^"]*)"', dom)
    assert probe is not None, log
    found = json.loads(unescape(probe.group(1)))
    assert found[:2] == [0, 0]
    assert found[2] == "64 B: 12.5 % miss"
    assert found[3] == "0 blocks: 87.5 % of the accesses, 1,400 reuses"
    # 1,600 accesses in 64 parts of 1 ms; the first goes to the first page.
    assert found[4] == "0x100000 and 4.0 KiB on, 0.0000 to 0.0010 s: 16 to 25 accesses"
    assert found[5] == ""
    assert found[6:] == [["block", "none"], ["none", "block"]]


# ---- in the terminal ------------------------------------------------------------------------------------
def shown(results: dict[str, Result], width: int) -> list[str]:
    file = io.StringIO()
    terminal.show(report_of(results), file=file, width=width, only=SECTIONS)
    return file.getvalue().splitlines()


def test_terminal_cuts_names_and_never_numbers_in_80_columns(
    windows: dict[str, Result], fighting: dict[str, Result]
) -> None:
    results = wide({"locality": windows["locality"], "caches": windows["caches"], "sharing": fighting["sharing"]})
    lines = shown(results, 80)
    assert max(map(len, lines)) <= 80
    row = next(line for line in lines if "988 M" in line)
    assert (
        row.split()[-9:] == ["988", "M", "100", "%", "1023", "MiB", "<0.001", "49.0", "%"] or row.split()[-1] == "123"
    )
    assert "…" in row and not any("…" in word for line in lines for word in line.split() if word[:1].isdigit())


def test_terminal_shows_a_line_that_both_threads_use_though_windows_saw_few_hand_overs(
    fighting: dict[str, Result],
) -> None:
    rows = fighting["sharing"].tables["lines"].to_pylist()
    seldom = [row | {"hand_overs": 1, "writes": 500, "other_writes": 500} for row in rows]
    tables = {"lines": pa.Table.from_pylist(seldom), "by_object": fighting["sharing"].tables["by_object"]}
    figures = fighting["sharing"].figures | {
        "accesses": 100_000, "false_sharing_hand_overs": 1, "true_sharing_hand_overs": 1,
    }  # fmt: skip
    both = fighting | {"sharing": Result("sharing", figures, tables, Quality(exact=False))}
    text = "\n".join(shown(both, 80))
    assert f"{A:#x}" in text and re.search(r"0-7 +8-15", text) and "fewer than in the" in text
    for row in seldom:
        row |= {"writes": 50, "other_writes": 50}
    tables["lines"] = pa.Table.from_pylist(seldom)
    assert "Shared lines" not in "\n".join(shown(both, 80))


# ---- a recorded program ------------------------------------------------------------------------------------
@needs_emulation
def test_page_of_an_emulated_program_has_the_footprint_of_its_source(tmp_path: Path) -> None:
    """20,000 doubles, read in order and then at random: 160,000 bytes each time, strided and irregular."""
    program = build(tmp_path, "orders", SOURCE)
    emulate(tmp_path / "full.memlens", program, mode="full")
    done = run_memlens("report", tmp_path / "full.memlens", "--html", tmp_path / "page.html")
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "page.html").read_text()
    Outline(page)
    in_order, at_random = cells(page, "locality", "in_order"), cells(page, "locality", "at_random")
    assert in_order[0] == "in_order[orders]"
    assert in_order[3] == "156 KiB" and in_order[5] == "0 %" and at_random[5] != "0 %"
    assert "every access: " in section(page, "locality")
