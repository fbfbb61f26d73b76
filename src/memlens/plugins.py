"""Entry points of other installed packages, and which of them could not be used.

Entry points are read from the `entry_points.txt` that installers write beside a package (a documented format), not through
`importlib.metadata`: that takes a third of a second to import and to look, at each start of each command. A plug-in that
cannot be used is kept as a `Problem`: `memlens doctor` lists it, the Python API warns once, the command line says it once.
"""

from __future__ import annotations

import functools
import importlib
import os
import re
import sys
import warnings
from dataclasses import dataclass
from typing import Any

from .errors import PluginWarning

METADATA = (".dist-info", ".egg-info")
MOST_BYTES = 1 << 20
"""Of an entry_points.txt: real ones have a few hundred."""


@dataclass(frozen=True)
class Entry:
    """One entry point: `name = target` of a group."""

    group: str
    name: str
    target: str
    """MODULE or MODULE:OBJECT."""
    package: str
    """The distribution it comes from, with its version."""


@dataclass(frozen=True)
class Problem:
    """A plug-in that was left out."""

    kind: str
    name: str
    package: str
    reason: str
    remedy: str

    def __str__(self) -> str:
        return f"the {self.kind} {self.name} of the package {self.package} was left out: {self.reason}"


PROBLEMS: list[Problem] = []


def report(problem: Problem) -> None:
    """Keeps a problem and warns of it, once."""
    if any((p.kind, p.name, p.package) == (problem.kind, problem.name, problem.package) for p in PROBLEMS):
        return
    PROBLEMS.append(problem)
    warnings.warn(PluginWarning(f"{problem} ({problem.remedy})"), stacklevel=4)


def is_left_out(kind: str, name: str, package: str) -> bool:
    """Whether a plug-in that could be loaded has failed since."""
    return bool(package) and any((p.kind, p.name, p.package) == (kind, name, package) for p in PROBLEMS)


def entries(group: str) -> list[Entry]:
    """Entry points of a group, in the order of packages and names."""
    return [entry for entry in _all_entries() if entry.group == group]


def load(entry: Entry) -> Any:
    """The object that an entry point names; raises whatever importing it raises."""
    module, _, names = entry.target.partition(":")
    found: object = importlib.import_module(module.strip())
    for name in filter(None, names.strip().split(".")):
        found = getattr(found, name)
    return found


@functools.cache
def _all_entries() -> tuple[Entry, ...]:
    found: dict[str, list[Entry]] = {}
    for folder in dict.fromkeys(sys.path):
        try:
            names = sorted(name for name in os.listdir(folder or ".") if name.endswith(METADATA))
        except OSError:
            continue
        for name in names:
            package, version, *_ = [*re.sub(r"\.(dist|egg)-info\Z", "", name).split("-", 2), "", ""]
            identity = re.sub(r"[-_.]+", "-", package).lower()
            if identity in found:  # as Python: the first on the path is the one that is imported
                continue
            found[identity] = _entries_of(
                os.path.join(folder or ".", name, "entry_points.txt"), f"{package} {version}".strip()
            )
    return tuple(sorted((e for listed in found.values() for e in listed), key=lambda e: (e.package, e.group, e.name)))


def _entries_of(path: str, package: str) -> list[Entry]:
    """
    >>> _entries_of("/nowhere/entry_points.txt", "x 1")
    []
    """
    try:
        with open(path, "rb") as file:
            content = file.read(MOST_BYTES)
    except OSError:
        return []
    if b"memlens." not in content:
        return []
    entries, group = [], ""
    for line in content.decode("utf-8", "replace").splitlines():
        line = line.strip()
        if line.startswith("[") and line.endswith("]"):
            group = line[1:-1].strip()
        elif group.startswith("memlens.") and line[:1] not in ("", "#", ";") and "=" in line:
            name, _, target = (part.strip() for part in line.partition("="))
            entries.append(Entry(group, name, re.sub(r"\s*\[.*\]\Z", "", target), package))
    return entries
