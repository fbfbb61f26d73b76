"""Views describe their results truly: every figure, table and column that they name is there, in every kind of capture."""

from __future__ import annotations

import io
import json
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from conftest import ROOT

import memlens
from memlens import _core, registry, view_types
from memlens.analyses import _candidates, accuracy, intervals, report, validation, zoom_location, zoom_time
from memlens.capture.store.calibration import Found
from memlens.cli import calibrate, suggest, validate, verify, zoom
from memlens.collect import peaks
from memlens.errors import MemlensError
from memlens.present import terminal
from memlens.present._page_sections import section
from memlens.present.rows import columns_of, order_of, rows_of
from memlens.present.screen import Screen, cells
from memlens.present.values import of_cell, of_figure, plain
from memlens.results import Note, Quality, Report, Result
from memlens.view import NUMBERS, Column, Table, View, figures_in, filled, guessed, key, measure, problems

sys.path.insert(0, str(ROOT / "tests" / "goldens"))

import make

NAMES = sorted(path.name.removesuffix(".json.gz") for path in make.HERE.glob("*.json.gz"))


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Report]:
    return {name: report(memlens.open(make.opened(name, tmp_path_factory.mktemp(name)))) for name in NAMES}


def test_views_name_only_what_their_results_have(reports: dict[str, Report]) -> None:
    for name, one in reports.items():
        for analysis, view in one.views.items():
            assert problems(view, one.results[analysis]) == [], (name, analysis)


def test_every_analysis_of_a_report_gives_a_view() -> None:
    for name, descriptor in registry.all_of("analysis").items():
        if descriptor.in_report and descriptor.captures == 1:
            assert descriptor.view is not None, name


def test_every_figure_of_a_report_has_a_label_and_a_unit(reports: dict[str, Report]) -> None:
    """A number, text or flag that a view does not name has no label; lists are described by tables and charts."""
    for name, one in reports.items():
        for analysis, result in one.results.items():
            named = {
                part
                for figure in one.views[analysis].figures
                for part in (figure.name, figure.error, figure.low, figure.high, figure.reason)
            }
            plain = {k for k, v in result.figures.items() if not isinstance(v, list | dict)}
            assert plain <= named, (name, analysis, sorted(plain - named))


def test_reports_agree_with_the_generated_schema(reports: dict[str, Report]) -> None:
    jsonschema = pytest.importorskip("jsonschema", reason="pip install jsonschema")
    validator = jsonschema.Draft202012Validator(view_types.schema())
    for name, one in reports.items():
        content = json.loads(json.dumps(one.to_json(rows=3), default=str))
        assert [error.message for error in validator.iter_errors(content)][:3] == [], name
    content["views"][next(iter(content["views"]))]["titel"] = "x"
    assert list(validator.iter_errors(content))


def test_the_build_installs_both() -> None:
    installed = Path(_core.__file__).parent
    assert json.loads((installed / "report.schema.json").read_text()) == json.loads(json.dumps(view_types.schema()))
    assert (installed / "report.d.ts").read_text() == view_types.typescript() + "\n"


