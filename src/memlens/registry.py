"""One registry: collectors, analyses, findings, presenters, exporters and importers describe themselves.

A part is a module with a module-level ``DESCRIPTOR``. The registry finds the modules of a package by name, and those of
other installed packages by their entry points (`plugins.py`), and imports them only when they are asked for, so
`memlens --help` stays fast; help texts, docs and the report derive from the descriptors. Descriptors hold data and
function references only, and their modules must import nothing heavy at the top.
"""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, TypeVar, overload

from . import plugins
from .plugins import Problem

T = TypeVar("T")
PROTOCOL = 1
"""Of descriptors and of what they refer to. A part that needs a later one is left out."""
NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")


@dataclass(frozen=True)
class Option:
    """One option of a part, as help, docs and the command line show it."""

    name: str
    """``--rate`` for a collector; the name of the argument for an analysis."""
    help: str
    default: object = None
    """A text is parsed like one that a person gives."""
    parse: Callable[[str], object] | None = None
    """Text → value; raises ValueError or argparse.ArgumentTypeError. None: the text."""
    metavar: str | None = None
    choices: tuple[str, ...] = ()
    flag: bool = False
    """Takes no value: given or not."""
    bare: str | None = None
    """The value where the option stands alone; another is given after ``=``."""
    only_with: str = ""
    """The option without which this one means nothing."""
    shown: str | None = None
    """The default as docs show it; None: as it is."""

    @property
    def key(self) -> str:
        """Its value among the values of its part."""
        return self.name.lstrip("-").replace("-", "_")


@dataclass(frozen=True)
class Descriptor:
    """What every part says about itself."""

    name: str
    question: str
    """The question it answers, as a user would ask it."""
    needs: tuple[str, ...] = ()
    """What it needs of the machine (collectors) or of a capture (record kinds or side tables of plug-ins)."""
    options: tuple[Option, ...] = ()
    protocol: int = field(default=PROTOCOL, kw_only=True)
    """The version of this protocol that it was written for."""
    package: str = field(default="", kw_only=True)
    """The installed package that it comes from; empty: memlens itself. Set by the registry."""


@dataclass(frozen=True)
class Asked:
    """What is asked for of a recording besides a collector's own options."""

    pid: int | None = None
    """A running process."""
    redact: bool = False


def _no_words(settings: Mapping[str, object]) -> list[str]:
    return []


def _no_quality(
    settings: Mapping[str, object], meta: Mapping[str, object], is_incomplete: bool, lost: int
) -> list[str]:
    return []


@dataclass(frozen=True)
class CollectorDescriptor(Descriptor):
    """A collector before it records; `memlens.collect.protocol.Collector` is one that does."""

    gives: tuple[str, ...] = ()
    """Record kinds that it writes."""
    available: bool = True
    """False: designed, its collector comes in a later version."""
    order: int = 100
    """Collectors are chosen, begun and finished in this order."""
    main: str = ""
    """The option that asks for it, besides --collectors."""
    by_default: bool = True
    """Records where nobody names collectors."""
    wraps: bool = False
    """Runs the program inside another one, which collectors that look from outside would see instead."""
    within_wrapper: bool = False
    """Records inside the program, also where another one runs it."""
    foreign: str = ""
    """What it reads of a process that memlens may not watch."""
    is_partly_notable: bool = False
    """What it cannot record of a program is told in short summaries as well, though it records the rest."""
    needs_start: tuple[str, str] | None = None
    """(reason, remedy) why it cannot record a process that runs already."""
    wanted: Callable[[str, Any, bool], bool] | None = None
    """(file of the program, settings, whether it is asked for) → whether the program has what it records; raises
    CollectorError where it is asked for and has not. None: every program has."""
    probe: Callable[..., Any] | None = None
    """Machine facts → `Availability`."""
    settings: Callable[[Mapping[str, Any], Asked], Any] | None = None
    """(values of its options by key, what else is asked for) → its typed settings. None: it has none."""
    make: Callable[[Any, Any], Any] | None = None
    """(settings, `Recording`) → `Collector`."""
    words: Callable[[Mapping[str, Any]], list[str]] = _no_words
    """Settings as meta.json keeps them → how it was used, in words."""
    quality: Callable[[Mapping[str, Any], Mapping[str, object], bool, int], list[str]] = _no_quality
    """(settings as meta.json keeps them, meta.json, whether records are missing, records lost) → what its numbers rest on."""


