"""Analyses: pure functions from a capture to a Result. Nothing prints here.

>>> import memlens
>>> capture = memlens.open("run.memlens")                  # doctest: +SKIP
>>> memlens.analyses.run("first_touch", capture).figures   # doctest: +SKIP

One file is one analysis with a DESCRIPTOR; `findings/` holds one file a finding.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from .. import registry
from ..errors import CaptureError
from ..registry import AnalysisDescriptor, FindingDescriptor
from ..view import Absence, View, guessed

if TYPE_CHECKING:
    from ..capture.reader import Capture
    from ..results import Finding, Report, Result

SEVERITIES = ("high", "medium", "low")


def list() -> dict[str, str]:
    """Every analysis and the question that it answers; `run` runs one by name.

    >>> list()["first_touch"]
    'Which function, line, thread and node placed the pages?'
    """
    return {name: descriptor.question for name, descriptor in registry.all_of("analysis").items()}


def run(name: str, capture: Capture, **options: Any) -> Result:
    """Runs one analysis by name."""
    result: Result = registry.all_of("analysis")[name].run(capture, **options)
    return result


def locality(capture: Capture, **options: Any) -> Result:
    """Footprint, growth and reuse of data; see `memlens.analyses.data_locality.locality`.

    >>> locality(capture, by="function", line_bytes=64).tables["by_function"]   # doctest: +SKIP
    """
    from .data_locality import locality as analyse

    return analyse(capture, **options)


def run_all(capture: Capture, options: Mapping[str, Mapping[str, Any]] | None = None) -> dict[str, Result]:
    """Every analysis of one capture that this one has data for, by name; `options` by the name of the analysis."""
    kinds = _present(capture)
    wanted = {
        name: descriptor
        for name, descriptor in registry.all_of("analysis").items()
        if descriptor.captures == 1 and descriptor.in_report and all(need in kinds for need in descriptor.needs)
    }
    read = _read_once(capture, {name: d for name, d in wanted.items() if d.consumer is not None}, options or {})
    results: dict[str, Result] = {}
    for name, descriptor in wanted.items():
        run_one = partial(_run, descriptor, capture, **(options or {}).get(name, {}))
        is_read = descriptor.consumer is not None
        result = read.get(name) if is_read else registry.guarded("analysis", descriptor, run_one, None)
        if result is not None:
            results[name] = result
    return {
        name: one
        if wanted[name].join is None
        else registry.guarded("analysis", wanted[name], partial(wanted[name].join, one, results), one)
        for name, one in results.items()
    }


def _run(descriptor: AnalysisDescriptor, capture: Capture, **options: Any) -> Result:
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

    found = [*descriptor.check(capture, results)]
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

    if not wanted:
        return {}
    accesses = ThreadAccesses(capture)
    mine = {name: dict(options.get(name, {})) for name in wanted}
    progress = [one.pop("progress") for one in mine.values() if "progress" in one]
    made = {
        name: registry.guarded("analysis", descriptor, partial(descriptor.consumer, capture, **mine[name]), None)
        for name, descriptor in wanted.items()
    }
    consumers = {name: consumer for name, consumer in made.items() if consumer is not None}
    failures = sweep(accesses, consumers.values(), progress=progress[0] if progress else None)
    taken = {
        name: registry.guarded("analysis", wanted[name], partial(_taken, consumer, failures.get(id(consumer))), None)
        for name, consumer in consumers.items()
    }
    return {name: result for name, result in taken.items() if result is not None}


def _taken(consumer: Any, error: BaseException | None) -> Result:
    """What a consumer has when all accesses were read, or what it makes of an error."""
    if error is None:
        result: Result = consumer.snapshot()
        return result
    if hasattr(consumer, "failed"):
        failed: Result = consumer.failed(error)
        return failed
    raise error


def check_findings(capture: Capture, results: dict[str, Result]) -> builtins.list[Finding]:
    """Every finding whose predicate holds, gravest first."""
    found: builtins.list[Finding] = []
    for descriptor in registry.all_of("finding").values():
        if all(name in results for name in descriptor.analyses):
            nothing: builtins.list[Finding] = []
            found.extend(
                registry.guarded("finding", descriptor, partial(_check, descriptor, capture, results), nothing)
            )
    return sorted(found, key=lambda finding: SEVERITIES.index(finding.severity))


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
        if descriptor.captures == 1 and descriptor.in_report and name not in results and descriptor.provide
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
    cache
        Takes a report that was kept for this capture and these options, and keeps a new one: `memlens.capture.store.kept`.
    """
    import re

    if skip_frames is not None:
        capture.skip_frames = re.compile(skip_frames)

    def make() -> Report:
        return _made(capture, memory_limit_bytes=memory_limit_bytes, machine=machine, progress=progress)

    if not cache:
        return make()
    from ._kept_report import kept_or_made

    said = {"memory_limit_bytes": memory_limit_bytes, "machine": machine, "skip_frames": skip_frames}
    return kept_or_made(capture, said, make, lambda parts: _complete(capture, parts))


def _complete(capture: Capture, parts: dict[str, Any]) -> Report:
    """A report of kept parts: what is quickly made is made anew."""
    from ..results import Report

    return Report(
        parts["title"], capture.meta, parts["results"], parts["findings"], parts["quality"], views_of(parts["results"]),
        parts["absences"],
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

    options: dict[str, dict[str, Any]] = {}
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
    return Report(
        title, capture.meta, results, check_findings(capture, results), capture.quality, views_of(results),
        absences_of(capture, results),
    )  # fmt: skip
