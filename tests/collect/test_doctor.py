"""The causes of a refused measurement are told apart."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from memlens.collect.collectors import emulate, faults, sample, timeline, trace
from memlens.collect.collectors.emulate import emulator
from memlens.collect.facts import why_no_perf_event

GOOD: dict[str, Any] = {
    "fault_event_errno": 0, "fault_kernel_errno": 0, "hardware_event_errno": 0, "page_size_errno": 0, "ring_errno": 0,
    "pagemap_errno": 0, "move_pages_errno": 0, "seccomp_mode": 0, "perf_event_paranoid": 1, "perf_event_mlock_kb": 516,
    "memlock_limit_bytes": 8 << 20, "root": False, "has_perf_capability": False, "pmu_devices": ["cpu"], "has_pmu": True,
    "memory_sampling": [], "clang": ["clang-16"], "qemu_user": "/usr/bin/qemu-x86_64", "numa_nodes": 1,
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "reason", "remedy"),
    [
        ({"perf_event_paranoid": 4}, "perf_event_paranoid is 4", "sysctl kernel.perf_event_paranoid=2"),
        ({"perf_event_paranoid": 2, "seccomp_mode": 2}, "seccomp", "--security-opt"),
        ({"perf_event_paranoid": 2}, "CAP_PERFMON", "setcap"),
        ({"perf_event_paranoid": None}, "no perf events", "CONFIG_PERF_EVENTS"),
        ({"perf_event_paranoid": -1, "has_perf_capability": True}, "security module", "dmesg"),
    ],
)
def test_a_refused_event_has_its_own_cause_and_remedy(changes: dict[str, Any], reason: str, remedy: str) -> None:
    why, command = why_no_perf_event({**GOOD, **changes}, errno.EACCES)
    assert reason in why and remedy in command
    availability = faults.probe({**GOOD, **changes, "fault_event_errno": errno.EACCES})
    assert not availability.usable and availability.reasons[0] == (why, command)


def test_a_kernel_without_perf() -> None:
    why, _ = why_no_perf_event(GOOD, errno.ENOSYS)
    assert "without perf events" in why


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"ring_errno": errno.EPERM}, "mlock limit"),
        ({"fault_kernel_errno": errno.EACCES}, "system calls"),
        ({"page_size_errno": errno.EINVAL}, "page sizes"),
        ({"pagemap_errno": errno.EACCES}, "pagemap"),
        ({"move_pages_errno": errno.EPERM, "numa_nodes": 2}, "move_pages"),
    ],
)
def test_partial_limits_of_faults(changes: dict[str, Any], words: str) -> None:
    availability = faults.probe({**GOOD, **changes})
    assert availability.usable
    assert any(words in reason for reason, _ in availability.reasons)


def test_everything_there() -> None:
    assert faults.probe(GOOD).reasons == ()
    assert timeline.probe(GOOD).usable


def test_no_pmu_no_llvm_and_no_qemu_are_told_apart(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    bare = {**GOOD, "has_pmu": False, "pmu_devices": [], "clang": [], "qemu_user": None}
    monkeypatch.setenv("PATH", str(tmp_path))
    emulator.find.cache_clear()
    assert "no PMU" in sample.probe(bare).reasons[0][0]
    assert "LLVM" in trace.probe(bare).reasons[0][0]
    assert emulate.probe(bare).reasons == (
        (f"qemu-user for {os.uname().machine} is not installed", "sudo apt-get install qemu-user"),
    )
    emulator.find.cache_clear()
    refused = {**GOOD, "hardware_event_errno": errno.EACCES, "perf_event_paranoid": 4}
    assert "perf_event_paranoid" in sample.probe(refused).reasons[0][0]