def test_typescript_types_are_accepted_by_the_compiler(tmp_path: Path) -> None:
    text = view_types.typescript()
    for name in ("Figure", "Column", "Table", "Chart", "View", "FindingJson", "ReportJson"):
        assert f"export interface {name} {{" in text
    tsc = shutil.which("tsc")
    if tsc is None:
        pytest.skip("no TypeScript compiler: npm install --global typescript")
    (tmp_path / "report.ts").write_text(text)
    done = subprocess.run([tsc, "--strict", "--noEmit", tmp_path / "report.ts"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def _result(rows: list[dict[str, Any]], **figures: Any) -> Result:
    return Result("it", figures, {"by": pa.Table.from_pylist(rows)}, Quality())


def test_rows_are_sorted_folded_and_cut_and_none_is_lost() -> None:
    rows = [{"name": f"f{n}", "bytes": n * n} for n in range(100)]
    result = _result(rows, all=sum(n * n for n in range(100)))
    view = Table(
        name="by", title="", sort="-bytes", fold="bytes",
        columns=(key("name", "name"), Column(name="bytes", label="share", kind="bytes", of="figures.all")),
    )  # fmt: skip
    found = rows_of(result, view, most=10)
    small = sum(n * n / result.figures["all"] < 0.001 for n in range(100))
    assert [row["name"] for row in found.shown] == [f"f{n}" for n in range(99, 89, -1)]
    assert found.folded == small and found.more == 100 - 10 - small
    assert order_of(result.tables["by"], "bytes") == sorted(range(len(rows)), key=lambda at: rows[at]["bytes"])


def test_a_column_without_values_is_left_out_where_the_view_says_so() -> None:
    rows = [{"name": "a", "x": None, "y": 0, "z": None}]
    view = Table(
        name="by", title="",
        columns=(key("name", "n"), measure("x", "x", show="known"), measure("y", "y", show="nonzero"), measure("z", "z")),
    )  # fmt: skip
    assert [column.name for column in columns_of(view, rows, details=False)] == ["name", "z"]


def test_null_is_never_shown_as_a_number() -> None:
    row: dict[str, Any] = {"x": None, "low": 0.1, "high": 0.5, "whole": 0}
    assert of_cell(measure("x", "x", "bytes"), row, {}) == "–"
    assert of_cell(measure("x", "x", "share", low="low", high="high"), row, {}) == "10.0 to 50.0 %"
    assert of_cell(Column(name="low", label="", kind="count", of="whole"), row, {}) == "–"


def test_headlines_leave_out_what_is_not_known() -> None:
    text = "peak {a}[, {b} swapped][; {c} and {d}]"
    assert filled(text, {"a": None, "b": 0, "c": 1, "d": None}, lambda name: name.upper()) == "peak A"


def test_a_result_without_a_view_is_shown_as_it_is() -> None:
    view = guessed(_result([{"function": "f", "bytes": 1}], peak_bytes=3))
    assert view.figures[0].kind == "bytes" and view.tables[0].columns[0].kind == "function"


def test_notes_are_sentences_with_codes() -> None:
    note = Note("faults.lost", "3 records were lost.", records=3)
    quality = Quality(notes=(note, "by another program"))
    assert quality.notes[0] == "3 records were lost."
    assert quality.to_json()["notes"] == [
        {"code": "faults.lost", "text": "3 records were lost.", "values": {"records": 3}},
        {"code": "recorded", "text": "by another program", "values": {}},
    ]


# ---- commands that show one result ------------------------------------------------------------
def calibration_of_two_nodes() -> peaks.Calibration:
    """As `memlens calibrate` writes it: two levels, two cores, two nodes; every number differs."""
    numbers = iter(range(101, 1000))

    def rate() -> peaks.Rate:
        value = next(numbers) * 1_010_000_000
        return {
            "bytes_per_second": value,
            "median_bytes_per_second": value // 2,
            "spread": next(numbers) / 1000,
            "windows": 9,
            "vectors": "x",
        }

    def rates(cores: int) -> peaks.Rates:
        return {
            "cores": cores,
            "footprint_bytes": 4096,
            "read": rate(),
            "write": rate(),
            "copy": rate(),
            "stream_write": rate(),
        }

    def latency() -> peaks.Latency:
        ns = float(next(numbers))
        return {
            "ns": ns,
            "median_ns": ns,
            "spread": next(numbers) / 10,
            "windows": 9,
            "footprint_bytes": 4096,
            "huge_page_share": 1.0,
        }

    def level(name: str, size: int | None) -> peaks.LevelPeaks:
        return {
            "level": name, "bytes": size, "instances": 2, "shared_by_cores": 1, "one": rates(1), "all": rates(2), "latency": latency(),
            "latency_small_pages": latency(),
        }  # fmt: skip

    def pair(node: int, memory: int) -> peaks.PairPeaks:
        return {
            "cpu_node": node, "memory_node": memory, "distance": next(numbers), "cores": 1, "footprint_bytes": 4096, "read": rate(),
            "write": rate(), "copy": rate(), "latency": latency(),
        }  # fmt: skip

    def arithmetic(cores: int) -> peaks.Arithmetic:
        found: list[peaks.Results] = [
            {"per_second": next(numbers) * 10**9, "spread": 0.0, "windows": 9} for _ in range(2)
        ]
        return {"cores": cores, "double": found[0], "single": found[1]}

    return {
        "version": 1, "memlens": "0", "measured": "2026-01-02T03:04:05+00:00", "seconds": 21.5, "fingerprint": "f",
        "machine": {"cpu": "A processor"}, "vector_widths": ["x"], "cores": [0, 1], "assumed_caches": False,
        "levels": [level("L1", 48 << 10), level("DRAM", None)], "pairs": [pair(0, 0), pair(0, 1)],
        "float": {"one": arithmetic(1), "all": arithmetic(2)}, "warnings": ["The machine was busy."],
    }  # fmt: skip


def of_json(document: dict[str, Any]) -> Result:
    """A result from what `--json` printed."""
    tables = {name: pa.Table.from_pylist(rows) for name, rows in document["tables"].items()}
    return Result(document["name"], document["figures"], tables, Quality())


Command = Callable[[list[str]], int]
COMMANDS: dict[str, tuple[Command, list[str], Callable[[Result], View]]] = {
    "zoom": (zoom.main, ["{emulate}"], zoom_location.view),
    "zoom-whole": (zoom.main, ["{trace-full}", "--stop", "64"], zoom_location.view),
    "zoom-time": (zoom.main, ["{emulate}", "--by", "time"], zoom_time.view),
    "zoom-levels": (zoom.main, ["{trace}", "--levels"], intervals.view),
    "zoom-memgaze": (zoom.main, ["{emulate}", "--levels", "--tree", "memgaze"], intervals.view),
    "validate": (
        validate.main,
        ["{trace-full}", "--window", "100", "--period", "2000", "--seeds", "2"],
        validation.view,
    ),
    "verify": (verify.main, ["{emulate}", "{count}"], accuracy.view),
    "calibrate": (calibrate.main, ["--show"], peaks.view),
    "suggest": (suggest.main, ["{count}"], _candidates.view),
}
"""Command, arguments and view of each command that shows one result."""


@pytest.fixture(scope="module")
def captures(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return {
        name: str(make.opened(name, tmp_path_factory.mktemp(name)))
        for name in ("emulate", "trace", "trace-full", "count")
    }


def words_of(text: str) -> str:
    return " ".join(text.split())


def shown_rows(result: Result, table: Table) -> tuple[list[Column], list[dict[str, Any]]]:
    found = rows_of(result, table, most=10)
    return columns_of(table, found.shown, details=False), found.shown


@pytest.mark.parametrize("name", COMMANDS)
def test_commands_show_every_figure_and_every_cell_at_every_width(
    name: str, captures: dict[str, str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command, arguments, view_of = COMMANDS[name]
    given = [word.format_map(captures) for word in arguments]
    content = calibration_of_two_nodes()
    monkeypatch.setattr(
        "memlens.capture.store.calibration.load", lambda name: Found(Path("calibration.json"), dict(content))
    )

    def printed(*more: str) -> str:
        try:
            assert command([*given, *more]) == 0
        except MemlensError as error:
            pytest.fail(str(error))
        return capsys.readouterr().out

    document = json.loads(printed("--json"))
    if name == "calibrate":
        assert document == content
        result = peaks.result_of(document)
    elif name == "suggest":
        result = _candidates.candidates(memlens.open(given[0]))
        assert result.tables["functions"].to_pylist() == document["functions"]
    else:
        result = of_json(document["claims"][0] if name == "verify" else document)
    view = view_of(result)
    assert problems(view, result) == []
    for width in ("80", "200", None):
        monkeypatch.setenv("COLUMNS", width) if width else monkeypatch.delenv("COLUMNS", raising=False)
        text = printed()
        words = words_of(text)
        assert "no room for" not in text
        if width:
            # Names of captures are as long as they are.
            lines = [line for line in text.splitlines() if not any(one in line for one in captures.values())]
            assert max(map(cells, lines)) <= int(width), max(lines, key=cells)
        said = words_of(terminal.headline(result, view))
        before, found, _ = words.partition(said)
        assert (
            found and before.endswith(f"{view.title} ") and (before.startswith("Exact ") or before == f"{view.title} ")
        )
        for figure in view.figures:
            value = result.figures[figure.name]
            if figure.name in figures_in(view.headline):
                assert of_figure(figure, result.figures) in said or not value
            elif value if figure.show == "nonzero" else value is not None or figure.show == "always":
                assert words_of(f"{figure.label}: {of_figure(figure, result.figures)}") in words
        wanted: Counter[str] = Counter()
        for table in view.tables:
            if table.role != "detail" and result.tables[table.source].num_rows >= table.least_rows:
                columns, rows = shown_rows(result, table)
                numbers = [column for column in columns if column.kind in NUMBERS]
                assert not rows or numbers
                wanted.update(words_of(of_cell(column, row, result.figures)) for column in numbers for row in rows)
        assert wanted
        plainly = io.TextIOWrapper(io.BytesIO(), encoding="ascii", errors="backslashreplace")
        terminal.show_result(result, view, file=plainly)
        plainly.seek(0)
        assert "\\u" not in plainly.read()
        page = section(result, view)
        assert all(
            f"<caption>{table.title}" in page
            for table in view.tables
            if rows_of(result, table, most=1).shown[table.least_rows - 1 :]
        )
        short = {one: words.count(one) for one, times in wanted.items() if one and words.count(one) < times}
        assert not short, (width, short, text)


def test_numbers_of_the_two_precise_kinds_are_whole() -> None:
    assert plain("precise", 123_456_789) == "123,456,789" and plain("precise", 0.00232288) == "0.00232288"
    assert plain("deviation", 0.13) == "0.13 %" and plain("deviation", -0.005) == "-0.0050 %"
    signed = measure("x", "x", "deviation", signed=True)
    assert [of_cell(signed, {"x": x}, {}) for x in (12.5, -12.5, 0.0, None)] == ["+12.50 %", "-12.50 %", "0 %", "–"]


def test_bandwidth_in_cells_is_never_in_powers_of_ten() -> None:
    column = measure("x", "GB/s", "bytes_per_s")
    assert [of_cell(column, {"x": x}, {}) for x in (1.2345e12, 89.37e9, 2.5e6)] == ["1,234", "89.4", "0.0025"]


def test_rows_across_become_columns() -> None:
    rows = [
        {"of": "a", "what": "x", "n": 1, "m": 5},
        {"of": "b", "what": "x", "n": 2, "m": 6},
        {"of": "a", "what": "y", "n": 3, "m": 7},
    ]
    view = Table(
        name="by",
        title="",
        across="what",
        columns=(key("of", "of"), measure("n@x", "x"), measure("n@y", "y"), measure("m", "m")),
    )
    found = rows_of(_result(rows), view, most=10).shown
    assert [[row.get(name) for name in ("of", "n@x", "n@y", "m")] for row in found] == [
        ["a", 1, 3, 5],
        ["b", 2, None, 6],
    ]
    assert not problems(View(title="", tables=(view,)), _result(rows))
    wrong = Table(name="by", title="", across="which", columns=(key("of", "of"), measure("k@x", "x")))
    assert "'k'" in problems(View(title="", tables=(wrong,)), _result(rows))[0]
    assert rows_of(_result(rows), view, most=1).more == 1


def test_of_each_value_the_first_rows_are_shown_and_whole_tables_are_never_cut() -> None:
    rows = [{"of": at // 5, "n": at} for at in range(20)]
    columns = (key("of", "of", "precise"), measure("n", "n"))
    each = rows_of(_result(rows), Table(name="by", title="", each="of", columns=columns), most=2)
    assert [row["n"] for row in each.shown] == [0, 1, 2, 5, 6, 7] and each.more == 14
    whole = rows_of(_result(rows), Table(name="by", title="", whole=True, columns=columns), most=2)
    assert len(whole.shown) == 20 and whole.more == 0


def test_lines_do_not_end_between_a_number_and_its_unit() -> None:
    out = io.StringIO()
    text = "64 B 6.6 to 14.6 %, 1.2 KiB 3 %, 455 k stores in 44.3 µs at 12.3 GB/s, 5 samples, 2 s"
    for width in range(24, 60):
        screen = Screen(out, width=width)
        screen.paragraph(text)
    lines = out.getvalue().splitlines()
    assert not [line for line in lines if re.match(r"(%|B|KiB|k|µs|GB/s|s)\b|%", line)]
    assert [line for line in lines if line.startswith("samples")]
    assert words_of(out.getvalue()) == " ".join([text] * 36)
