"""Plug-ins of other packages: the examples of docs/extending.md are installed and run as they stand there; broken ones never break memlens."""

from __future__ import annotations

import configparser
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from conftest import ROOT, run_memlens

import memlens

PAGE = ROOT / "docs" / "extending.md"
FILE = re.compile(r"```(?:python|toml)\n# file: (\S+)\n(.*?)```", re.DOTALL)
KINDS = {
    "collectors": "load", "analyses": "load", "findings": "busy_machine", "presenters": "figures",
    "exporters": "jsonl", "importers": "accesslist",
}  # fmt: skip


def install(folder: Path, name: str, groups: dict[str, dict[str, str]], files: dict[str, str]) -> Path:
    """What `pip install --target` leaves of a package in pure Python: its modules and its metadata."""
    for path, text in files.items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    metadata = folder / f"{name}-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: 1.0\n")
    entries = configparser.ConfigParser(delimiters=("=",))
    entries.read_dict(groups)
    with open(metadata / "entry_points.txt", "w") as file:
        entries.write(file)
    return folder


def with_path(*folders: Path, **more: str) -> dict[str, str]:
    known = os.environ.get("PYTHONPATH", "")
    return {**os.environ, "PYTHONPATH": os.pathsep.join([*map(str, folders), *([known] if known else [])]), **more}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package of the page, installed."""
    files = dict(FILE.findall(PAGE.read_text()))
    project = tomllib.loads(files.pop("pyproject.toml"))["project"]
    assert set(project["entry-points"]) == {f"memlens.{kind}" for kind in KINDS}
    assert len(files) == len(KINDS), "one file an addition"
    return install(tmp_path_factory.mktemp("site"), "memlens_example", project["entry-points"], files)


@pytest.fixture(scope="module")
def capture(site: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("captures") / "c.memlens"
    words = ["record", "-o", path, "--load-every", "0.05", "--", "sh", "-c", "sleep 0.5; exit 3"]
    done = run_memlens(*words, env=with_path(site))
    assert done.returncode == 3, done.stderr
    assert "was left out" not in done.stderr
    return path


def test_a_collector_of_another_package_records(site: Path, capture: Path) -> None:
    shown = run_memlens("record", "--help", env=with_path(site)).stdout
    assert "--load-every S" in shown and "collector load (package memlens_example 1.0)" in shown
    assert "--load-every" not in run_memlens("record", "--help").stdout
    opened = memlens.open(capture)
    assert (
        opened.meta["collectors"]["load"] == {"every_s": 0.05} and "faults" in opened.kinds()
    ) or "fault" in opened.kinds()
    rows = opened.side_table("load_readings").to_pylist()
    assert len(rows) > 2 and all(row["running"] >= 0 and 0 <= row["time_s"] < 60 for row in rows)
    assert [row["time_s"] for row in rows] == sorted(row["time_s"] for row in rows)
    assert opened.sql("SELECT count(*) AS n FROM load_readings").to_pylist() == [{"n": len(rows)}]
    assert "load_readings" in opened.table_names() and opened.table("load_readings").num_rows == len(rows)
    assert "other-load_readings.parquet" in opened.meta["files"]
    listed = run_memlens("query", capture, "--tables").stdout
    assert f"load_readings ({len(rows)} rows): time_s double, running int64" in listed


def test_its_side_table_is_checked(capture: Path, tmp_path: Path) -> None:
    copy = tmp_path / "c.memlens"
    copy.mkdir()
    for file in capture.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    damaged = copy / "other-load_readings.parquet"
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"x")
    opened = memlens.open(copy)
    with pytest.raises(memlens.errors.MemlensError, match="changed"):
        opened.side_table("load_readings")
    with pytest.raises(memlens.errors.MemlensError, match="no side table"):
        opened.side_table("nothing")
    again = ["record", "-q", "--force", "-o", copy, "--", "true"]
    assert run_memlens(*again).returncode == 0  # the file is known as one of a capture


def test_side_tables_are_bounded_and_redacted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import pyarrow as pa

    from memlens.capture.store import writer as writing

    writer = writing.CaptureWriter(tmp_path / "c.memlens", {}, redact=True)
    table = pa.table({"path": ["/home/me/secret/data.bin", None], "word": pa.array(["KEY=hunter2", "x"]).dictionary_encode(),
                      "n": [1, 2], "raw": [b"/home/me", b""]})  # fmt: skip
    writer.write_other_table("paths", table)
    for name in ("", "A", "../x", "x" * 81, "sites.parquet"):
        with pytest.raises(ValueError, match="no name of a table"):
            writer.write_other_table(name, table)
    monkeypatch.setattr(writing, "MOST_OTHER_BYTES", 1000)
    with pytest.raises(ValueError, match="at most 1,000 are kept"):
        writer.write_other_table("large", pa.table({"n": range(1000)}))
    monkeypatch.setattr(writing, "MOST_OTHER_TABLES", 2)
    writer.write_other_table("second", pa.table({"n": [1]}))
    with pytest.raises(ValueError, match="at most 2 tables"):
        writer.write_other_table("third", pa.table({"n": [1]}))
    writer.finish()
    opened = memlens.open(tmp_path / "c.memlens")
    assert opened.side_table_names() == ["paths", "second"]
    assert opened.side_table("paths").to_pydict() == {
        "path": ["data.bin", None], "word": ["KEY=redacted", "x"], "n": [1, 2],
    }  # fmt: skip


def test_an_analysis_and_a_finding_of_another_package_are_shown(site: Path, capture: Path, tmp_path: Path) -> None:
    environment = with_path(site)
    shown = run_memlens("report", capture, env=environment).stdout
    assert "Load of the machine" in shown and "threads at most" in shown and "threads wait" in shown
    words = " ".join(shown.split())  # a line may end anywhere
    assert "load read every 0.05 s" in words and "threads   " in shown and re.search(r"[▁▂▃▄▅▆▇█]", shown)
    report = json.loads(run_memlens("report", capture, "--json", env=environment).stdout)
    rows = memlens.open(capture).side_table("load_readings").to_pylist()
    values = [row["running"] for row in rows]
    figures = report["results"]["load"]["figures"]
    assert figures["most"] == max(values) and figures["mean"] == pytest.approx(sum(values) / len(values))
    assert sum(row["readings"] for row in report["results"]["load"]["tables"]["by_level"]) == len(values)
    assert report["views"]["load"]["charts"][0]["kind"] == "timeline"
    page = tmp_path / "page.html"
    assert run_memlens("report", capture, "--html", page, env=environment).returncode == 0
    text = page.read_text()
    assert "Load of the machine" in text and "Threads that want to run" in text and "<svg" in text
    assert "load (every 0.05 s)" in text
    # Without the package the capture is as readable as before.
    alone = run_memlens("report", capture)
    assert alone.returncode == 0 and "Load of the machine" not in alone.stdout


@pytest.mark.parametrize(("running", "found"), [(99, True), (0, False)])
def test_the_finding_holds_or_not(site: Path, tmp_path: Path, running: int, found: bool) -> None:
    code = (
        "import memlens, sys, pyarrow as pa\nfrom memlens.capture.store.writer import CaptureWriter\n"
        "path = sys.argv[1]\nfrom pathlib import Path\n"
        "writer = CaptureWriter(Path(path), {'machine': {'cpus': 4}})\n"
        f"writer.write_other_table('load_readings', pa.table({{'time_s': [0.0, 1.0], 'running': [{running}, {running}]}}))\n"
        "writer.finish()\n"
        "report = memlens.analyses.report(memlens.open(path))\n"
        "print([finding.name for finding in report.findings], report.results['load'].figures['most'])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "c.memlens")], capture_output=True, text=True, env=with_path(site)
    )
    assert done.stdout.split() == (["['busy_machine']", str(running)] if found else ["[]", "0"]), done.stderr


def test_a_presenter_of_another_package_exports(site: Path, capture: Path, tmp_path: Path) -> None:
    output = tmp_path / "figures.csv"
    done = run_memlens("report", capture, "--as", "figures", "-o", output, env=with_path(site))
    assert done.returncode == 0, done.stderr
    lines = output.read_text().splitlines()
    assert lines[0] == "figure,value" and any(line.startswith("load.most,") for line in lines)
    assert run_memlens("report", capture, "--as", "figures").returncode == 64


def test_an_exporter_of_another_package_writes(site: Path, capture: Path, tmp_path: Path) -> None:
    environment = with_path(site)
    assert "(package memlens_example 1.0)" in run_memlens("export", "--help", env=environment).stdout
    words = ["export", capture, "--format", "jsonl", "--tables", "load_readings", "-o"]
    done = run_memlens(*words, tmp_path / "out", env=environment)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in (tmp_path / "out" / "load_readings.jsonl").read_text().splitlines()]
    assert rows == memlens.open(capture).side_table("load_readings").to_pylist()
    shown = run_memlens(*words, "-", env=environment).stdout
    assert [json.loads(line) for line in shown.splitlines()] == rows
    assert run_memlens(*words, tmp_path / "none").returncode == 64


def test_an_importer_of_another_package_reads(site: Path, tmp_path: Path) -> None:
    trace, path, environment = tmp_path / "t.txt", tmp_path / "t.memlens", with_path(site)
    accesses = [(0x1000 + 4 * (i % 3), 0x10000 + 8 * (i * 7 % 5000), 8 if i % 2 else 4, "w" if i % 3 == 0 else "r") for i in range(10_000)]  # fmt: skip
    trace.write_text("accesslist 1\n" + "".join(f"{pc:x} {at:x} {size} {kind}\n" for pc, at, size, kind in accesses))
    done = run_memlens("import", trace, "-o", path, env=environment)
    assert done.returncode == 0 and "10,000 accesses" in done.stdout, done.stderr
    read = [row for batch in memlens.open(path).accesses() for row in batch.to_pylist()]
    names = {"r": "load", "w": "store"}
    assert [(row["pc"], row["address"], row["bytes"], row["operation"]) for row in read] == [
        (pc, at, size, names[kind]) for pc, at, size, kind in accesses
    ]
    assert [row["time_ns"] for row in read] == sorted(row["time_ns"] for row in read)
    assert run_memlens("report", path).returncode == 0
    assert "accesslist" in run_memlens("import", "--help", env=environment).stdout
    trace.write_text("accesslist 1\n1000 zz 8 r\n")
    done = run_memlens("import", trace, "--force", "-o", path, env=environment)
    assert done.returncode == 74 and "line 2" in done.stderr


def test_doctor_and_the_reference_list_them(site: Path) -> None:
    environment = with_path(site)
    state = json.loads(run_memlens("doctor", "--json", env=environment).stdout)
    assert {(one["kind"], one["name"]) for one in state["plugins"]["found"]} == {
        ("collector", "load"), ("analysis", "load"), ("finding", "busy_machine"), ("presenter", "figures"),
        ("exporter", "jsonl"), ("importer", "accesslist"),
    }  # fmt: skip
    assert state["plugins"]["left_out"] == []
    assert next(one for one in state["collectors"] if one["collector"] == "load")["state"] == "works"
    shown = run_memlens("doctor", env=environment).stdout
    assert "plug-ins of other packages" in shown and "finding busy_machine  found  memlens_example 1.0" in shown
    assert "accesslist" in shown
    assert "plug-ins" not in run_memlens("doctor").stdout
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\nimport generate_docs as docs\n"
        "print(docs.collectors_page(), docs.analyses_page(), docs.findings_page(), docs.presenters_page(), docs.exporters_page(), docs.importers_page())"
    )
    words = [sys.executable, "-c", code, str(ROOT / "tools")]
    pages = subprocess.run(words, capture_output=True, text=True, env=environment).stdout
    assert all(
        text in pages
        for text in ("`--load-every`", "Was the machine busy with other work?", "## busy_machine", "| `figures` |", "| `jsonl` |", "| `accesslist` |", "`SHARE` = 0.5")
    )  # fmt: skip
    assert "load_every" not in (without := subprocess.run(words, capture_output=True, text=True).stdout) and without


# ---- broken ones --------------------------------------------------------------------------
ANALYSIS = (
    "from memlens.registry import AnalysisDescriptor\n"
    "def run(capture): {body}\n"
    "DESCRIPTOR = AnalysisDescriptor(name={name!r}, question='?', run=run{more})\n"
)
BROKEN: dict[str, tuple[str, str]] = {
    "import error": ("raise RuntimeError('broken on purpose')\n", "RuntimeError: broken on purpose"),
    "exits": ("import sys; sys.exit(3)\n", "SystemExit: 3"),
    "no descriptor": ("x = 1\n", "expected a DESCRIPTOR of type AnalysisDescriptor"),
    "wrong type": ("DESCRIPTOR = 'analysis'\n", "found a str"),
    "taken name": (ANALYSIS.format(body="pass", name="faults", more=""), "the name faults is taken by memlens itself"),
    "odd name": (ANALYSIS.format(body="pass", name="../x", more=""), "'../x'"),
    "newer protocol": (ANALYSIS.format(body="pass", name="later", more=", protocol=99"), "needs protocol 99"),
    "fails": (ANALYSIS.format(body="raise KeyError('gone')", name="fails", more=""), "KeyError: 'gone'"),
    "wrong result": (ANALYSIS.format(body="return 7", name="seven", more=""), "expected a Result"),
}


@pytest.fixture(scope="module")
def broken_site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A package for each broken analysis."""
    folder = tmp_path_factory.mktemp("broken")
    for at, (text, _) in enumerate(BROKEN.values()):
        install(folder, f"broken{at}", {"memlens.analyses": {"entry": f"part{at}"}}, {f"part{at}.py": text})
    return folder


