"""One registry: collectors, analyses, findings and presenters describe themselves.

A part is a module with a module-level ``DESCRIPTOR``. The registry finds the
modules of a package by name and imports them only when they are asked for, so
`memlens --help` stays fast; help texts, docs and the report derive from the
descriptors. Descriptors hold data and function references only, and their modules
must import nothing heavy at the top.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Option:
    """One option of a part, as help and docs show it."""

    name: str
    help: str
    default: Any = None


@dataclass(frozen=True)
class Descriptor:
    """What every part says about itself."""

    name: str
    question: str
    """The question it answers, as a user would ask it."""
    needs: tuple[str, ...] = ()
    """What it needs of the machine (collectors) or of a capture (record kinds or tables)."""
    options: tuple[Option, ...] = ()


@dataclass(frozen=True)
class CollectorDescriptor(Descriptor):
    gives: tuple[str, ...] = ()
    """Record kinds that it writes."""
    available: bool = True
    """False: designed, its collector comes in a later version."""
    probe: Callable[[Mapping[str, Any]], Any] | None = None
    """Machine facts → Availability."""


@dataclass(frozen=True)
class AnalysisDescriptor(Descriptor):
    captures: int = 1
    """How many captures it reads; the report runs those of one."""
    in_report: bool = True
    """False: runs only when it is asked for by name."""
    run: Callable[..., Any] = field(kw_only=True)
    """Capture → Result."""
    consumer: Callable[..., Any] | None = None
    """(Capture, options) → `access_pass.Consumer`, whose snapshot is the Result: a report reads the accesses once for all of them."""
    join: Callable[[Any, Mapping[str, Any]], Any] | None = None
    """(Result, results of the report by name) → Result: what other results add to this one."""
    view: Callable[[Any], Any] | None = None
    """Result → View: what a renderer shows of it."""
    provide: str = ""
    """The command that records what it needs, for reports of captures that lack it."""


@dataclass(frozen=True)
class FindingDescriptor(Descriptor):
    analyses: tuple[str, ...] = ()
    """Analyses whose results the predicate reads."""
    evidence_sql: str = ""
    """The query that shows the evidence, for `memlens query`."""
    check: Callable[..., Any] = field(kw_only=True)
    """(capture, results) → list of Finding."""
    bad_workload: str = ""
    good_workload: str = ""


@dataclass(frozen=True)
class PresenterDescriptor(Descriptor):
    suffix: str = ""
    """Of the files that it writes: `memlens report --as NAME`. Without one it is not offered there."""
    render: Callable[..., Any] = field(kw_only=True)
    """Report → text or bytes."""


PACKAGES: dict[str, str] = {
    "collector": "memlens.collect.collectors",
    "analysis": "memlens.analyses",
    "finding": "memlens.analyses.findings",
    "presenter": "memlens.present",
}


def all_of(kind: str) -> dict[str, Any]:
    """All descriptors of a kind, by name, in the order of their file names."""
    package = importlib.import_module(PACKAGES[kind])
    found: dict[str, Any] = {}
    for info in pkgutil.iter_modules(package.__path__):
        if info.ispkg or info.name.startswith("_"):
            continue
        module = importlib.import_module(f"{PACKAGES[kind]}.{info.name}")
        descriptor = getattr(module, "DESCRIPTOR", None)
        if descriptor is not None:
            found[descriptor.name] = descriptor
    return found