@dataclass(frozen=True)
class AnalysisDescriptor(Descriptor):
    captures: int = 1
    """How many captures it reads; the report runs those of one."""
    in_report: bool = True
    """False: runs only when it is asked for by name."""
    applies: Callable[..., bool] | None = None
    """Whether reports of a capture have it; None: always. Where it does not apply, they leave it out without a reason."""
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


@dataclass(frozen=True)
class ExporterDescriptor(Descriptor):
    """One format of files of tables: `memlens export --format NAME`."""

    suffix: str = ""
    """Of the files that it writes; empty: a dot and its name."""
    is_text: bool = False
    """Its files may be shown on a terminal."""
    order: int = 100
    """Formats are listed in this order; the first is the default."""
    reads: str = ""
    """The function that reads such a file, for the last line of `memlens export`."""
    write: Callable[..., int] = field(kw_only=True)
    """(pyarrow.RecordBatchReader, file of bytes) → rows written; it never holds more than a few batches."""


@dataclass(frozen=True)
class ImporterDescriptor(Descriptor):
    """One format of traces of other tools."""

    recognises: Callable[[bytes], bool] = field(kw_only=True)
    """Whether a file that begins like this has it."""
    read: Callable[..., dict[str, object]] = field(kw_only=True)
    """(`ImportTarget`, sources, `Settings`) → what it counted; reads all sources into the target."""
    expand: Callable[[Any], list[str]] | None = None
    """The files of a directory."""
    settings: tuple[str, ...] = ()
    """Of `memlens.importing.formats.Settings`, those that mean something to it."""
    order: int = 100
    """Formats are asked in this order whether a file has them."""
    survey: Callable[[], dict[str, object]] | None = None
    """Whether the tool that records it is on this machine; None: nothing is known of it."""


Kind = Literal["collector", "analysis", "finding", "presenter", "exporter", "importer"]
PACKAGES: dict[str, str] = {
    "collector": "memlens.collect.collectors",
    "analysis": "memlens.analyses",
    "finding": "memlens.analyses.findings",
    "presenter": "memlens.present",
    "exporter": "memlens.exporting",
    "importer": "memlens.importing",
}
GROUPS: dict[str, str] = {
    "collector": "memlens.collectors",
    "analysis": "memlens.analyses",
    "finding": "memlens.findings",
    "presenter": "memlens.presenters",
    "exporter": "memlens.exporters",
    "importer": "memlens.importers",
}
"""Entry points of other packages."""
TYPES: dict[str, type[Descriptor]] = {
    "collector": CollectorDescriptor,
    "analysis": AnalysisDescriptor,
    "finding": FindingDescriptor,
    "presenter": PresenterDescriptor,
    "exporter": ExporterDescriptor,
    "importer": ImporterDescriptor,
}

_own: dict[str, dict[str, Descriptor]] = {}
_others: dict[str, dict[str, Descriptor]] = {}


@overload
def all_of(kind: Literal["collector"]) -> dict[str, CollectorDescriptor]: ...
@overload
def all_of(kind: Literal["finding"]) -> dict[str, FindingDescriptor]: ...
@overload
def all_of(kind: Literal["presenter"]) -> dict[str, PresenterDescriptor]: ...
@overload
def all_of(kind: Literal["exporter"]) -> dict[str, ExporterDescriptor]: ...
@overload
def all_of(kind: Literal["importer"]) -> dict[str, ImporterDescriptor]: ...
@overload
def all_of(kind: str) -> dict[str, Any]: ...
def all_of(kind: str) -> dict[str, Any]:
    """All descriptors of a kind by name: ours in the order of their file names, then those of other packages."""
    if kind not in _own:
        _own[kind] = _own_parts(kind)
    if kind not in _others:
        _others[kind] = _plugins_of(kind)
    found = {**_own[kind], **_others[kind]}
    return {name: one for name, one in found.items() if not plugins.is_left_out(kind, name, one.package)}


def _own_parts(kind: str) -> dict[str, Descriptor]:
    found: dict[str, Descriptor] = {}
    for name in _modules_of(PACKAGES[kind]):
        descriptor = getattr(importlib.import_module(name), "DESCRIPTOR", None)
        if isinstance(descriptor, TYPES[kind]):
            found[descriptor.name] = descriptor
    return found


def _modules_of(package: str) -> list[str]:
    """Modules of a package by name; a package in it is a part of its own, or has parts as modules."""
    found = []
    for info in pkgutil.iter_modules(importlib.import_module(package).__path__):
        name = f"{package}.{info.name}"
        if info.name.startswith("_") or name in PACKAGES.values():
            continue
        found.append(name)
        if info.ispkg and not hasattr(importlib.import_module(name), "DESCRIPTOR"):
            found += _modules_of(name)
    return found