def test_broken_analyses_are_named_and_left_out(broken_site: Path, capture: Path, tmp_path: Path) -> None:
    environment = with_path(broken_site)
    done = run_memlens("report", capture, env=environment)
    assert done.returncode == 0 and "Faults" in done.stdout, done.stderr
    shown = run_memlens("doctor", env=environment)
    assert shown.returncode == 0 and shown.stderr == ""
    code = "import memlens, sys, warnings\nwarnings.simplefilter('always')\nmemlens.analyses.list(); memlens.analyses.list()"
    asked = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert asked.returncode == 0
    for at, (how, (_, reason)) in enumerate(BROKEN.items()):
        (line,) = [line for line in done.stderr.splitlines() if f"package broken{at} 1.0 was left out" in line]
        assert reason in line, how
        if how not in ("fails", "wrong result"):  # doctor runs no analysis
            assert re.search(rf"left out  broken{at} 1.0\n\s+• .*{re.escape(reason)}", shown.stdout), shown.stdout
            assert asked.stderr.count(f"package broken{at} 1.0 was left out") == 1 and "PluginWarning" in asked.stderr
    quiet = run_memlens("record", "-q", "-o", tmp_path / "q.memlens", "--", "sh", "-c", "exit 9", env=environment)
    assert (quiet.returncode, quiet.stderr) == (9, "")
    loud = run_memlens("record", "-o", tmp_path / "l.memlens", "--", "sh", "-c", "exit 9", env=environment)
    assert loud.returncode == 9
    for at in range(len(BROKEN)) if "no summary" not in loud.stderr else ():  # memory may be short for one
        assert loud.stderr.count(f"package broken{at} 1.0 was left out") == 1, loud.stderr


