"""Views describe their results truly: every figure, table and column that they name is there, in every kind of capture."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from conftest import ROOT

import memlens
from memlens import _core, registry, view_types
from memlens.analyses import report
from memlens.present.rows import columns_of, order_of, rows_of
from memlens.present.values import of_cell
from memlens.results import Note, Quality, Report, Result
from memlens.view import Column, Table, filled, guessed, key, measure, problems

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