def _plugins_of(kind: str) -> dict[str, Descriptor]:
    """What other packages have; what cannot be used is left out and noted."""
    found: dict[str, Descriptor] = {}
    for entry in plugins.entries(GROUPS[kind]):
        try:
            loaded = plugins.load(entry)
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            reason = f"importing {entry.target} failed: {type(error).__name__}: {error}".strip().rstrip(":")
            _leave_out(kind, entry, reason, f"update or remove the package {entry.package}")
            continue
        descriptor = getattr(loaded, "DESCRIPTOR", loaded)
        reason, remedy = _why_not(kind, descriptor, entry, found)
        if reason:
            _leave_out(kind, entry, reason, remedy)
        else:
            found[descriptor.name] = dataclasses.replace(descriptor, package=entry.package)
    return found


def _why_not(kind: str, descriptor: object, entry: plugins.Entry, found: Mapping[str, Descriptor]) -> tuple[str, str]:
    """(reason, remedy) when a plug-in cannot be used, else empty texts."""
    expected = TYPES[kind].__name__
    remedy = f"update or remove the package {entry.package}"
    if not isinstance(descriptor, TYPES[kind]):
        what = f"a {type(descriptor).__name__}" if not isinstance(descriptor, type(plugins)) else "a module without one"
        return f"expected a DESCRIPTOR of type {expected}, found {what}", remedy
    if descriptor.protocol > PROTOCOL:
        return (
            f"it needs protocol {descriptor.protocol} of parts; this memlens has protocol {PROTOCOL}",
            f"update memlens, or install an earlier version of {entry.package}",
        )
    if not NAME.fullmatch(descriptor.name):
        return f"its name {descriptor.name!r} is not made of up to 40 small letters, digits and underscores", remedy
    if descriptor.name in _own[kind]:
        return f"the name {descriptor.name} is taken by memlens itself", remedy
    if descriptor.name in found:
        other = found[descriptor.name].package
        return f"the name {descriptor.name} is taken by the package {other}", f"remove one of {other}, {entry.package}"
    return "", ""


def _leave_out(kind: str, entry: plugins.Entry, reason: str, remedy: str) -> None:
    plugins.report(Problem(kind, entry.name, entry.package, reason, remedy))


def words_of(name: str, settings: object) -> list[str]:
    """How a collector was used, from its settings in meta.json; empty for one that is not known here."""
    one = all_of("collector").get(name)
    if one is None or not isinstance(settings, dict):
        return []
    return guarded("collector", one, partial(one.words, settings), [])


def quality_words(
    collectors: Mapping[str, Any], meta: Mapping[str, object], is_incomplete: bool, lost: int
) -> list[str]:
    """What numbers rest on, from the settings of the collectors of a capture."""
    found = []
    for one in sorted(all_of("collector").values(), key=lambda one: (one.order, one.package, one.name)):
        if one.name in collectors:
            settings = collectors[one.name] or {}
            words: list[str] = []
            found += guarded("collector", one, partial(one.quality, settings, meta, is_incomplete, lost), words)
    return found


def guarded(kind: str, one: Descriptor, call: Callable[[], T], instead: T) -> T:
    """What a part returns; one of another package that fails is left out from now on, and `instead` is returned."""
    try:
        return call()
    except MemoryError:
        raise
    except Exception as error:
        if not one.package:
            raise
        left_out(kind, one, f"it failed: {type(error).__name__}: {error}")
        return instead


def left_out(kind: str, descriptor: Descriptor, reason: str) -> None:
    """A plug-in failed while it was used: it is left out from now on, and reported."""
    remedy = f"update or remove the package {descriptor.package}"
    plugins.report(Problem(kind, descriptor.name, descriptor.package, reason, remedy))


def has_plugins(*kinds: Kind) -> bool:
    """Whether other packages have parts of these kinds, usable or not; imports none of them."""
    return any(plugins.entries(GROUPS[kind]) for kind in kinds)


def installed() -> list[tuple[str, Descriptor]]:
    """(kind, descriptor) of everything that other packages add, and that can be used."""
    return [(kind, one) for kind in PACKAGES for one in all_of(kind).values() if one.package]


def problems() -> list[Problem]:
    """Plug-ins that were left out so far, and why."""
    return list(plugins.PROBLEMS)
