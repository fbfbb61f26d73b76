"""The end of a recording: what collectors hold becomes records, what was lost becomes notes, the side tables are written."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING, Protocol

from ..errors import os_reason
from .finishing import Finished, Work, finish_apart
from .record_options import Outcome
from .recording import Recording

if TYPE_CHECKING:
    from ..capture.reader import Capture


class Ending(Protocol):
    """What whoever ends a recording wants of it, and is told."""

    @property
    def while_finishing(self) -> Callable[[], AbstractContextManager[None]]: ...
    @property
    def summarise(self) -> Callable[[Capture], None] | None: ...

    is_displaced: bool
    unfinished: str | None


def _quality_notes(run: Recording, counts: dict[str, int], status: int | None) -> list[str]:
    said = [note for one in tuple(run.collectors.chosen) for note in run.said_by(one, partial(one.end, counts, status))]
    notes = [*run.notes, *said]
    if counts["ring_lost"]:
        ring_kib = run.session.facts()["ring_bytes"] >> 10
        notes.append(
            f"{counts['ring_lost']} kernel records found a perf ring of {ring_kib} KiB full. Allow larger ones "
            "(sudo sysctl kernel.perf_event_mlock_kb=8192), or halve what is recorded with --single."
        )
    if counts["throttled"]:
        notes.append(f"The kernel throttled perf events {counts['throttled']} times.")
    if run.node_pages_skipped:
        notes.append(f"The NUMA nodes of {run.node_pages_skipped} pages were not asked: too many faults a second.")
    if run.channel is not None:
        notes.extend(_channel_notes(run.channel.counts()))
    failure = run.writer.failure
    if failure is not None:
        notes.append(
            f"Writing stopped in the middle ({os_reason(failure)}); {run.writer.dropped_records} records after that "
            "are missing."
        )
    known = {collector.processes for collector in run.collectors.chosen}
    if "events" not in known and known != {"own"}:
        notes.append("Processes that lived shorter than one timeline interval may be missing (found by polling).")
    return notes


def end(run: Recording, ending: Ending, status: int | None, wall_s: float) -> Outcome:
    """Completes the capture after the program's end."""
    counts = dict(run.session.counts())
    processes = counts["processes"]
    outcome = Outcome(run.options.output, status, wall_s, 0, processes, counts)
    notes = _quality_notes(run, counts, status)
    run.ledger("slow", {"node_pages_asked": run.node_pages_asked})
    run.writer.fields.update(
        end_ns=time.monotonic_ns(),
        wall_s=wall_s,
        wait_status=status,
        session={**run.session.facts(), **counts},
        **({"channel": run.channel.counts()} if run.channel is not None else {}),
        quality={
            "notes": notes,
            "incomplete": run.writer.failure is not None or run.failure is not None,
            **run.quality_facts(),
        },
    )
    try:
        run.writer.write_later()
    except Exception as error:
        run.give_up(error)
    finished = finish_apart(
        run.writer,
        Work(lambda: _write_lasting(run), lambda wrote: _write_tables(run, wrote), ending.summarise),
        while_finishing=ending.while_finishing,
    )
    notes.extend(finished.notes)
    _conclude(run, ending, finished, notes)
    outcome.record_bytes = run.writer.record_bytes
    outcome.notes = notes
    outcome.interrupted = finished.interrupted
    ending.is_displaced = not run.writer.directory.is_in_place
    run.writer.directory.close()
    return outcome


def _write_lasting(run: Recording) -> list[str]:
    """Records of what lies in memory only; returns notes."""
    known = len(run.notes)
    for shared in run.shared_parts():
        shared.finish()
    notes = [note for one in tuple(run.collectors.chosen) for note in run.said_by(one, one.finish)]
    notes += run.notes[known:]
    run.writer.meta["quality"]["notes"].extend(notes)
    return notes


def _write_tables(run: Recording, wrote: Callable[[], None]) -> Capture:
    from . import finish  # Arrow and NumPy come with it: not before the program has ended

    def of_parts(capture: Capture) -> None:
        known = len(run.notes)
        for part in run.parts():
            run.of(part, partial(part.tables, capture), None)
        run.writer.meta["quality"]["notes"].extend(run.notes[known:])

    return finish.write_side_tables(run.writer, more=of_parts, wrote=wrote)


def _conclude(run: Recording, ending: Ending, finished: Finished, notes: list[str]) -> None:
    """meta.json of a capture that was not finished: its records are whole, and a reader makes the tables."""
    quality = run.writer.meta.setdefault("quality", {"notes": []})
    if not finished.has_counts:
        quality["notes"] = notes
    if finished.failure is not None:
        run.give_up(RuntimeError(finished.failure), text=finished.failure)
        quality.update({"notes": [*quality["notes"], run.notes[-1]], "incomplete": True})
    elif not finished.is_finished and not finished.has_counts and any(part.holds_records for part in run.parts()):
        why = finished.reason or "it was interrupted"
        quality["notes"].append(
            f"The counts of the program are not in the capture: reading them was ended early, {why}."
        )
        quality["incomplete"] = True
    elif not finished.is_finished:
        why = finished.reason or "it was interrupted"
        quality["notes"].append(
            f"Naming code and writing tables was ended early: {why}. The reader of the capture makes what is missing, from "
            "its records and from programs and libraries as they are then."
        )
    if not finished.is_finished:
        ending.unfinished = f"naming code and writing tables was ended early: {finished.reason or 'interrupted'}"
    elif ending.summarise is not None and not finished.summary_ended:
        ending.unfinished = f"no summary: {finished.reason or 'interrupted'}"
    if not finished.is_finished:
        run.writer.meta.pop("finishing", None)
        run.writer.finish()


def _channel_notes(counts: dict[str, int]) -> list[str]:
    """What the library inside the processes could not do."""
    notes = []
    if counts["dropped"]:
        notes.append(
            f"{counts['dropped']} records (allocations, annotations, windows of accesses) found no room in the program's rings: objects may "
            "seem to live on, or be missing."
        )
    if counts["damaged"] or counts["holes"]:
        notes.append(
            f"{counts['holes']} records were cut off when a process was killed, {counts['damaged']} processes overwrote our "
            "memory and are no longer recorded."
        )
    if counts["refused"]:
        notes.append(
            f"{counts['refused']} processes ran without recorded allocations: more ran at one time than the channel has room for."
        )
    if counts["left_out"]:
        notes.append(
            f"{counts['left_out']} programs were started without the library: built for 32 bits or another machine, in another root "
            "directory, without permission to read it or without a descriptor. What they and their children allocated is not recorded."
        )
    if counts["other_malloc"]:
        notes.append(
            f"The heap objects of {counts['other_malloc']} processes are not recorded: their program has its own malloc "
            "linked in (as clang's sanitizers do)."
        )
    if counts["untracked"]:
        notes.append(
            f"{counts['untracked']} objects seem to live to the end: too many sampled objects lived at one time."
        )
    if counts["nested"]:
        notes.append(
            f"{counts['nested']} calls of malloc and free were left out: they came from a signal handler that had interrupted "
            "the recording of another."
        )
    if counts["waited_ns"] > 100_000_000:
        notes.append(
            f"The program waited {counts['waited_ns'] / 1e9:.1f} s for the recorder to take its records "
            "(record a sample instead of every object)."
        )
    return notes
