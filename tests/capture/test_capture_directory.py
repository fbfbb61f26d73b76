"""Captures on disk: what replaces them, what removes them, who may read them, and whether they are whole."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import MEMLENS, ROOT, needs_root, run_memlens

import memlens
from memlens import _core
from memlens.capture.store.writer import CaptureWriter
from memlens.errors import CaptureError, MemlensError, OutputError


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("whole") / "c.memlens"
    done = run_memlens("record", "-q", "-o", path, "--", "sh", "-c", "sleep 0.3; true")
    assert done.returncode == 0, done.stderr
    return path


# ---- --force ---------------------------------------------------------------------------
def test_force_removes_no_directory_that_only_has_a_meta_json(tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "meta.json").write_text('{"name": "not ours"}')
    (project / "thesis.tex").write_text("years of work")
    done = run_memlens("record", "-q", "--force", "-o", project, "--", "true")
    assert done.returncode == OutputError.exit_status and "not a capture" in done.stderr
    assert sorted(file.name for file in project.iterdir()) == ["meta.json", "thesis.tex"]


@pytest.mark.parametrize("kind", ["file", "directory", "link"])
def test_force_removes_no_capture_that_holds_something_else(tmp_path: Path, recorded: Path, kind: str) -> None:
    path = tmp_path / "c.memlens"
    shutil.copytree(recorded, path)
    outside = tmp_path / "outside.txt"
    outside.write_text("kept")
    added = path / ("sites.partial" if kind == "link" else "notes")
    if kind == "file":
        added.write_text("mine")
    elif kind == "directory":
        added.mkdir()
    else:
        added.symlink_to(outside)
    before = sorted(file.name for file in path.iterdir())
    done = run_memlens("record", "-q", "--force", "-o", path, "--", "true")
    assert done.returncode == OutputError.exit_status and added.name in done.stderr
    assert sorted(file.name for file in path.iterdir()) == before and outside.read_text() == "kept"


def test_force_follows_no_link(tmp_path: Path, recorded: Path) -> None:
    target, link = tmp_path / "target.memlens", tmp_path / "c.memlens"
    shutil.copytree(recorded, target)
    link.symlink_to(target)
    done = run_memlens("record", "-q", "--force", "-o", link, "--", "true")
    assert done.returncode == OutputError.exit_status and "symbolic link" in done.stderr
    assert link.is_symlink() and memlens.open(target).complete


def test_force_replaces_a_capture(tmp_path: Path, recorded: Path) -> None:
    path = tmp_path / "c.memlens"
    shutil.copytree(recorded, path)
    done = run_memlens("record", "-q", "--force", "-o", path, "--", "echo", "new")
    assert done.returncode == 0, done.stderr
    assert memlens.open(path).meta["command"] == ["echo", "new"]


def test_a_capture_that_is_being_recorded_is_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "c.memlens"
    command = [*MEMLENS, "record", "-q", "-o", str(path), "--", "sh", "-c", "echo ready; sleep 2; exit 5"]
    first = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert first.stdout is not None and first.stdout.readline() == "ready\n"
    for options in ([], ["--force"]):
        done = run_memlens("record", "-q", *options, "-o", path, "--", "echo", "second")
        assert done.returncode == OutputError.exit_status and done.stdout == "", done.stderr
        assert ("being written" if options else "exists already") in done.stderr
    assert first.wait(timeout=60) == 5
    capture = memlens.open(path)
    assert capture.complete and capture.meta["command"][0] == "sh" and capture.quality.notes == ()


def test_a_capture_that_a_process_writes_itself_is_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "own.memlens"
    library = Path(run_memlens("config", "--preload").stdout.strip())
    if not library.is_file():
        pytest.skip("the library for programs is not built: make build")
    environment = {**os.environ, "LD_PRELOAD": str(library), "MEMLENS_OUTPUT": str(path)}
    program = subprocess.Popen(["sleep", "30"], env=environment)
    try:
        end = time.monotonic() + 10
        while time.monotonic() < end and not list(path.glob("rings-*")):
            time.sleep(0.02)
        done = run_memlens("record", "-q", "--force", "-o", path, "--", "true")
        assert done.returncode == OutputError.exit_status
        assert f"being written by process {program.pid}" in done.stderr
    finally:
        program.kill()
        program.wait()
    done = run_memlens("record", "-q", "--force", "-o", path, "--", "true")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("how", ["moved", "replaced", "removed"])
def test_a_directory_that_changes_under_the_recorder_is_told(tmp_path: Path, how: str) -> None:
    path, elsewhere = tmp_path / "c.memlens", tmp_path / "elsewhere"
    command = [*MEMLENS, "record", "-q", "-o", str(path), "--", "sh", "-c", "echo ready; sleep 1; exit 5"]
    first = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert first.stdout is not None and first.stdout.readline() == "ready\n"
    if how == "removed":
        shutil.rmtree(path)
    else:
        path.rename(elsewhere)
    if how == "replaced":
        path.mkdir()
    _, errors = first.communicate(timeout=60)
    assert first.returncode == 5 and "moved, removed or replaced" in errors
    if how == "replaced":
        assert list(path.iterdir()) == []
    if how != "removed":
        assert memlens.open(elsewhere).complete and memlens.open(elsewhere).quality.notes == ()


def test_an_import_replaces_captures_only(tmp_path: Path) -> None:
    trace = tmp_path / "trace.lackey"
    trace.write_text("I  04000000,3\n L 1ffeffe7e,8\n S 1ffeffe7e,8\n")
    project = tmp_path / "project"
    project.mkdir()
    (project / "meta.json").write_text("{}")
    done = run_memlens("import", "--format", "lackey", "--force", "-o", project, trace)
    assert done.returncode == OutputError.exit_status, done.stderr
    assert [file.name for file in tmp_path.iterdir() if "replaced" in file.name] == [] and project.is_dir()
    done = run_memlens("import", "--format", "lackey", "-o", tmp_path / "c.memlens", trace)
    assert done.returncode == 0, done.stderr
    done = run_memlens("import", "--format", "lackey", "--force", "-o", tmp_path / "c.memlens", trace)
    assert done.returncode == 0, done.stderr
    assert private(tmp_path / "c.memlens")
    assert memlens.open(tmp_path / "c.memlens").complete


# ---- whole or not ------------------------------------------------------------------------
def report_notes(path: Path) -> str | None:
    """What the report says in both forms; None: it is refused with a sentence."""
    in_json = run_memlens("report", "--json", path)
    on_terminal = run_memlens("report", path, env={**os.environ, "COLUMNS": "500"})
    assert in_json.returncode == on_terminal.returncode
    if in_json.returncode:
        assert in_json.returncode in (65, 68), in_json.stderr
        return None
    notes = [note["text"] for note in json.loads(in_json.stdout)["quality"]["notes"]]
    for note in notes:
        assert note in on_terminal.stdout
    return " ".join(notes)


def boundaries(file: Path) -> list[int]:
    reader = _core.ChunkReader(str(file))
    reader.refresh()
    ends = [64]
    for index in range(reader.count):
        ends.append(ends[-1] + 80 + (reader.header(index)["stored_bytes"] + 7) // 8 * 8)
    assert ends[-1] == file.stat().st_size
    return ends[:-1]


def test_a_whole_capture_is_verified(recorded: Path) -> None:
    capture = memlens.open(recorded)
    listed = capture.meta["files"]
    assert set(listed) == {file.name for file in recorded.iterdir()} - {"meta.json"}
    assert listed["records-recorder.mlc"]["chunks"] == len(boundaries(recorded / "records-recorder.mlc"))
    assert capture.quality.notes == () and not capture.quality.truncated


def test_no_cut_at_a_chunk_boundary_is_silent(tmp_path: Path, recorded: Path) -> None:
    path = tmp_path / "c.memlens"
    shutil.copytree(recorded, path)
    file = path / "records-recorder.mlc"
    whole, cuts, silent = file.read_bytes(), boundaries(file), []
    for cut in cuts:
        file.write_bytes(whole[:cut])
        quality = memlens.open(path).quality
        if not quality.truncated or quality.exact or "records-recorder.mlc has" not in " ".join(quality.notes):
            silent.append(cut)
    assert len(cuts) > 10 and silent == []
    file.write_bytes(whole[: cuts[len(cuts) * 3 // 4]])
    notes = report_notes(path)
    assert notes is None or "records-recorder.mlc has" in notes
    file.write_bytes(whole[: cuts[0]])
    done = run_memlens("report", path)
    assert done.returncode == 68 and "records-recorder.mlc has 64 bytes" in done.stderr


@pytest.mark.parametrize("how", ["missing", "short", "changed", "added"])
def test_no_difference_of_a_file_is_silent(tmp_path: Path, recorded: Path, how: str) -> None:
    for name in sorted(file.name for file in recorded.iterdir()):
        path = tmp_path / f"{name}-{how}.memlens"
        shutil.copytree(recorded, path)
        file = path / name
        whole = file.read_bytes()
        if how == "missing":
            file.unlink()
        elif how == "short":
            file.write_bytes(whole[: len(whole) // 2])
        elif how == "changed":
            at = whole.index(b'"working_directory": "/') + 23 if name == "meta.json" else len(whole) // 2
            file.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        elif name.endswith(".mlc"):
            shutil.copy(file, path / "records-other.mlc")
            name = "records-other.mlc"
        else:
            continue
        try:
            capture = memlens.open(path)
            for table in capture.table_names():  # chunks are checked when they are read
                capture.table(table)
        except MemlensError as error:
            assert isinstance(error, CaptureError)
            continue
        quality = capture.quality
        said = " ".join(quality.notes)
        assert not quality.exact and (name in said or "checksum" in said or "damaged" in said), (name, quality)


def test_a_changed_side_table_is_made_from_the_records(tmp_path: Path, recorded: Path) -> None:
    path = tmp_path / "c.memlens"
    shutil.copytree(recorded, path)
    other = tmp_path / "d.memlens"
    assert run_memlens("record", "-q", "-o", other, "--", "sleep", "0.1").returncode == 0
    shutil.copy(other / "processes.parquet", path / "processes.parquet")
    capture = memlens.open(path)
    names = capture.table("processes").column("name").to_pylist()
    assert names == memlens.open(recorded).table("processes").column("name").to_pylist()
    notes = report_notes(path)
    assert notes is not None and "processes.parquet has" in notes


def test_an_older_capture_is_readable_and_unverified() -> None:
    for name in ("foundation", "objects"):
        quality = memlens.open(ROOT / "tests" / "captures" / f"{name}.memlens").quality
        assert [note for note in quality.notes if note.startswith("Unverified")] and not quality.truncated


def test_a_capture_that_a_program_wrote_itself_is_unverified(tmp_path: Path) -> None:
    library = Path(run_memlens("config", "--preload").stdout.strip())
    if not library.is_file():
        pytest.skip("no library for programs here: make build")
    path = tmp_path / "own.memlens"
    subprocess.run(["true"], env={**os.environ, "LD_PRELOAD": str(library), "MEMLENS_OUTPUT": str(path)}, check=True)
    assert any(note.startswith("Unverified") for note in memlens.open(path).quality.notes)


# ---- private -----------------------------------------------------------------------------
def private(path: Path) -> bool:
    """Whether nobody but its owner can read a capture, and the owner can."""
    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.iterdir()}
    assert modes and set(modes.values()) == {0o600}, modes
    return stat.S_IMODE(path.stat().st_mode) == 0o700


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o777])
def test_captures_are_private_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    path = tmp_path / "c.memlens"
    done = run_memlens("record", "-q", "-o", path, "--", "sh", "-c", "umask; sleep 0.1", umask=umask)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout, 8) == umask
    assert private(path)


@pytest.mark.parametrize("umask", [0o000, 0o777])
def test_captures_that_programs_write_themselves_are_private(tmp_path: Path, umask: int) -> None:
    library = Path(run_memlens("config", "--preload").stdout.strip())
    if not library.is_file():
        pytest.skip("the library for programs is not built: make build")
    path = tmp_path / "own.memlens"
    environment = {**os.environ, "LD_PRELOAD": str(library), "MEMLENS_OUTPUT": str(path)}
    program = subprocess.Popen(["sleep", "30"], env=environment, umask=umask)
    try:
        end = time.monotonic() + 10
        while time.monotonic() < end and not (path / "meta.json").exists():
            time.sleep(0.02)
        assert private(path)
    finally:
        program.kill()
        program.wait()


def test_a_writer_leaves_an_existing_directory_alone(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for force in (False, True):
        with pytest.raises(OutputError):
            CaptureWriter(tmp_path / "empty", {}, force=force)
    assert (tmp_path / "empty").is_dir()


# ---- a capture that is replaced is there until the new one is --------------------------------
def contents(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.iterdir()}


def test_a_capture_in_the_working_directory_is_not_emptied(tmp_path: Path, recorded: Path) -> None:
    path = tmp_path / "c.memlens"
    shutil.copytree(recorded, path)
    before = contents(path)
    done = run_memlens("record", "-q", "--force", "-o", ".", "--", "echo", "ran", cwd=path)
    assert (done.returncode, done.stdout) == (OutputError.exit_status, ""), done.stderr
    assert contents(path) == before and [file.name for file in tmp_path.iterdir()] == ["c.memlens"]


@needs_root
def test_a_capture_that_cannot_be_renamed_is_not_emptied(tmp_path: Path, recorded: Path) -> None:
    if shutil.which("setpriv") is None:
        pytest.skip("setpriv is not installed: apt-get install util-linux")
    path = tmp_path / "closed" / "c.memlens"
    shutil.copytree(recorded, path)
    before = contents(path)
    path.parent.chmod(0o500)
    # Root may write everywhere: without this capability it is an owner like any other.
    words = [
        "setpriv",
        "--bounding-set=-dac_override",
        *MEMLENS,
        "record",
        "-q",
        "--force",
        "-o",
        str(path),
        "--",
        "echo",
        "ran",
    ]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    path.parent.chmod(0o700)
    assert (done.returncode, done.stdout) == (OutputError.exit_status, ""), done.stderr
    assert "permission denied" in done.stderr and contents(path) == before


@pytest.mark.parametrize("where", ["meta", "records"])
@pytest.mark.parametrize("force", [False, True])
def test_a_recording_that_cannot_begin_leaves_what_was_there(
    tmp_path: Path, recorded: Path, monkeypatch: pytest.MonkeyPatch, where: str, force: bool
) -> None:
    path = tmp_path / "c.memlens"
    before = {}
    if force:
        shutil.copytree(recorded, path)
        before = contents(path)

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    if where == "meta":
        monkeypatch.setattr(CaptureWriter, "write_meta", full)
    else:
        monkeypatch.setattr(_core, "ChunkWriter", full)
    with pytest.raises(OutputError, match="no space left"):
        CaptureWriter(path, {}, force=force)
    assert [file.name for file in tmp_path.iterdir()] == (["c.memlens"] if force else [])
    if force:
        assert contents(path) == before


def test_an_import_that_cannot_begin_puts_the_old_capture_back(
    tmp_path: Path, recorded: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from memlens.importing.formats import import_trace

    path, trace = tmp_path / "c.memlens", tmp_path / "trace.lackey"
    shutil.copytree(recorded, path)
    before = contents(path)
    trace.write_text("I  04000000,3\n L 1ffeffe7e,8\n")

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(CaptureWriter, "write_meta", full)
    with pytest.raises(OutputError):
        import_trace([str(trace)], path, format_name="lackey", force=True)
    assert contents(path) == before and len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("how", ["cannot be executed", "no descriptors"])
@pytest.mark.parametrize("force", [False, True])
def test_a_program_that_does_not_start_leaves_no_capture_and_removes_none(
    tmp_path: Path, recorded: Path, how: str, force: bool
) -> None:
    path, program = tmp_path / "c.memlens", tmp_path / "prog"
    if force:
        shutil.copytree(recorded, path)
    before = contents(path) if force else {}
    program.write_text("#!/no/such/interpreter\n" if how == "cannot be executed" else "#!/bin/sh\necho ran\n")
    program.chmod(0o755)
    changes = (
        "import errno\nfrom memlens.collect import recorder\n"
        "def refused(signals):\n    raise OSError(errno.EMFILE, 'Too many open files', 'signalfd')\n"
        "recorder.SignalQueue = refused\n"
    )
    words = ["memlens", "record", "-q", *(["--force"] if force else []), "-o", str(path), "--", str(program)]
    code = f"{changes if how == 'no descriptors' else ''}import sys\nsys.argv = {words!r}\nfrom memlens.cli.main import main\nmain()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "" and done.returncode == (127 if how == "cannot be executed" else 73), done.stderr
    assert sorted(file.name for file in tmp_path.iterdir()) == (["c.memlens", "prog"] if force else ["prog"])
    if force:
        assert contents(path) == before
