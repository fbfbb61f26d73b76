"""Collector `timeline`: RSS, PSS, faults and CPU time over time, from /proc; the cgroup's memory and limit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ....errors import UsageError
from ....registry import Asked, CollectorDescriptor, Option
from ...facts import Availability
from ...program import memory_cgroup
from ...protocol import Collector, SessionPlan
from .readings import Readings

if TYPE_CHECKING:
    from ...facts import Facts


@dataclass(frozen=True)
class TimelineOptions:
    rate_hz: float = 10.0


def probe(facts: Facts) -> Availability:
    return Availability(True, "RSS, PSS, huge pages, faults, CPU time and cgroup limit over time")


def settings(values: Mapping[str, Any], asked: Asked) -> TimelineOptions:
    rate = values["rate"]
    if not 1 <= rate <= 1000:
        raise UsageError(f"--rate {rate:g} is out of range", hint="give 1 to 1000 readings a second")
    return TimelineOptions(float(rate))


class Timeline(Collector[TimelineOptions]):
    """Cheap readings are made by the session's own thread, at the rate; the costly ones here."""

    def plan_session(self, plan: SessionPlan) -> None:
        plan.timeline_hz = self.settings.rate_hz

    def describe(self) -> dict[str, object]:
        return vars(self.settings).copy()

    def attach(self, pid: int) -> None:
        recording = self.recording
        self._readings = Readings(recording.session, recording.writer, nodes=recording.facts["numa_nodes"])
        cgroup = memory_cgroup(pid)
        if cgroup is not None:
            self._readings.watch_cgroup(*cgroup[1:])

    def tick(self) -> None:
        self._readings.tick()

    def end(self, counts: Mapping[str, int], status: int | None) -> list[str]:
        self.recording.ledger("slow", {"smaps_rollup_reads": self._readings.rollups})
        if not counts["timeline_late_ticks"]:
            return []
        return [
            f"{counts['timeline_late_ticks']} of {counts['timeline_ticks']} timeline readings were late by more than "
            "one interval (table timeline, column interval_us, has the true ones)."
        ]


def words(options: Mapping[str, object]) -> list[str]:
    return [f"{options['rate_hz']:g} readings a second"] if "rate_hz" in options else []


def quality(options: Mapping[str, object], meta: Mapping[str, object], is_incomplete: bool, lost: int) -> list[str]:
    return [f"timeline sampled at {options.get('rate_hz', 0):g} Hz"]


DESCRIPTOR = CollectorDescriptor(
    name="timeline",
    question="How much memory does the program hold over time, and how near is that to its limits?",
    needs=("/proc",),
    gives=("timeline", "pinning"),
    options=(Option("--rate", "timeline readings a second, 1 to 1000 (10)", 10.0, float, "HZ", shown="10"),),
    order=40,
    foreign="the size",
    probe=probe,
    settings=settings,
    make=Timeline,
    words=words,
    quality=quality,
)
