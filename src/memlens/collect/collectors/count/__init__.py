"""Collector `count`: IR-exact counts of a program that was built with `memlens cc`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ....capture.store import count_records
from ....errors import CollectorError
from ....registry import Asked, CollectorDescriptor, Option
from ...compiled.arena import CountOptions
from ...compiled.built import built, why_not
from ...compiled.programs import CompiledPrograms
from ...facts import Availability
from ...protocol import Collector
from .options import parse

if TYPE_CHECKING:
    from ...facts import Facts


def probe(facts: Facts) -> Availability:
    events = (
        "perf events at the ends of regions" if facts["has_pmu"] else "no hardware events: this machine shows no PMU"
    )
    detail = f"programs built with memlens cc; {events}"
    if facts["clang"]:
        return Availability(True, detail)
    return Availability(
        True,
        detail,
        (
            (
                "programs can be recorded, but not built here: no clang is installed",
                "sudo apt-get install clang llvm-dev",
            ),
        ),
    )


def settings(values: Mapping[str, Any], asked: Asked) -> CountOptions:
    return CountOptions() if values["count"] is None else parse(values["count"])


def wanted(program: str, options: CountOptions, is_asked: bool) -> bool:
    """Whether the program may count; an error when that was asked for and cannot be."""
    reason = why_not(program)
    if reason is None:
        found = built(program)
        return is_asked or found.counted or not found.traced  # else its tables are there for traces alone
    if is_asked and not options.children:
        raise CollectorError(reason[0], hint=reason[1])
    return options.children


class Count(Collector[CountOptions]):
    """The arena is shared (`compiled/programs.py`); this says how its counters count, and what came of it."""

    processes = "own"

    def prepare(self, program: str) -> None:
        self._programs = self.recording.shared(CompiledPrograms)
        self._programs.options = self.settings
        self._programs.users.append(self.name)

    def describe(self) -> dict[str, object]:
        assert self._programs.arena is not None
        return self._programs.arena.settings

    def finish(self) -> list[str]:
        totals, arena = self._programs.totals, self._programs.arena
        assert arena is not None
        if totals["images"]:
            return [*count_records.notes(totals), *count_records.pattern_notes(arena.matches)]
        self.recording.was_not_used(self.name)  # a script that started nothing counted
        if self.recording.is_asked(self.name):
            return ["Nothing counted: no program or library that ran was built with memlens cc."]
        return []


def words(options: Mapping[str, Any]) -> list[str]:
    how = str(options.get("sampling", "all"))
    said = [
        {
            "all": "every execution",
            "every": f"every {options.get('every')}th execution",
            "random": f"one execution in {options.get('every')}, at random",
            "budget": f"executions sampled to cost at most {options.get('budget_ppm', 0) / 10_000:g} %",
        }.get(how, how)
    ]
    if options.get("epoch_s"):
        said.append(f"read every {1000 * options['epoch_s']:g} ms")
    return said


def quality(options: Mapping[str, object], meta: Mapping[str, object], is_incomplete: bool, lost: int) -> list[str]:
    how = options.get("sampling", "all")
    return [f"counted: {'every execution' if how == 'all' else f'sampled executions ({how})'}, IR-exact"]


DESCRIPTOR = CollectorDescriptor(
    name="count",
    question="How many bytes does each region read and write (IR-exact), how fast, and in which thread?",
    needs=("a program built with memlens cc",),
    gives=(
        "block_count", "region_node", "region_time", "counted_module", "count_tables", "count_status", "count_epoch",
        "region_span", "sample_group", "sample_count", "region_duration",
    ),
    options=(
        Option(
            "--count",
            "a program built with memlens cc counts its accesses by default; HOW, after =, joined by commas: every=N (one "
            "execution of a region in N, at random), first=K (and the first K), periodic (every N-th instead), seed=N, "
            "budget=1% (limit the overhead to 1 %), epoch=100ms (values over time), events=A+B (perf events at the ends of "
            "regions), threads=N, counters=N, children (only programs that it starts have counters)",
            metavar="HOW", bare="", shown="all",
        ),
    ),
    order=10,
    main="--count",
    needs_start=(
        "counters are read from memory that a program gets when it starts; this one runs already",
        "start the program with memlens record",
    ),
    probe=probe,
    settings=settings,
    wanted=wanted,
    make=Count,
    words=words,
    quality=quality,
)  # fmt: skip
