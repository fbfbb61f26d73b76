"""CPU time of reports is the program's: the cost of recording faults is measured and taken off."""

from __future__ import annotations

import os
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import needs_faults, workload_path

import memlens
from memlens.analyses.faults import recording_seconds
from memlens.analyses.findings._activity import cpu_seconds
from memlens.selection import Selection

ARGUMENTS = ("--pages", "16384", "--iterations", "4")


def native_system_s(*command: str) -> float:
    """System time of the program alone, the least of three runs."""
    found = []
    for _ in range(3):
        pid = os.posix_spawn(
            command[0], command, os.environ, file_actions=[(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]
        )
        found.append(os.wait4(pid, 0)[2].ru_stime)
    return min(found)


@needs_faults
@pytest.mark.parametrize("options", [(), ("--single",)])
def test_system_time_is_nearer_to_the_program_alone_than_the_kernels_sum(
    record: Callable[..., memlens.Capture], options: tuple[str, ...]
) -> None:
    """65,536 faults, by CPU clocks: the events add as much as the faults themselves take."""
    program = str(workload_path("fault_cost"))
    capture = record(program, *ARGUMENTS, options=options)
    figures = memlens.analyses.run("faults", capture).figures
    recorded_s = capture.meta["rusage"]["system_s"]
    assert capture.meta["fault_recording_ns"] > 100, "no fault event costs less"
    assert figures["system_s"] == pytest.approx(recorded_s - figures["recording_s"])
    assert figures["recording_s"] == pytest.approx(
        capture.meta["fault_recording_ns"] * (figures["faults"] + figures["own_faults"]) / 1e9
    )
    alone_s = native_system_s(program, *ARGUMENTS)
    assert abs(figures["system_s"] - alone_s) < abs(recorded_s - alone_s)


def capture_of(collectors: dict[str, Any], faults: int, **meta: Any) -> Any:
    return SimpleNamespace(
        meta={"collectors": collectors, "rusage": {"user_s": 1.0, "system_s": 2.0}, **meta},
        selection=Selection(),
        table=lambda name: SimpleNamespace(num_rows=0),
        replay=SimpleNamespace(own_faults=0, fault_count=faults),
    )


@pytest.mark.parametrize(
    ("collectors", "meta", "expected_s"),
    [
        ({}, {}, 0.0),
        ({"faults": {"single": False}}, {}, 1.1),
        ({"faults": {"single": True}}, {"fault_recording_ns": None}, 0.6),
        ({"faults": {"single": True}}, {"fault_recording_ns": 800.0}, 0.8),
        ({"faults": {"single": False}}, {"fault_recording_ns": 9000.0}, 9.0),
    ],
)
def test_cost_is_the_measured_one_else_the_documented_one(
    collectors: dict[str, Any], meta: dict[str, Any], expected_s: float
) -> None:
    capture = capture_of(collectors, 1_000_000, **meta)
    assert recording_seconds(capture) == pytest.approx(expected_s)
    assert cpu_seconds(capture) == pytest.approx((1.0, max(2.0 - expected_s, 0.0)))


def test_a_session_measures_what_its_events_cost() -> None:
    """Two events cost more than one, and one in 31 costs least; a session that sees no faults has measured nothing."""
    from memlens import _recorder

    session = _recorder.Session(faults=True, stack_mode=0, timeline_hz=0.0, budget_share=0.03)
    session.attach(os.getpid(), enable_on_exec=False)
    session.start()
    session.stop()
    costs = session.fault_costs()
    if costs is not None:  # else noise was larger than the differences
        assert costs[0] > costs[1] > costs[2] > 0
    without = _recorder.Session(faults=False, timeline_hz=0.0)
    without.attach(os.getpid(), enable_on_exec=False)
    without.start()
    without.stop()
    assert without.fault_costs() is None
