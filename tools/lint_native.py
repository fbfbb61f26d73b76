#!/usr/bin/env python3
"""Checks C and C++: their format (clang-format), and what clang-tidy finds in the code most at risk.

usage: lint_native.py BUILD_DIRECTORY [--fix]

`--fix` formats. clang-tidy looks at code that runs inside programs or beside them and at readers of bytes from outside: all of it would take
three times as long. Files that passed are not checked again while neither they nor any header changed (BUILD_DIRECTORY/passed).
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FORMATTED = ("format", "native", "tests/native", "tests/fuzz", "workloads")
CHECKED = (
    *("native/perf", "native/recorder", "native/runtime"),
    *("native/core/capture", "native/core/importing", "native/core/symbols"),
)
SUFFIXES = {".c", ".cpp", ".h", ".hpp"}
VERSION = 19
"""Of the clang tools: another one formats otherwise and finds other things."""


def sources(folders: tuple[str, ...]) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*") if path.suffix in SUFFIXES)


def tool(name: str) -> str:
    found = shutil.which(f"{name}-{VERSION}")
    if found is None:
        sys.exit(f"{name}-{VERSION} is missing; install it: apt-get install {name}-{VERSION}")
    return found


def check_format(*, fix: bool) -> bool:
    command = [tool("clang-format"), *(["-i"] if fix else ["--dry-run", "-Werror"])]
    parts = [list(map(str, sources(FORMATTED)[at::2])) for at in range(2)]
    with ThreadPoolExecutor(2) as pool:
        results = pool.map(lambda part: subprocess.run([*command, *part]).returncode, parts)
    if not any(list(results)):
        return True
    print("the format of C or C++ differs: tools/lint_native.py build/tidy --fix", file=sys.stderr)
    return False


def compile_commands(build: Path) -> dict[str, str]:
    """How each checked file is compiled: file → one command (several targets may compile it)."""
    configure = ["cmake", "-S", str(ROOT), "-B", str(build), "-G", "Ninja", "-DMEMLENS_TESTS=ON"]
    environment = {**os.environ, "MEMLENS_CORE_ONLY": "1"}
    subprocess.run(
        [*configure, "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON"], check=True, stdout=subprocess.DEVNULL, env=environment
    )
    commands = {}
    for entry in json.loads((build / "compile_commands.json").read_text()):
        path = Path(entry["file"])
        if "tests" not in path.parts and any(path.is_relative_to(ROOT / folder) for folder in CHECKED):
            commands.setdefault(str(path), entry["command"])
    return commands


def check_bugs(build: Path) -> bool:
    clang_tidy = tool("clang-tidy")
    commands = compile_commands(build)
    passed = build / "passed"
    passed.mkdir(parents=True, exist_ok=True)
    common = hashlib.sha256(f"{VERSION}".encode())
    for path in [*ROOT.glob("native/**/.clang-tidy"), ROOT / ".clang-tidy", *sources(("format", "native"))]:
        if path.suffix in ("", ".h"):
            common.update(path.read_bytes())
    for path in sorted((ROOT / "format").glob("*.def")):
        common.update(path.read_bytes())

    def check(path: str) -> str:
        digest = common.copy()
        digest.update(Path(path).read_bytes() + re.sub(r"-o \S+", "", commands[path]).encode())
        stamp = passed / digest.hexdigest()
        if stamp.exists():
            return ""
        # GCC 12's own stable_sort uses what it has deprecated, and -Werror makes an error of it.
        command = [clang_tidy, "-p", str(build), "--quiet", "--extra-arg=-Wno-deprecated-declarations", path]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode == 0:
            stamp.touch()
            return ""
        return done.stdout or done.stderr

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        findings = [text for text in pool.map(check, sorted(commands)) if text]
    print("".join(findings), end="")
    return not findings


def main() -> int:
    arguments = [argument for argument in sys.argv[1:] if argument != "--fix"]
    if len(arguments) != 1:
        print(__doc__, file=sys.stderr)
        return 2
    fix = "--fix" in sys.argv
    return 0 if check_format(fix=fix) and (fix or check_bugs(Path(arguments[0]).resolve())) else 1


if __name__ == "__main__":
    sys.exit(main())
