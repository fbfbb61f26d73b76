"""Collector `trace`: addresses of accesses in windows, of a program that was built with `memlens cc --memlens=trace`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ....capture.store import counted_modules
from ....errors import CollectorError
from ....registry import Asked, CollectorDescriptor, Option
from ...compiled.built import built
from ...compiled.programs import CompiledPrograms
from ...facts import Availability
from ...function_pattern import function_pattern
from ...protocol import Batch, ChannelPlan, Collector
from . import tracing
from .tracing import Selection, TraceOptions
from .window_pages import WindowPages

if TYPE_CHECKING:
    from ...facts import Facts
    from ...recorder import Recorder

WAIT_MS = 5000
"""Where the program is to wait for room rather than lose a window."""


def probe(facts: Facts) -> Availability:
    detail = "programs built with memlens cc --memlens=trace"
    if facts["clang"]:
        return Availability(True, detail)
    return Availability(
        True,
        detail,
        (
            (
                "programs can be recorded, but not built here: LLVM is missing, no clang is installed",
                "sudo apt-get install clang llvm-dev",
            ),
        ),
    )


def settings(values: Mapping[str, Any], asked: Asked) -> TraceOptions:
    if values["trace"] is None:
        return TraceOptions()
    return replace(tracing.parse(values["trace"]), functions=function_pattern(values["functions"] or ""))


def wanted(program: str, options: TraceOptions, is_asked: bool) -> bool:
    """Whether the program may record accesses. A script may start one that was built for it."""
    if built(program).traced:
        return True
    if is_asked and counted_modules.is_elf(program):
        reason, remedy = tracing.why_not(program)
        raise CollectorError(reason, hint=remedy)
    return is_asked


class Trace(Collector[TraceOptions]):
    """Windows come through the channel; sites have their numbers from the arena of compiled programs."""

    def __init__(self, options: TraceOptions, recording: Recorder) -> None:
        super().__init__(options, recording)
        self._selection: Selection | None = None
        self._pages: WindowPages | None = None

    def prepare(self, program: str) -> None:
        self._programs = self.recording.shared(CompiledPrograms)
        self._programs.users.append(self.name)
        if self.settings.functions:
            self._selection = tracing.select(program, self.settings.functions)
            self._programs.selection = self._selection.content
        self.settings = self.settings.drawn()

    def plan_channel(self, plan: ChannelPlan) -> None:
        plan.users.append(self.name)
        plan.windows = True
        plan.ring_bytes, plan.slot_max = tracing.RING_BYTES, 256
        if self.settings.wait:
            plan.wait_at_least(WAIT_MS)

    def environment(self) -> list[str]:
        return [self.settings.variable]

    def describe(self) -> dict[str, Any]:
        return self.settings.settings

    def attach(self, pid: int) -> None:
        self.recording.resolve_nodes()
        if self.recording.facts["numa_nodes"] > 1:
            self._pages = WindowPages(self.recording.session, page_bytes=os.sysconf("SC_PAGE_SIZE"))

    def batch(self, batch: Batch) -> None:
        if self._pages is not None and batch.kind == self._pages.kind:
            self._pages.take(batch.process, batch.payload)

    def end(self, counts: Mapping[str, int], status: int | None) -> list[str]:
        pages = self._pages
        self.recording.ledger(
            "slow",
            {
                "window_pages_asked": pages.pages_asked if pages else 0,
                "window_batches_not_asked": pages.batches_passed_over if pages else 0,
            },
        )
        return []

    def finish(self) -> list[str]:
        arena = self._programs.arena
        assert arena is not None
        found = tracing.totals(arena.processes)
        self.recording.ledger(self.name, found)
        if not found["images"] and not found["images_without_library"]:
            self.recording.was_not_used(self.name)
            return ["No traced program ran: nothing has recorded its accesses."]
        known = self._selection.modules if self._selection is not None else frozenset(arena.traced)
        unseen = [path for module, path in arena.traced.items() if module not in known]
        return tracing.notes(found, windows=not self.settings.full, unseen=unseen)


def words(options: Mapping[str, Any]) -> list[str]:
    window, period = options.get("window") or 0, options.get("period") or 0
    return [f"windows of {window:,} in {period:,} accesses" if period > window else "every access"]


DESCRIPTOR = CollectorDescriptor(
    name="trace",
    question="In which order does a program access which addresses, from which lines, and how regularly?",
    needs=("a program built with memlens cc --memlens=trace",),
    gives=("window", "traced_module", "trace_status", "count_tables", "count_status", "placement"),
    options=(
        Option(
            "--trace",
            "a program built with memlens cc --memlens=trace records addresses in windows by default; HOW, after =, joined by "
            "commas: window=N,period=N (windows of N accesses, one in each period; default 1000 in 100000), full (all of them), loads (no stores), "
            "regions=A+B (only there), seed=N, stacks=off, on-full=drop|wait (what happens when the recorder is behind; default drop)",
            metavar="HOW", bare="", shown="1000 in 100000",
        ),
        Option(
            "--functions",
            "with --trace: record only accesses of the code of these functions and of what was inlined into them; "
            "@FILE: expressions of a file, one a line",
            metavar="REGEX", shown="–", only_with="--trace",
        ),
    ),
    order=20,
    main="--trace",
    needs_start=(
        "a program records its accesses through a library that it loads when it starts; this one runs already",
        "start the program with memlens record",
    ),
    probe=probe,
    settings=settings,
    wanted=wanted,
    make=Trace,
    words=words,
)  # fmt: skip