COLLECTOR = """
from memlens.collect.protocol import Availability, Collector
from memlens.registry import CollectorDescriptor, Option
class Bad(Collector):
    def describe(self): return {{"x": 1}}
    def {method}: {body}
def probe(facts): return Availability(True, "")
DESCRIPTOR = CollectorDescriptor(name={name!r}, question="?", probe=probe, make=Bad, options=({options}))
"""
RAISES = "raise RuntimeError('broken on purpose')"
BAD: tuple[tuple[str, str, str], ...] = (
    *(
        (method, RAISES, "RuntimeError: broken on purpose")
        for method in (
            "__init__(self, *words)", "prepare(self, program)", "plan_session(self, plan)", "plan_channel(self, plan)",
            "environment(self)", "begin_meta(self)", "attach(self, pid)", "due_s(self)", "tick(self)", "batch(self, batch)",
            "quality(self)", "end(self, counts, status)", "finish(self)", "tables(self, capture)",
        )
    ),
    ("describe(self)", "return {'x': object()}", "no JSON"),
    ("describe(self)", "return {'single': True}", "single is one of memlens"),
    ("describe(self)", "return {'window': 'wide'}", "window is to be"),
    ("begin_meta(self)", "return {'machine': 7}", "machine is memlens's own"),
    ("end(self, counts, status)", "return 'a text'", "expected a list of texts"),
    ("due_s(self)", "return 'soon'", "ValueError"),
    ("attach(self, pid)", "self.recording.ledger('machine', {'cpus': 'many'})", "cannot keep these counts"),
    ("tables(self, capture)", "self.recording.write_table(self, '../x', __import__('pyarrow').table({'a': [1]}))", "no name of a table"),
)  # fmt: skip


