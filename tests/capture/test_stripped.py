"""Stripped code: the nearest symbol and an offset, where its symbols are, and debug files from a debuginfod server."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import needs_faults

import memlens
from memlens import _core
from memlens.capture.model import debug_servers
from memlens.capture.model.debug_servers import DebugServers

Record = Callable[..., memlens.Capture]
needs_client = pytest.mark.skipif(
    shutil.which("debuginfod-find") is None, reason="no debuginfod client; to run: sudo apt-get install debuginfod"
)

LIBRARY = r"""
#include <stdlib.h>
__attribute__((noinline, visibility("hidden"))) char *hidden_touch(char *p, long n) { for (long i = 0; i < n; i += 4096) p[i] = 1; __asm__ volatile("" ::: "memory"); return p; }
int exported_before(int x) { return x * 3; }
__attribute__((noinline)) static long static_touch(long n) { char *p = hidden_touch(malloc(n), n); __asm__ volatile("" ::: "memory"); return p[7]; }
long exported_after(long n) { return static_touch(n) + 1; }
"""
PROGRAM = "long exported_after(long); int main(void) { return exported_after(8 << 20) < 0; }"


@pytest.fixture
def stripped(tmp_path: Path) -> tuple[Path, Path, Path]:
    """(program, its stripped library, the library's debug file)."""
    (tmp_path / "l.c").write_text(LIBRARY)
    (tmp_path / "p.c").write_text(PROGRAM)
    library, debug = tmp_path / "libpart.so", tmp_path / "libpart.debug"

    def run(*words: str) -> None:
        subprocess.run(words, cwd=tmp_path, check=True, capture_output=True)

    run(
        "gcc",
        "-O1",
        "-g",
        "-fPIC",
        "-fno-toplevel-reorder",
        "-shared",
        "-Wl,--build-id=sha1",
        "l.c",
        "-o",
        "libpart.so",
    )
    run("gcc", "-O1", "p.c", "-L.", "-lpart", f"-Wl,-rpath,{tmp_path}", "-o", "p")
    run("objcopy", "--only-keep-debug", "libpart.so", "libpart.debug")
    run("strip", "libpart.so")
    return tmp_path / "p", library, debug


@needs_faults
def test_stripped_code_has_its_nearest_symbol_build_id_and_remedy(
    record: Record, stripped: tuple[Path, Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Oracle: the symbol table that was stripped away, in the debug file."""
    monkeypatch.delenv("DEBUGINFOD_URLS", raising=False)
    program, library, debug = stripped
    capture = record(program)
    shown = subprocess.run(["nm", str(debug)], capture_output=True, text=True, check=True).stdout
    at = {words[2]: int(words[0], 16) for line in shown.splitlines() if len(words := line.split()) == 3}
    before = max((v, n) for n, v in at.items() if n.startswith("exported") and v < at["static_touch"])[1]
    rows = [
        row for row in capture.table("sites").to_pylist() if row["module"] == str(library) and row["function"] is None
    ]
    vaddrs = {row["nearest"] for row in rows}
    assert any(name and name.startswith(f"{before}+0x") for name in vaddrs), vaddrs
    for row in rows:
        if row["nearest"]:
            name, _, distance = row["nearest"].partition("+")
            assert at[name] + int(distance, 16) == row["file_offset"]  # one segment: addresses are offsets
    build_id = _core.ModuleSymbols(str(library)).build_id
    (entry,) = [e for e in capture.meta["unnamed_modules"] if e["module"] == str(library)] or [None]
    if entry is not None:
        assert entry["build_id"] == build_id and build_id in entry["remedy"]


@needs_client
@needs_faults
def test_debuginfod_names_stripped_code(
    record: Record, stripped: tuple[Path, Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server at a file URL: the client is elfutils' own."""
    program, library, debug = stripped
    build_id = _core.ModuleSymbols(str(library)).build_id
    place = tmp_path / "server" / "buildid" / build_id
    place.mkdir(parents=True)
    shutil.copy(debug, place / "debuginfo")
    monkeypatch.setenv("DEBUGINFOD_CACHE_PATH", str(tmp_path / "cache"))
    monkeypatch.setenv("DEBUGINFOD_URLS", f"file://{tmp_path / 'server'}")
    first = memlens.analyses.run("first_touch", record(program)).tables["by_line"].to_pylist()[0]
    assert (first["function"], Path(first["file"]).name, first["line"]) == ("hidden_touch", "l.c", 3)
    with DebugServers() as servers:
        assert servers.directories(build_id) and servers.directories("00" * 20) is None
        assert servers.found == [build_id] and servers.missing == ["00" * 20]


def test_without_urls_no_server_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DEBUGINFOD_URLS", raising=False)
    assert not DebugServers().enabled
    monkeypatch.setenv("DEBUGINFOD_URLS", "file:///nowhere")
    monkeypatch.setenv("PATH", "/nonexistent")
    assert not DebugServers().enabled and DebugServers().directories("00" * 20) is None


@pytest.mark.skipif(shutil.which("dpkg-query") is None, reason="needs Debian's dpkg-query")
def test_packages_of_several_files_are_asked_for_at_once(tmp_path: Path) -> None:
    """Each as dpkg itself answers, by either name of a merged directory; files of no package, and names that are patterns, have none."""
    owner = subprocess.run(
        ["dpkg-query", "-S", "/usr/bin/dpkg"], capture_output=True, text=True, check=True
    ).stdout.split(":")[0]
    paths = ["/usr/bin/dpkg", "/bin/dpkg", "/nonexistent/file", str(tmp_path), "/usr/bin/*", "/usr/bin/[d]pkg"]
    assert debug_servers.packages_of(paths) == {"/usr/bin/dpkg": owner, "/bin/dpkg": owner}
    assert debug_servers.packages_of([]) == {}
