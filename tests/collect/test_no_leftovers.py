"""Nothing of memlens stays behind: no files in the temporary folder, whatever becomes of the recorder."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from conftest import MEMLENS, run_memlens

import memlens
from memlens.capture.store import swept
from memlens.collect import links

EMULATOR = f"qemu-{os.uname().machine}"


@pytest.mark.parametrize(
    "options",
    [(), ("--emulate",), ("--emulate=counts", "--functions", "main")],
    ids=["default", "emulate", "functions"],
)
@pytest.mark.parametrize("how", ["killed", "ended"])
def test_no_file_stays_in_the_temporary_folder(tmp_path: Path, options: tuple[str, ...], how: str) -> None:
    if options and shutil.which(EMULATOR) is None:
        pytest.skip(f"{EMULATOR} is not installed: apt-get install qemu-user")
    if not shutil.which("cc"):
        pytest.skip("no C compiler: apt-get install gcc")
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    (tmp_path / "p.c").write_text(
        '#include <stdio.h>\n#include <unistd.h>\nint main(void) { puts("ready"); fflush(stdout); sleep(1); return 5; }'
    )
    subprocess.run(["cc", "-o", tmp_path / "p", tmp_path / "p.c"], check=True)
    words = [*MEMLENS, "record", "-q", "-o", str(tmp_path / "c.memlens"), *options, "--", str(tmp_path / "p")]
    recorder = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env={**os.environ, "TMPDIR": str(temporary)})
    assert recorder.stdout is not None and recorder.stdout.readline() == "ready\n"
    assert list(temporary.iterdir()) == []
    if how == "killed":
        recorder.kill()
    assert recorder.wait(60) == (-signal.SIGKILL if how == "killed" else 5)
    assert list(temporary.iterdir()) == []
    recorder.stdout.read()  # until the program has ended as well
    assert list(temporary.iterdir()) == []


def test_a_list_of_functions_reaches_the_emulator_without_a_file(tmp_path: Path) -> None:
    if shutil.which(EMULATOR) is None:
        pytest.skip(f"{EMULATOR} is not installed: apt-get install qemu-user")
    if not shutil.which("cc"):
        pytest.skip("no C compiler: apt-get install gcc")
    (tmp_path / "p.c").write_text(
        "__attribute__((noinline)) void worked(volatile char *p) { *p = 1; }\nint main(void) { char c; worked(&c); return 0; }"
    )
    subprocess.run(["cc", "-g", "-O1", "-o", tmp_path / "p", tmp_path / "p.c"], check=True)
    output = tmp_path / "c.memlens"
    done = run_memlens("record", "-q", "-o", output, "--emulate", "--functions", "^worked$", "--", tmp_path / "p")
    assert done.returncode == 0, done.stderr
    assert "worked" in memlens.open(output).table("code_counts").column("region").to_pylist()


# ---- links to an installation whose path cannot be given as it is -----------------------------------
@pytest.fixture
def library(tmp_path: Path) -> Path:
    folder = tmp_path / "an installation, with: blanks"
    folder.mkdir()
    (folder / "lib.so").write_text("x")
    return folder / "lib.so"


def test_a_plain_path_is_given_as_it_is(tmp_path: Path) -> None:
    assert links.plain_path(Path("/usr/lib/libmemlens.so")) == "/usr/lib/libmemlens.so"


def test_one_link_serves_all_recordings(library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    first = links.plain_path(library)
    assert first == links.plain_path(library) and not set(first) & set(links.SPLITTING)
    assert Path(first).read_text() == "x" and len(list(temporary.iterdir())) == 1
    assert Path(first).parent.stat().st_mode & 0o777 == 0o755


@pytest.mark.parametrize("how", ["open to others", "a link", "a file", "leads elsewhere"])
def test_a_place_that_somebody_else_made_is_not_used(
    library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    temporary, other = tmp_path / "tmp", tmp_path / "other"
    temporary.mkdir()
    other.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    used = Path(links.plain_path(library)).parent
    shutil.rmtree(used)
    if how == "open to others":
        used.mkdir()
        used.chmod(0o777)
    elif how == "a link":
        used.symlink_to(other)
    elif how == "a file":
        used.write_text("")
    else:
        used.mkdir(mode=0o755)
        (used / "lib.so").symlink_to("/evil.so")
    found = Path(links.plain_path(library))
    assert found.parent != used and found.read_text() == "x" and list(other.iterdir()) == []
    shutil.rmtree(found.parent)


def test_a_temporary_folder_with_blanks_is_not_used(
    library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "my tmp"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    found = Path(links.plain_path(library))
    assert not set(str(found)) & set(links.SPLITTING) and found.read_text() == "x"
    shutil.rmtree(found.parent)


# ---- directories of processes that were killed ---------------------------------------------------------
def test_directories_of_killed_processes_are_swept_and_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(swept, "AGE_S", -1.0)
    with swept.SweptDirectory("verify") as live:
        left = tmp_path / "memlens-scratch-verify-abcdefgh"
        left.mkdir(mode=0o700)
        (left / "big").write_text("x")
        (left / "out").symlink_to(tmp_path)
        others = [
            tmp_path / name
            for name in ("memlens-verify-mine", "memlens-scratch-verify-mine", "memlens-scratch-other-abcdefgh")
        ]
        open_to_others = tmp_path / "memlens-scratch-verify-zzzzzzzz"
        for other in (*others, open_to_others):
            other.mkdir(mode=0o700)
            (other / "thesis").write_text("mine")
        open_to_others.chmod(0o755)
        (tmp_path / "memlens-scratch-verify-aaaaaaaa").symlink_to(others[0])
        with swept.SweptDirectory("verify") as second:
            assert not left.exists() and live.is_dir() and second.is_dir()
            assert all((other / "thesis").exists() for other in (*others, open_to_others))
    assert not live.exists() and not second.exists()
