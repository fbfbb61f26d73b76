"""The command line: help, errors with remedy and status, and each command's output."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as parquet
import pytest
from builders import PAGE, CaptureBuilder
from conftest import MEMLENS, run_memlens

import memlens
from memlens import errors
from memlens.analyses import _conditions
from memlens.cli.main import COMMANDS


@pytest.fixture
def small(tmp_path: Path) -> Path:
    builder = CaptureBuilder().event(1, "fork").event(2, "exec", name="prog").mapping(3, 100, 1000)
    for page in range(50):
        builder.fault(1000 + page, 200 + page)
    for tick in range(10):
        builder.reading(tick * 100_000_000, "rss_bytes", (tick + 1) << 20)
    return builder.write(tmp_path / "small.memlens")


# ---- help -----------------------------------------------------------------------------


def test_help_lists_every_command_and_imports_nothing_heavy() -> None:
    code = (
        "import sys\nsys.argv = ['memlens', '--help']\n"
        "from memlens.cli.main import main\n"
        "try:\n main()\nexcept SystemExit:\n pass\n"
        "heavy = {'numpy', 'pyarrow', 'duckdb', 'rich', 'memlens._core', 'memlens._recorder'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert all(name in done.stdout for name in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_examples(command: str) -> None:
    done = run_memlens(command, "--help")
    assert done.returncode == 0
    assert "examples:" in done.stdout and f"memlens {command}" in done.stdout


def test_exit_statuses_are_documented() -> None:
    done = run_memlens("help", "exit-status")
    assert done.returncode == 0
    for kind in (errors.UsageError, errors.CaptureError, errors.OutputError, errors.ProgramNotFound):
        assert str(kind.exit_status) in done.stdout


# ---- mistakes ----------------------------------------------------------------------------

MISTAKES: list[tuple[list[str], int, str]] = [
    (["recrod"], 64, "memlens record"),
    (["--verbose"], 64, "unknown option"),
    (["record"], 64, "no program to record"),
    (["record", "--"], 64, "no program to record"),
    (["record", "--rate", "0", "--", "true"], 64, "1 to 1000"),
    (["record", "--rate", "abc", "--", "true"], 64, "rate"),
    (["record", "--colour", "--", "true"], 64, "colour"),
    (["record", "--stacks", "orbit", "--", "true"], 64, "stacks"),
    (["record", "--collectors", "magic", "--", "true"], 64, "faults, timeline"),
    (["record", "--pid", "1", "--", "true"], 64, "not both"),
    (["record", "--pid", "4194000"], 69, "does not exist"),
    (["record", "--", "no-such-program-xyz"], 127, "was not found"),
    (["record", "--", "./no/such/file"], 127, "was not found"),
    (["record", "--", "/etc/passwd"], 126, "not executable"),
    (["record", "--", "/etc"], 126, "directory"),
    (["record", "-o", "/proc/nope/c.memlens", "--", "true"], 73, "cannot write"),
    (["report"], 64, "required"),
    (["report", "no-such.memlens"], 65, "no capture"),
    (["report", "/etc/passwd"], 65, "is a file"),
    (["query", "no-such.memlens", "SELECT 1"], 65, "no capture"),
    (["diff", "a.memlens"], 64, "required"),
    (["export", "no-such.memlens", "-o", "out"], 65, "no capture"),
]


@pytest.mark.parametrize(
    ("arguments", "status", "words"), MISTAKES, ids=lambda v: " ".join(v) if isinstance(v, list) else ""
)
def test_a_mistake_gets_one_sentence_a_remedy_and_a_status(
    tmp_path: Path, arguments: list[str], status: int, words: str
) -> None:
    done = run_memlens(*arguments, cwd=tmp_path)
    assert done.returncode == status, done.stderr
    assert words in done.stderr
    assert "Traceback" not in done.stderr and done.stderr.startswith("memlens")
    assert len(done.stderr.splitlines()) <= 2
    assert not list(tmp_path.glob("*.memlens")), "a failed start must leave nothing behind"


def test_an_existing_capture_is_not_replaced_by_accident(tmp_path: Path, small: Path) -> None:
    done = run_memlens("record", "-o", small, "--", "true")
    assert done.returncode == 73 and "--force" in done.stderr
    assert memlens.open(small).meta["command"] == ["test"]
    done = run_memlens("record", "-q", "--force", "-o", small, "--", "true")
    assert done.returncode == 0
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "precious").write_text("x")
    done = run_memlens("record", "--force", "-o", tmp_path / "folder", "--", "true")
    assert done.returncode == 73 and (tmp_path / "folder" / "precious").exists()


def test_a_capture_without_measurements_says_so(tmp_path: Path) -> None:
    path = CaptureBuilder().add("clock_pair", 0, monotonic_ns=5).write(tmp_path / "c.memlens")
    done = run_memlens("report", path)
    assert done.returncode == 68 and "no measurements" in done.stderr


def test_numbered_output_names(tmp_path: Path) -> None:
    for _ in range(2):
        assert run_memlens("record", "-q", "--", "true", cwd=tmp_path).returncode == 0
    assert {p.name for p in tmp_path.iterdir()} == {"true.memlens", "true-2.memlens"}


def test_options_of_the_program_are_not_ours(tmp_path: Path) -> None:
    done = run_memlens("record", "-q", "-o", tmp_path / "c.memlens", "echo", "--help", "-o", "x")
    assert done.stdout == "--help -o x\n"


def test_a_closed_pipe_is_silent(small: Path) -> None:
    script = f"{' '.join(MEMLENS)} query {small} --tables | head -n 1"
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True)
    assert done.stderr == ""


# ---- report, query, export -----------------------------------------------------------------


def test_report_as_text_and_json(small: Path) -> None:
    text = run_memlens("report", small)
    assert text.returncode == 0 and "First touch" in text.stdout and "next: memlens" in text.stdout
    content = json.loads(run_memlens("report", small, "--json").stdout)
    assert content["results"]["faults"]["figures"]["faults"] == 50
    assert content["results"]["first_touch"]["figures"]["first_touched_bytes"] == 50 * PAGE
    assert content["results"]["capacity"]["figures"]["peak_rss_bytes"] == 10 << 20
    assert content["quality"]["exact"] is True


def test_report_html_is_written_and_an_unwritable_place_is_told(small: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert run_memlens("report", small, "--html", page).returncode == 0
    assert page.read_text().lower().startswith("<!doctype html>")
    done = run_memlens("report", small, "--html", "/proc/nope/x.html")
    assert done.returncode == 73 and "cannot write" in done.stderr


def test_query_answers_and_explains_errors(small: Path) -> None:
    rows = json.loads(
        run_memlens("query", small, "--json", "SELECT class, count(*) AS n FROM faults GROUP BY class").stdout
    )
    assert rows == [{"class": "first", "n": 50}]
    done = run_memlens("query", small, "SELECT nonsense FROM faults")
    assert done.returncode == 67 and "Traceback" not in done.stderr
    done = run_memlens("query", small, "SELECT * FROM read_csv('/etc/passwd')")
    assert done.returncode == 67, "a query must not read other files"
    tables = run_memlens("query", small, "--tables").stdout
    assert "faults (50 rows)" in tables and "processes" in tables


@pytest.mark.parametrize("kind", ["csv", "json", "parquet"])
def test_export_holds_every_row(small: Path, tmp_path: Path, kind: str) -> None:
    out = tmp_path / "out"
    done = run_memlens("export", small, "--format", kind, "-o", out, "--tables", "faults,timeline")
    assert done.returncode == 0, done.stderr
    file = out / f"faults.{kind}"
    if kind == "csv":
        rows = list(csv.DictReader(file.open()))
        assert len(rows) == 50 and rows[0]["class"] == "first"
    elif kind == "json":
        assert len(json.loads(file.read_text())) == 50
    else:
        assert parquet.read_table(file).num_rows == 50


def test_export_of_an_unknown_table_names_the_near_one(small: Path, tmp_path: Path) -> None:
    done = run_memlens("export", small, "-o", tmp_path / "out", "--tables", "fautls")
    assert done.returncode == 68 and "'faults'" in done.stderr


# ---- diff -----------------------------------------------------------------------------------


def other(tmp_path: Path, pages: int, mib: int) -> Path:
    builder = CaptureBuilder().event(1, "fork").event(2, "exec", name="prog").mapping(3, 100, 1000)
    for page in range(pages):
        builder.fault(1000 + page, 200 + page)
    builder.reading(0, "rss_bytes", mib << 20).reading(500_000_000, "rss_bytes", mib << 20)
    return builder.write(tmp_path / f"other-{pages}-{mib}.memlens")


@pytest.mark.parametrize(
    ("condition", "fails"),
    [
        ("peak_rss_bytes > +5%", True), ("peak_rss_bytes > +25%", False), ("peak_rss_bytes > 11MiB", True),
        ("peak_rss_bytes > 12MiB", False), ("faults > +10", False), ("faults > +9", True), ("faults < -1", False),
        ("peak_rss_bytes > +1MiB", True), ("peak_rss_bytes < 1GiB", True),
    ],
)  # fmt: skip
def test_diff_thresholds(small: Path, tmp_path: Path, condition: str, fails: bool) -> None:
    done = run_memlens("diff", small, other(tmp_path, 60, 12), "--fail-if", condition)
    assert done.returncode == (1 if fails else 0), done.stdout
    assert ("failed" in done.stdout) == fails


@pytest.mark.parametrize(
    ("condition", "words"),
    [
        ("peak", "expected SUBJECT RELATION LIMIT"),
        ("peek_rss_bytes > +5%", "peak_rss_bytes"),
        ("faults > 5%", "sign"),
        ("faults > +5 apples", "unit"),
    ],
)
def test_diff_explains_a_wrong_condition(small: Path, condition: str, words: str) -> None:
    done = run_memlens("diff", small, small, "--fail-if", condition)
    assert done.returncode == 64 and words in done.stderr


def test_diff_of_a_capture_with_itself_is_empty(small: Path) -> None:
    content = json.loads(run_memlens("diff", small, small, "--json").stdout)
    tables = content["results"]["diff"]["tables"]
    assert tables["figures"] and not any(row["change"] for row in [*tables["figures"], *tables["rows"]])


def test_relative_change_from_zero_counts_as_growth() -> None:
    condition = _conditions.parse("x > +5%")
    assert _conditions.holds(condition, _conditions.Measured(0, 1, 0.0))
    assert not _conditions.holds(condition, _conditions.Measured(0, 0, 0.0))
    assert not _conditions.holds(condition, _conditions.Measured(None, 5, 0.0))


# ---- doctor -----------------------------------------------------------------------------------


def test_doctor_speaks_of_every_collector() -> None:
    content = json.loads(run_memlens("doctor", "--json").stdout)
    names = {entry["collector"] for entry in content["collectors"]}
    assert names == {"faults", "timeline", "alloc", "count", "trace", "emulate", "sample"}
    assert run_memlens("doctor").returncode == 0
