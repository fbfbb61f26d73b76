"""Builds with `memlens cc` for the tests of the driver, the pragma and real projects; runs with an arena of our own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from count_arena import Arena, Process

from memlens.compile import toolchain

HAVE = toolchain.installed()
VERSIONS = sorted(
    major
    for major in HAVE.passes
    if shutil.which(f"clang-{major}") or os.path.exists(f"/usr/lib/llvm-{major}/bin/clang")
)
WHY_NOT = f"no clang with a plugin: sudo apt-get install {toolchain.packages(19)}; then: make build"
needs_clang = pytest.mark.skipif(not VERSIONS or not HAVE.archives, reason=WHY_NOT)
each_clang = pytest.mark.parametrize(
    "clang",
    [f"clang-{major}" for major in VERSIONS] or [pytest.param("", marks=pytest.mark.skip(reason=WHY_NOT))],
)
"""Every version that is installed; one skipped case when there is none."""
each_clang_at_length = pytest.mark.parametrize(
    "clang",
    [pytest.param(f"clang-{major}", marks=() if major == VERSIONS[-1] else pytest.mark.slow) for major in VERSIONS]
    or [pytest.param("", marks=pytest.mark.skip(reason=WHY_NOT))],
)
"""The same for tests that take long: only the newest, the others in `make test-all`."""


def levels_and_clangs(*levels: str, with_all: str, slow: tuple[str, ...] = ()) -> pytest.MarkDecorator:
    """Each level with the newest clang, `with_all` with every one; the other pairs, and levels in `slow`, only in `make test-all`."""

    def is_quick(level: str, major: int) -> bool:
        return level not in slow and (level == with_all or major == VERSIONS[-1])

    pairs = [
        pytest.param(level, f"clang-{major}", marks=() if is_quick(level, major) else pytest.mark.slow)
        for level in (*levels, *slow)
        for major in VERSIONS
    ]
    none = [pytest.param("", "", marks=pytest.mark.skip(reason=WHY_NOT))]
    return pytest.mark.parametrize(("level", "clang"), pairs or none)


def needs(program: str, package: str) -> None:
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed: sudo apt-get install {package}")


def environment(clang: str = "", **more: str) -> dict[str, str]:
    """For build systems: memlens-cc and memlens-c++ of this Python come first."""
    result = {key: value for key, value in os.environ.items() if not key.startswith("MEMLENS_")}
    result["PATH"] = f"{Path(sys.executable).parent}:{result.get('PATH', os.defpath)}"
    if clang:
        result["MEMLENS_CLANG"] = clang
    return {**result, **more}


def compile_with(
    *arguments: str | Path, clang: str = "", name: str = "cc", cwd: Path | None = None, **more: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "memlens", name, *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=cwd,
        env=environment(clang, **more),
        timeout=300,
    )


def built(*arguments: str | Path, clang: str = "", name: str = "cc", cwd: Path | None = None) -> None:
    """Compiles without a word from the compiler."""
    done = compile_with(*arguments, clang=clang, name=name, cwd=cwd)
    assert done.returncode == 0 and not done.stderr, done.stderr


def counted_functions(path: Path) -> int:
    """How many counted functions a file carries."""
    listed = subprocess.run(["readelf", "-SW", path], capture_output=True, text=True, check=True).stdout
    fields = [line.split("]")[1].split() for line in listed.splitlines() if " memlens_functions " in line]
    return sum(int(field[4], 16) for field in fields) // 40


def counted_run(
    *command: str | Path, status: int = 0, launcher: tuple[str, ...] = (), **variables: str
) -> tuple[Process, str]:
    """The process that counted, and its output."""
    arena = Arena()
    try:
        done = arena.run(*command, status=status, launcher=launcher, environment=variables)
        return arena.process(), done.stdout
    finally:
        arena.close()
