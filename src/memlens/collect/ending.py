"""The end of a recording: what was counted becomes records, what was lost becomes notes, the side tables are written."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from ..capture.store import count_arena, count_records
from ..capture.store.layouts import Packer, enum_value
from ..errors import os_reason
from . import counting, emulator, tracing
from .finishing import Finished, Work, finish_apart
from .record_options import Outcome

if TYPE_CHECKING:
    from ..capture.reader import Capture
    from .recorder import Recorder


def _quality_notes(run: Recorder, counts: dict[str, int], status: int | None) -> list[str]:
    notes = list(run.notes)
    if run.launch is not None and status is not None and os.WIFSIGNALED(status):
        notes.extend(emulator.why_it_ended(run.launch, os.WTERMSIG(status)))
    if counts["timeline_late_ticks"]:
        notes.append(
            f"{counts['timeline_late_ticks']} of {counts['timeline_ticks']} timeline readings were late by more than "
            "one interval (table timeline, column interval_us, has the true ones)."
        )
    if counts["ring_lost"]:
        ring_kib = run.session.facts()["ring_bytes"] >> 10
        notes.append(
            f"{counts['ring_lost']} kernel records found a perf ring of {ring_kib} KiB full. Allow larger ones "
            "(sudo sysctl kernel.perf_event_mlock_kb=8192), or halve what is recorded with --single."
        )
    if counts["throttled"]:
        notes.append(f"The kernel throttled perf events {counts['throttled']} times.")
    if run.slow.node_pages_skipped:
        notes.append(f"The NUMA nodes of {run.slow.node_pages_skipped} pages were not asked: too many faults a second.")
    if run.channel is not None:
        notes.extend(_channel_notes(run.channel.counts()))
    failure = run.writer.failure
    if failure is not None:
        notes.append(
            f"Writing stopped in the middle ({os_reason(failure)}); {run.writer.dropped_records} records after that "
            "are missing."
        )
    if "faults" not in run.collectors and run.arena is None and run.collectors.names != ["count"]:
        notes.append("Processes that lived shorter than one timeline interval may be missing (found by polling).")
    return notes


def _write_counts(run: Recorder, arena: emulator.Arena) -> None:
    """What the emulated processes counted, from the memory that they left."""
    from ..capture.reader import Capture

    pids = {row["pid"]: row["process"] for row in Capture(run.writer.root).table("processes").to_pylist()}
    totals = emulator.write_counts(run.writer, arena, pids)
    run.writer.meta["emulate"] = {**totals, "refused_blocks": arena.refused}
    arena.close()


def _write_counting(run: Recorder, running: counting.Counting) -> list[str]:
    """What counted processes left in their memory, as records; returns notes for the quality."""
    from ..capture.reader import Capture

    rows = Capture(run.writer.root).table("processes").to_pylist()
    find = counting.with_process_ends(rows)
    next_process = max((row["process"] for row in rows), default=0) + 1
    strings = Packer("string")
    ids = {text: number for number, text in run.writer.strings.items()}

    def string_id(text: str) -> int:
        if text not in ids:
            ids[text] = max(run.writer.strings, default=0) + 1
            run.writer.records("string", [strings.pack(text.encode(), id=ids[text])])
        return ids[text]

    made: dict[int, int] = {}

    def process_of(image: count_arena.ImageEntries) -> tuple[int, int]:
        nonlocal next_process
        found = find(image)
        if found is not None:
            return found
        if image.pid not in made:  # too short-lived to be seen otherwise, or in a PID namespace of its own
            made[image.pid] = next_process
            next_process += 1
            name = image.modules[0].path if image.modules else ""
            event = Packer("process_event").pack(
                time_ns=image.born_ns, pid=image.pid, thread=image.pid, status=-1,
                operation=enum_value("process_operation", "seen"), name=string_id(name) if name else 0,
            )  # fmt: skip
            run.writer.records(
                "process_event", [event], process=made[image.pid], begin_ns=image.born_ns, end_ns=image.born_ns
            )
        return made[image.pid], 0

    totals = running.finish(run.writer, string_id, process_of)
    running.close()
    run.writer.meta["count"] = {**totals, "reading_s": running.cost_s}
    found = [] if run.trace is None else _trace_notes(run, running)
    if not totals["images"]:  # a script that started nothing counted
        run.writer.meta["collectors"].pop("count", None)
        if run.options.count is not None or "count" in (run.options.collectors or ()):
            found = ["Nothing counted: no program or library that ran was built with memlens cc.", *found]
        return found
    counted = (
        [*count_records.notes(totals), *count_records.pattern_notes(running.matches)]
        if "count" in run.collectors
        else []
    )
    return [*counted, *found]


def _trace_notes(run: Recorder, running: counting.Counting) -> list[str]:
    assert run.trace is not None
    found = tracing.totals(running.processes)
    run.writer.meta["trace"] = found
    if not found["images"] and not found["images_without_library"]:
        run.writer.meta["collectors"].pop("trace", None)
        return ["No traced program ran: nothing has recorded its accesses."]
    unseen = [path for module, path in running.traced.items() if run.selection and module not in run.selection.modules]
    return tracing.notes(found, windows=not run.trace.full, unseen=unseen)


def end(run: Recorder, status: int | None, wall_s: float) -> Outcome:
    """Completes the capture after the program's end."""
    counts = dict(run.session.counts())
    processes = counts["processes"]
    outcome = Outcome(run.options.output, status, wall_s, 0, processes, counts)
    notes = _quality_notes(run, counts, status)
    run.writer.meta.update(
        end_ns=time.monotonic_ns(),
        wall_s=wall_s,
        wait_status=status,
        session={**run.session.facts(), **counts},
        **({"channel": run.channel.counts()} if run.channel is not None else {}),
        slow={
            "page_table_looks": run.slow.looks,
            "page_table_looks_failed": run.slow.looks_failed,
            "smaps_rollup_reads": run.slow.rollups,
            "node_pages_asked": run.slow.node_pages_asked,
            "window_pages_asked": run.window_pages.pages_asked if run.window_pages else 0,
            "window_batches_not_asked": run.window_pages.batches_passed_over if run.window_pages else 0,
        },
        quality={
            "notes": notes,
            "incomplete": run.writer.failure is not None or run.failure is not None,
            "stack": run.options.stacks if "faults" in run.collectors else "none",
        },
    )
    if "faults" in run.collectors and run.failure is None:
        costs = run.session.fault_costs()
        run.writer.meta["fault_recording_ns"] = None if costs is None else costs[run.options.single]
    try:
        run.writer.write_later()
    except Exception as error:
        run.give_up(error)
    finished = finish_apart(
        run.writer,
        Work(lambda: _write_lasting(run), lambda wrote: _write_tables(run, wrote), run.summarise),
        while_finishing=run.while_finishing,
    )
    notes.extend(finished.notes)
    _conclude(run, finished, notes)
    outcome.record_bytes = run.writer.record_bytes
    outcome.notes = notes
    outcome.interrupted = finished.interrupted
    run.is_displaced = not run.writer.directory.is_in_place
    run.writer.directory.close()
    return outcome