def test_collectors_that_fail_are_left_out_and_the_rest_recorded(tmp_path: Path) -> None:
    site = tmp_path / "site"
    for at, (method, body, _) in enumerate(BAD):
        text = COLLECTOR.format(method=method, body=body, options="", name=f"bad{at}")
        install(site, f"broken{at}", {"memlens.collectors": {"bad": f"bad_part{at}"}}, {f"bad_part{at}.py": text})
    path = tmp_path / "c.memlens"
    done = run_memlens("record", "-o", path, "--", "sh", "-c", "sleep 0.3; echo out; exit 6", env=with_path(site))
    assert (done.returncode, done.stdout) == (6, "out\n"), done.stderr
    assert "recording failed" not in done.stderr and "bug in memlens" not in done.stderr
    opened = memlens.open(path)
    assert (
        opened.complete and {"timeline", "alloc"} <= opened.meta["collectors"].keys() and "timeline" in opened.kinds()
    )
    for at, (method, _, reason) in enumerate(BAD):
        (note,) = [note for note in opened.quality.notes if f"bad{at} of the package broken{at} 1.0" in note]
        assert reason in note, (method, note)
    assert opened.table("processes").num_rows >= 1 and (path / "sites.parquet").exists()
    assert opened.side_table_names() == []


def test_collectors_whose_options_are_taken_are_left_out(tmp_path: Path) -> None:
    options = ("Option('--rate', 'mine', 1),", "Option('--output', 'mine'),", "Option('x', 'mine'),")
    for at, text in enumerate(options):
        module = COLLECTOR.format(method="tick(self)", body=RAISES, options=text, name=f"bad{at}")
        install(tmp_path / "s", f"broken{at}", {"memlens.collectors": {"bad": f"part{at}"}}, {f"part{at}.py": module})
    done = run_memlens("record", "-o", tmp_path / "c.memlens", "--", "true", env=with_path(tmp_path / "s"))
    assert done.returncode == 0 and done.stderr.count("its option") == 3, done.stderr
    assert not any(name.startswith("bad") for name in memlens.open(tmp_path / "c.memlens").meta["collectors"])


