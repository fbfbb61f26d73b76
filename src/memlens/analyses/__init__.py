"""Analyses: pure functions from a capture to a Result. Nothing prints here.

>>> import memlens
>>> capture = memlens.open("run.memlens")                  # doctest: +SKIP
>>> memlens.analyses.run("first_touch", capture).figures   # doctest: +SKIP

One file is one analysis with a DESCRIPTOR; `findings/` holds one file a finding.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from .. import registry
from ..errors import CaptureError
from ..registry import AnalysisDescriptor, FindingDescriptor
from ..view import Absence, View, guessed

if TYPE_CHECKING:
    from ..capture.model.access_pass import Answering
    from ..capture.reader import Capture
    from ..results import Finding, Report, Result
    from ..selection import Scope, Selection

SEVERITIES = ("high", "medium", "low")


def list() -> dict[str, str]:
    """Every analysis and the question that it answers; `run` runs one by name.

    >>> list()["first_touch"]
    'Which function, line and thread touched the memory first, and so placed it?'
    """
    return {name: descriptor.question for name, descriptor in registry.all_of("analysis").items()}


def run(name: str, capture: Capture, *, selection: Selection | None = None, **options: object) -> Result:
    """Runs one analysis by name.

    Parameters
    ----------
    selection
        The part of the run that the result is of; `Result.scope` says how far it obeyed.

    >>> from memlens.selection import Selection
    >>> run("faults", capture, selection=Selection(time_s=(1.5, 2.0))).figures["faults"]   # doctest: +SKIP
    """
    descriptor = registry.all_of("analysis")[name]
    if not selection:
        result: Result = descriptor.run(capture, **options)
        return result
    if descriptor.captures != 1:
        from ..errors import UsageError

        raise UsageError(f"{name} compares captures and takes no selection", hint="select a part of one capture")
    from ._select import select

    return _of_part(descriptor.run, select(capture, selection), options)


def _of_part(analyse: Callable[..., Result], part: Capture, options: Mapping[str, object]) -> Result:
    """The result of an analysis for a selected capture; of the whole run where its data cannot be cut so."""
    from ._selected import NotSelectable, selected

    chosen = selected(part)
    if chosen is None:  # the selection has everything
        return analyse(part, **options)
    chosen.begin_result()
    try:
        result = analyse(chosen, **options)
    except NotSelectable as error:
        result = analyse(chosen.whole, **options)
        return replace(result, scope="whole run", scope_reason=str(error))
    return replace(result, scope=chosen.scope, scope_reason=chosen.scope_reason)


def locality(capture: Capture, *, selection: Selection | None = None, **options: Any) -> Result:
    """Footprint, growth and reuse of data; see `memlens.analyses.data_locality.locality`.

    >>> locality(capture, by="function", line_bytes=64).tables["by_function"]   # doctest: +SKIP
    """
    from .data_locality import locality as analyse

    if not selection:
        return analyse(capture, **options)
    from ._select import select

    return _of_part(analyse, select(capture, selection), options)


def run_all(capture: Capture, options: Mapping[str, Mapping[str, object]] | None = None) -> dict[str, Result]:
    """Every analysis of one capture that this one has data for, by name; `options` by the name of the analysis."""
    kinds = _present(capture)
    wanted = {
        name: descriptor
        for name, descriptor in registry.all_of("analysis").items()
        if _in_report(descriptor, capture) and all(need in kinds for need in descriptor.needs)
    }
    read = _read_once(capture, {name: d for name, d in wanted.items() if d.consumer is not None}, options or {})
    results: dict[str, Result] = {}
    for name, descriptor in wanted.items():
        run_one = partial(_of_part, partial(_run, descriptor), capture, (options or {}).get(name, {}))
        is_read = descriptor.consumer is not None
        result = read.get(name) if is_read else registry.guarded("analysis", descriptor, run_one, None)
        if result is not None:
            results[name] = result
    return {
        name: one
        if wanted[name].join is None
        else _joined(registry.guarded("analysis", wanted[name], partial(wanted[name].join, one, results), one), one)
        for name, one in results.items()
    }


def _in_report(descriptor: AnalysisDescriptor, capture: Capture) -> bool:
    if descriptor.captures != 1 or not descriptor.in_report:
        return False
    return descriptor.applies is None or descriptor.applies(capture)


def _joined(result: Result, before: Result) -> Result:
    return replace(result, scope=before.scope, scope_reason=before.scope_reason)


def _run(descriptor: AnalysisDescriptor, capture: Capture, **options: object) -> Result:
    from ..results import Result

    try:
        result = descriptor.run(capture, **options)
    except OverflowError as error:  # columns have 64 bits, which no recording fills
        raise CaptureError(
            f"{capture.path}: {descriptor.name}: its records claim counts or times whose sums exceed 64 bits ({error})",
            hint="record again; the other tables can be read: memlens query",
        ) from error
    if not isinstance(result, Result):
        raise TypeError(f"expected a Result, found a {type(result).__name__}")
    return result


def _check(descriptor: FindingDescriptor, capture: Capture, results: Mapping[str, Result]) -> builtins.list[Finding]:
    from ..results import Finding
    from ._selected import NotSelectable

    try:
        found = [*descriptor.check(capture, results)]
    except NotSelectable:  # it asks a selected capture for more than its analyses do
        return []
    for one in found:
        if not isinstance(one, Finding) or one.severity not in SEVERITIES:
            raise TypeError(f"expected findings of severity {', '.join(SEVERITIES)}, found {one!r:.60}")
    return found


def _present(capture: Capture) -> set[str]:
    """What analyses may need: record kinds, and side tables of plug-ins."""
    return {*capture.kinds(), *capture.side_table_names()}


def _read_once(
    capture: Capture, wanted: Mapping[str, Any], options: Mapping[str, Mapping[str, Any]]
) -> dict[str, Result]:
    """Results of the analyses of windows: the accesses are read once for all of them."""
    from ..capture.model.access_pass import sweep
    from ..capture.model.locality import ThreadAccesses
    from ._chosen_accesses import with_all_code

    if not wanted:
        return {}
    accesses = ThreadAccesses(with_all_code(capture))
    mine = {name: dict(options.get(name, {})) for name in wanted}
    progress = [one.pop("progress") for one in mine.values() if "progress" in one]
    made = {
        name: registry.guarded("analysis", descriptor, partial(_reader, descriptor, capture, mine[name]), None)
        for name, descriptor in wanted.items()
    }
    readers = {name: reader for name, reader in made.items() if isinstance(reader, _Reader)}
    failures = sweep(
        accesses, [reader.consumer for reader in readers.values()], progress=progress[0] if progress else None
    )
    taken = {
        name: registry.guarded("analysis", wanted[name], partial(_taken, reader, failures), None)
        if isinstance(reader, _Reader)
        else reader
        for name, reader in made.items()
    }
    return {name: result for name, result in taken.items() if result is not None}


@dataclass(frozen=True)
class _Reader:
    """A consumer, and how far what it was made of obeys the selection."""

    consumer: Answering[Result]
    scope: Scope = "selection"
    reason: str = ""


def _reader(descriptor: AnalysisDescriptor, capture: Capture, options: Mapping[str, object]) -> _Reader | Result:
    """A consumer of the selected accesses; the result for the whole run where they cannot be cut so."""
    from ._selected import NotSelectable, selected

    assert descriptor.consumer is not None  # analyses of windows have one
    part = selected(capture)
    if part is None:
        return _Reader(descriptor.consumer(capture, **options))
    part.begin_result()
    try:
        consumer = descriptor.consumer(part, **options)
    except NotSelectable as error:
        return replace(_run(descriptor, part.whole, **options), scope="whole run", scope_reason=str(error))
    return _Reader(consumer, part.scope, part.scope_reason)


def _taken(reader: _Reader, failures: Mapping[int, BaseException]) -> Result:
    """What a consumer has when all accesses were read, or what it makes of an error."""
    error = failures.get(id(reader.consumer))
    if error is None:
        result = reader.consumer.snapshot()
    elif hasattr(reader.consumer, "failed"):
        result = reader.consumer.failed(error)
    else:
        raise error
    return replace(result, scope=reader.scope, scope_reason=reader.reason)


def all_findings(capture: Capture, results: dict[str, Result]) -> builtins.list[Finding]:
    """Every finding whose predicate holds, gravest first; several may state one fact."""
    found: builtins.list[Finding] = []
    # Of a selected part only what rests on that part is found.
    known = {name: result for name, result in results.items() if result.scope != "whole run"}
    for descriptor in registry.all_of("finding").values():
        if all(name in known for name in descriptor.analyses):
            nothing: builtins.list[Finding] = []
            found.extend(registry.guarded("finding", descriptor, partial(_check, descriptor, capture, known), nothing))
    return sorted(found, key=lambda finding: SEVERITIES.index(finding.severity))


def check_findings(capture: Capture, results: dict[str, Result]) -> builtins.list[Finding]:
    """Every finding whose predicate holds, gravest first; each fact once."""
    return stated_once(all_findings(capture, results))


def stated_once(findings: builtins.list[Finding]) -> builtins.list[Finding]:
    """Findings without those that state a fact of another one again.

    Two of one group do if all that the one refers to is among what the other refers to. Of two as grave the more general one is kept, which
    refers to less; it then refers to what the other did too.
    """
    order = sorted(
        range(len(findings)),
        key=lambda at: (SEVERITIES.index(findings[at].severity), len(findings[at].references), at),
    )
    kept: dict[int, Finding] = {}
    things = {at: {(one.kind, one.name) for one in findings[at].references} for at in order}
    for at in order:
        one = findings[at]
        same = next(
            (
                other
                for other in kept
                if one.group
                and (findings[other].group, findings[other].name != one.name) == (one.group, True)
                and (things[at] <= things[other] or things[other] <= things[at])
            ),
            None,
        )
        if same is None:
            kept[at] = one
        else:
            references = tuple(dict.fromkeys((*kept[same].references, *one.references)))
            kept[same] = replace(kept[same], references=references)
    return [kept[at] for at in sorted(kept)]


def views_of(results: Mapping[str, Result]) -> dict[str, View]:
    """What each result shows: the view that its analysis gives."""
    known = registry.all_of("analysis")
    return {
        name: (registry.guarded("analysis", known[name], partial(known[name].view, result), None) or guessed(result))
        if name in known and known[name].view is not None
        else guessed(result)
        for name, result in results.items()
    }


def absences_of(capture: Capture, results: Mapping[str, Result]) -> tuple[Absence, ...]:
    """Analyses of a report that the capture has no data for, and the command that would record it."""
    kinds = _present(capture)
    return tuple(
        Absence(
            analysis=name,
            question=descriptor.question,
            reason=f"the capture has no {' and no '.join(need for need in descriptor.needs if need not in kinds)}",
            provide=descriptor.provide,
        )
        for name, descriptor in registry.all_of("analysis").items()
        if _in_report(descriptor, capture) and name not in results and descriptor.provide
    )


def _named(progress: Callable[[int, int, str], None] | None, name: str) -> Callable[[int, int], None] | None:
    return None if progress is None else lambda done, total: progress(done, total, name)


def report(
    capture: Capture,
    *,
    memory_limit_bytes: int | None = None,
    machine: str | None = None,
    skip_frames: str | None = None,
    progress: Callable[[int, int, str], None] | None = None,
    cache: bool = False,
    selection: Selection | None = None,
) -> Report:
    """Runs everything that the capture has data for.

    Parameters
    ----------
    memory_limit_bytes
        For the engines whose memory grows with the data of the program; what does not fit is left out with a note.
    machine
        The name of one whose caches are modelled, instead of the capture's own.
    skip_frames
        A regular expression: functions and modules that match are never shown as the place of an allocation or a first
        touch, but the first caller that does not match is.
    progress
        Called with (accesses read, accesses in all, "accesses").
    selection
        The part of the run that the report is of. Results whose data cannot be cut so are of the whole run and say it (`Result.scope`);
        findings are those of the selected part.
    cache
        Takes a report that was kept for this capture and these options, and keeps a new one: `memlens.capture.store.kept`.
    """
    import re

    if skip_frames is not None:
        capture.skip_frames = re.compile(skip_frames)

    def make() -> Report:
        part = capture
        if selection:
            from ._select import select

            part = select(capture, selection)
        return _made(part, memory_limit_bytes=memory_limit_bytes, machine=machine, progress=progress)

    if not cache or registry.has_plugins("analysis", "finding"):  # their code may change without a new version
        return make()
    from ._kept_report import kept_or_made

    said = {
        "memory_limit_bytes": memory_limit_bytes,
        "machine": machine,
        "skip_frames": skip_frames,
        "selection": repr(selection or None),
    }
    return kept_or_made(capture, said, make, lambda parts: _complete(capture, parts))


def _complete(capture: Capture, parts: dict[str, Any]) -> Report:
    """A report of kept parts: what is quickly made is made anew."""
    from ..results import Report

    return Report(
        parts["title"], dict(capture.meta), parts["results"], parts["findings"], parts["quality"], views_of(parts["results"]),
        parts["absences"], parts["selection"],
    )  # fmt: skip


def _made(
    capture: Capture,
    *,
    memory_limit_bytes: int | None,
    machine: str | None,
    progress: Callable[[int, int, str], None] | None,
) -> Report:
    import os

    from ..errors import NoDataError
    from ..results import Report

    options: dict[str, dict[str, object]] = {}
    if progress is not None:
        options["locality"] = {"progress": _named(progress, "accesses")}
    if memory_limit_bytes is not None:
        options.setdefault("locality", {})["memory_limit_bytes"] = memory_limit_bytes
    if machine is not None:
        options.setdefault("caches", {})["machine"] = machine
    results = run_all(capture, options)
    if not results:
        quality = capture.quality
        if quality.truncated:
            raise NoDataError(
                f"{capture.path} holds no measurements: {' '.join(quality.notes)}",
                hint="the capture was cut short or damaged; record again",
            )
        raise NoDataError(
            f"{capture.path} holds no measurements",
            hint="the program may have ended at once, or no collector could run: see memlens doctor",
        )
    command = capture.meta.get("command")
    if command:
        title = " ".join([os.path.basename(command[0]), *command[1:]])
    elif capture.meta.get("pid"):
        title = f"process {capture.meta['pid']}"
    else:  # the program wrote the capture itself
        names = dict.fromkeys(name for name in capture.table("processes").column("name").to_pylist() if name)
        title = ", ".join([*names][:3]) or capture.path.name
    if capture.selection:
        title = f"{title}  [{capture.selection}]"
    return Report(
        title, dict(capture.whole.meta), results, check_findings(capture, results), capture.quality, views_of(results),
        absences_of(capture, results), capture.selection,
    )  # fmt: skip