def _write_lasting(run: Recorder) -> list[str]:
    """Records of what lies in memory only; returns notes."""
    if run.arena is not None:
        _write_counts(run, run.arena)
    notes = _write_counting(run, run.counting) if run.counting is not None else []
    run.writer.meta["quality"]["notes"].extend(notes)
    return notes


def _write_tables(run: Recorder, wrote: Callable[[], None]) -> Capture:
    from . import finish  # Arrow and NumPy come with it: not before the program has ended

    sections = run.counting.sections if run.counting is not None else None
    return finish.write_side_tables(run.writer, count_sections=sections, wrote=wrote)


def _conclude(run: Recorder, finished: Finished, notes: list[str]) -> None:
    """meta.json of a capture that was not finished: its records are whole, and a reader makes the tables."""
    quality = run.writer.meta.setdefault("quality", {"notes": []})
    if not finished.has_counts:
        quality["notes"] = notes
    if finished.failure is not None:
        run.give_up(RuntimeError(finished.failure), text=finished.failure)
        quality.update(notes=[*quality["notes"], run.notes[-1]], incomplete=True)
    elif not finished.is_finished and not finished.has_counts and (run.arena is not None or run.counting is not None):
        why = finished.reason or "it was interrupted"
        quality["notes"].append(f"What the program counted is not in the capture: reading it was ended early, {why}.")
        quality["incomplete"] = True
    elif not finished.is_finished:
        why = finished.reason or "it was interrupted"
        quality["notes"].append(
            f"Naming code and writing tables was ended early: {why}. Whoever reads the capture makes what is missing, from "
            "its records and from programs and libraries as they are then."
        )
    if not finished.is_finished:
        run.unfinished = f"naming code and writing tables was ended early: {finished.reason or 'interrupted'}"
    elif run.summarise is not None and not finished.summary_ended:
        run.unfinished = f"no summary: {finished.reason or 'interrupted'}"
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
            "memory and were given up."
        )
    if counts["refused"]:
        notes.append(
            f"{counts['refused']} processes ran without recorded allocations: more ran at one time than there was room for."
        )
    if counts["left_out"]:
        notes.append(
            f"{counts['left_out']} programs were started without the library: built for 32 bits or another machine, in another root "
            "directory, without permission to read it or without a descriptor. What they and their children allocated is not recorded."
        )
    if counts["other_malloc"]:
        notes.append(
            f"The heap objects of {counts['other_malloc']} processes are not recorded: their program has a malloc of its own "
            "linked in (clang's sanitizers do)."
        )
    if counts["untracked"]:
        notes.append(f"{counts['untracked']} objects seem to live to the end: too many sampled ones lived at one time.")
    if counts["nested"]:
        notes.append(
            f"{counts['nested']} calls of malloc and free were left out: they came from a signal handler that had interrupted "
            "the recording of another."
        )
    if counts["waited_ns"] > 100_000_000:
        notes.append(
            f"The program waited {counts['waited_ns'] / 1e9:.1f} s for the recorder to take its records "
            "(sample instead of recording every object)."
        )
    return notes
