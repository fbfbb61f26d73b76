"""Real projects through their own build systems: built by `memlens cc`, they pass their own tests.

Sources are looked for in $MEMLENS_PROJECTS (folders lua, zlib, expat, as their repositories are); else the package
manager is asked for the source packages, where it has them. Nothing of them is kept in this repository.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from count_arena import Arena
from count_runs import counted_functions, each_clang, environment, needs

pytestmark = pytest.mark.slow
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "memlens" / "projects"
PACKAGES = {"lua": "lua5.4", "zlib": "zlib", "expat": "expat"}
HOW = "MEMLENS_PROJECTS=DIR with the sources of {0} in DIR/{0}, or enable source packages (deb-src) and run as root"


def sources_of(name: str) -> Path:
    """A project's sources; skips when there are none."""
    given = os.environ.get("MEMLENS_PROJECTS")
    if given:
        if (Path(given) / name).is_dir():
            return Path(given) / name
        pytest.skip(f"no {name} in {given}: {HOW.format(name)}")
    place = CACHE / name
    if not place.is_dir() and os.geteuid() == 0 and shutil.which("apt-get"):
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as folder:
            subprocess.run(
                ["apt-get", "source", "--only-source", PACKAGES[name]], cwd=folder, capture_output=True, timeout=300
            )
            unpacked = [path for path in Path(folder).iterdir() if path.is_dir()]
            if unpacked:
                unpacked[0].rename(place)
    if not place.is_dir():
        pytest.skip(f"no sources of {name}: {HOW.format(name)}")
    return place


@pytest.fixture
def work(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("project")
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def run(*command: str | Path, cwd: Path, clang: str, timeout: float = 1800, **variables: str) -> str:
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=environment(clang, **variables),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    return done.stdout


def counts(program: Path, *arguments: str | Path, **variables: str) -> set[str]:
    """Runs one program with an arena; the names of modules that counted something."""
    arena = Arena(counters_max=1 << 17)
    try:
        arena.run(program, *arguments, environment=variables)
        return {
            name
            for process in arena.processes()
            for place in process.places
            for name, words in place.counters.items()
            if words.sum()
        }
    finally:
        arena.close()


@each_clang
def test_lua_by_make(work: Path, clang: str) -> None:
    needs("make", "make")
    source = sources_of("lua")
    shutil.copytree(source, work / "lua", ignore=shutil.ignore_patterns(".git"))
    lua = work / "lua"
    if (lua / "makefile").exists():  # the repository: its makefile names gcc's own warnings
        run("make", "-j2", "CC=memlens cc", "CWARNGCC=", cwd=lua, clang=clang)
        program = lua / "lua"
    else:
        run("make", "-j2", "CC=memlens cc", "linux", cwd=lua, clang=clang)
        program = lua / "src" / "lua"
        if not program.exists() and (lua / "debian").is_dir():
            pytest.skip(
                "Debian's makefile of lua works in its packaging only: MEMLENS_PROJECTS=DIR with lua's own sources in DIR/lua"
            )
    assert counted_functions(program) > 300
    script = work / "sieve.lua"
    script.write_text("local t = {}\nfor i = 2, 20000 do t[i] = i % 7 end\nprint(#t)\n")
    assert counts(program, script) == {"lua"}
    if not (lua / "testes").is_dir():
        pytest.skip("these sources of lua have no tests (testes/); it was built and counts")
    printed = run(program, "-e_U=true", "all.lua", cwd=lua / "testes", clang=clang)
    assert "final OK" in printed


@each_clang
def test_zlib_by_cmake(work: Path, clang: str) -> None:
    needs("cmake", "cmake")
    source = sources_of("zlib")
    shutil.copytree(source, work / "zlib", ignore=shutil.ignore_patterns(".git"))
    if not (work / "zlib" / "win32").exists():  # Debian leaves it out, and CMake asks for it
        (work / "zlib" / "win32").mkdir()
        (work / "zlib" / "win32" / "zlib1.rc").touch()
    build = work / "build"
    run(
        *("cmake", "-S", work / "zlib", "-B", build, "-DCMAKE_C_COMPILER=memlens-cc", "-DCMAKE_BUILD_TYPE=Release"),
        cwd=work,
        clang=clang,
    )
    run("cmake", "--build", build, "-j2", cwd=work, clang=clang)
    assert "100% tests passed" in run("ctest", "--output-on-failure", cwd=build, clang=clang)
    (library,) = {path.resolve() for path in build.glob("libz.so*")}
    assert counted_functions(library) > 50
    # The library has a version script; still there is one runtime, and both modules count in it.
    arena = Arena(counters_max=1 << 17)
    program = next(
        path
        for name in ("zlib_example", "example")
        if (path := build / name).exists() or (path := build / "test" / name).exists()
    )
    arena.run(program, work / "x.gz")
    process = arena.process()
    arena.close()
    assert len(process.modules) == 2 and all(
        process.places[0].counters[Path(m.path).name].sum() for m in process.modules
    )


@each_clang
def test_expat_by_autoconf(work: Path, clang: str) -> None:
    for program, package in (("autoreconf", "autoconf automake"), ("libtoolize", "libtool"), ("make", "make")):
        needs(program, package)
    source = sources_of("expat")
    shutil.copytree(source, work / "expat", ignore=shutil.ignore_patterns(".git"))
    expat = work / "expat" / "expat" if (work / "expat" / "expat").is_dir() else work / "expat"
    if not (expat / "configure").exists():
        run("./buildconf.sh", cwd=expat, clang=clang)
    run(
        *("./configure", "CC=memlens-cc", "CXX=memlens-c++", "--without-docbook", "--disable-dependency-tracking"),
        cwd=expat,
        clang=clang,
    )
    run("make", "-j2", cwd=expat, clang=clang)
    printed = run("make", "check", cwd=expat, clang=clang)
    assert "# FAIL:  0" in printed and "# ERROR: 0" in printed
    (library,) = {path.resolve() for path in (expat / "lib" / ".libs").glob("libexpat.so*")}
    assert counted_functions(library) > 100
    document = work / "a.xml"
    document.write_text("<a>" + "<b c='d'>text</b>" * 1000 + "</a>")
    wf = expat / "xmlwf" / ".libs" / "xmlwf"
    found = counts(wf, document, LD_LIBRARY_PATH=str(library.parent))
    assert "xmlwf" in found and any(name.startswith("libexpat.so") for name in found), found
