"""Which clangs `memlens cc` can count with, for `memlens doctor`: what each lacks, and what to type."""

from __future__ import annotations

import os
from typing import Any

from . import toolchain
from .toolchain import NEWEST, OLDEST, REBUILD, Installed


def survey(have: Installed | None = None, environment: dict[str, str] | None = None) -> list[dict[str, object]]:
    """One entry for each clang that is installed, the newest first."""
    have = toolchain.installed() if have is None else have
    environment = dict(os.environ) if environment is None else environment
    found: dict[int, str] = {}
    for major in range(NEWEST + 8, 9, -1):
        path = toolchain.which(f"clang-{major}", environment)
        if path:
            found[major] = path
    plain = toolchain.which("clang", environment)
    if plain:
        major = toolchain.major_version(plain, environment)
        if major:
            found.setdefault(major, plain)
    return [_entry(major, path, have, environment) for major, path in sorted(found.items(), reverse=True)]


def _entry(major: int, path: str, have: Installed, environment: dict[str, str]) -> dict[str, object]:
    entry: dict[str, Any] = {"clang": path, "version": major, "missing": []}
    if not OLDEST <= major <= NEWEST:
        detail = f"memlens counts with clang {OLDEST} to {NEWEST}"
        return {**entry, "state": "cannot count", "detail": detail}
    prefix = os.path.dirname(os.path.dirname(os.path.realpath(path)))
    headers = os.path.join(prefix, "include")
    if major not in have.passes:
        packages = [] if os.path.exists(f"{headers}/llvm/Passes/PassBuilder.h") else [f"llvm-{major}-dev"]
        if not os.path.exists(f"{headers}/clang/Frontend/CompilerInstance.h"):
            packages.append(f"libclang-{major}-dev")
        install = f"sudo apt-get install {' '.join(packages)}; then " if packages else ""
        entry["missing"].append(
            {"reason": f"this memlens was built without a plugin for clang {major}", "remedy": install + REBUILD}
        )
        return {**entry, "state": "cannot count", "detail": ""}
    parts = ["C and C++"]
    if major in have.pragmas:
        parts.append("#pragma memlens")
    else:
        remedy = f"sudo apt-get install libclang-{major}-dev; then {REBUILD}"
        entry["missing"].append({"reason": "no #pragma memlens: clang's headers were not installed", "remedy": remedy})
    if toolchain.find_lld(path, major, environment):
        parts.append("-flto")
    else:
        remedy = f"sudo apt-get install lld-{major}"
        entry["missing"].append({"reason": f"no -flto: lld {major} is not installed", "remedy": remedy})
    if os.path.exists(os.path.join(prefix, "lib", "libomp.so")):
        parts.append("-fopenmp")
    else:
        remedy = f"sudo apt-get install libomp-{major}-dev"
        entry["missing"].append({"reason": f"no -fopenmp: libomp {major} is not installed", "remedy": remedy})
    state = "counts in part" if entry["missing"] else "counts"
    return {**entry, "state": state, "detail": ", ".join(parts)}