def test_two_packages_of_one_name_exclude_each_other(tmp_path: Path) -> None:
    text = ANALYSIS.format(body="pass", name="twice", more=", in_report=False")
    for name in ("one", "two"):
        install(tmp_path / name, name, {"memlens.analyses": {"x": f"part_{name}"}}, {f"part_{name}.py": text})
    done = run_memlens("doctor", env=with_path(tmp_path / "one", tmp_path / "two"))
    assert "analysis twice  found  one 1.0" in done.stdout
    assert "the name twice is taken by the package one 1.0" in done.stdout


def test_other_kinds_that_fail_are_left_out(tmp_path: Path, capture: Path) -> None:
    texts = {
        "memlens.presenters": "from memlens.registry import PresenterDescriptor\nDESCRIPTOR = PresenterDescriptor(name='bad', question='?', suffix='.x', render=lambda report: 1 / 0)\n",
        "memlens.findings": "from memlens.registry import FindingDescriptor\nDESCRIPTOR = FindingDescriptor(name='bad', question='?', check=lambda capture, results: [1])\n",
        "memlens.importers": "from memlens.registry import ImporterDescriptor\nDESCRIPTOR = ImporterDescriptor(name='bad', question='?', recognises=lambda b: 1 / 0, read=None)\n",
        "memlens.exporters": "from memlens.registry import ExporterDescriptor\nDESCRIPTOR = ExporterDescriptor(name='bad', question='?', write=lambda reader, file: 1 / 0)\n",
    }  # fmt: skip
    for at, (kind, text) in enumerate(texts.items()):
        install(tmp_path / "site", f"broken{at}", {kind: {"bad": f"bad_part{at}"}}, {f"bad_part{at}.py": text})
    environment = with_path(tmp_path / "site")
    done = run_memlens("report", capture, "--as", "bad", env=environment)
    assert (
        done.returncode == 73
        and "the presenter bad of the package broken0 1.0 failed: ZeroDivisionError" in done.stderr
    )
    done = run_memlens("report", capture, env=environment)
    assert done.returncode == 0 and "the finding bad of the package broken1 1.0 was left out" in done.stderr
    (tmp_path / "t").write_text("nothing that is known\n")
    done = run_memlens("import", tmp_path / "t", "-o", tmp_path / "t.memlens", env=environment)
    assert done.returncode == 74 and "none of the formats" in done.stderr and "bug in memlens" not in done.stderr
    done = run_memlens("export", capture, "--format", "bad", "-o", tmp_path / "out", env=environment)
    assert (
        done.returncode == 73 and "the exporter bad of the package broken3 1.0 failed: ZeroDivisionError" in done.stderr
    )
    assert list((tmp_path / "out").iterdir()) == []


def test_entry_points_are_read_as_importlib_reads_them(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An oracle for our own reading of entry_points.txt."""
    import importlib.metadata

    from memlens import plugins

    monkeypatch.syspath_prepend(str(site))
    plugins._all_entries.cache_clear()
    try:
        ours = {(entry.group, entry.name, entry.target) for entry in plugins._all_entries()}
    finally:
        plugins._all_entries.cache_clear()
    theirs = {
        (one.group, one.name, one.value)
        for installed in importlib.metadata.distributions()
        for one in installed.entry_points
        if one.group.startswith("memlens.")
    }
    assert ours == theirs and len(ours) >= len(KINDS)
