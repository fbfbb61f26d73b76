"""What this machine allows, found by trying: the ground for `memlens doctor` and for
the choice that `memlens record` makes."""

from __future__ import annotations

import errno
import glob
import os
import resource
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from .. import _recorder

CAP_SYS_ADMIN, CAP_PERFMON = 21, 38


@dataclass(frozen=True)
class Availability:
    """Whether a collector works here; if not or not fully, why, and what to type."""

    usable: bool
    detail: str
    reasons: tuple[tuple[str, str], ...] = ()
    """(what is missing and why, the command that changes it)."""


def _number(path: str) -> int | None:
    try:
        return int(Path(path).read_text())
    except (OSError, ValueError):
        return None


def _capabilities() -> int:
    for line in Path("/proc/self/status").read_text(errors="replace").splitlines():
        if line.startswith("CapEff:"):
            return int(line.split()[1], 16)
    return 0


class Facts(TypedDict):
    """What this machine and this user allow; `_errno`: 0, or why not."""

    fault_event_errno: int
    fault_kernel_errno: int
    hardware_event_errno: int
    page_size_errno: int
    ring_errno: int
    pagemap_errno: int
    move_pages_errno: int
    seccomp_mode: int
    perf_event_paranoid: int | None
    perf_event_mlock_kb: int | None
    memlock_limit_bytes: int
    root: bool
    has_perf_capability: bool
    pmu_devices: list[str]
    has_pmu: bool
    memory_sampling: list[str]
    clang: list[str]
    qemu_user: str | None
    numa_nodes: int
    swap: bool
    in_container: bool


def gather() -> Facts:
    """All facts that probes look at."""
    capabilities = _capabilities()
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    devices = sorted(os.path.basename(path) for path in glob.glob("/sys/bus/event_source/devices/*"))
    clangs = sorted({os.path.basename(path) for path in glob.glob("/usr/bin/clang-[0-9]*") if path[-1].isdigit()})
    clang = shutil.which("clang")
    probed: dict[str, int] = _recorder.probe()
    return {
        "fault_event_errno": probed["fault_event_errno"],
        "fault_kernel_errno": probed["fault_kernel_errno"],
        "hardware_event_errno": probed["hardware_event_errno"],
        "page_size_errno": probed["page_size_errno"],
        "ring_errno": probed["ring_errno"],
        "pagemap_errno": probed["pagemap_errno"],
        "move_pages_errno": probed["move_pages_errno"],
        "seccomp_mode": probed["seccomp_mode"],
        "perf_event_paranoid": _number("/proc/sys/kernel/perf_event_paranoid"),
        "perf_event_mlock_kb": _number("/proc/sys/kernel/perf_event_mlock_kb"),
        "memlock_limit_bytes": soft,
        "root": os.geteuid() == 0,
        "has_perf_capability": bool(capabilities >> CAP_PERFMON & 1 or capabilities >> CAP_SYS_ADMIN & 1),
        "pmu_devices": devices,
        "has_pmu": any(
            name in ("cpu", "cpu_core", "cpu_atom", "armv8_pmuv3_0") or name.startswith("armv8") for name in devices
        ),
        "memory_sampling": [name for name in devices if name.startswith(("ibs_op", "arm_spe"))],
        "clang": clangs or ([clang] if clang else []),
        "qemu_user": shutil.which(f"qemu-{os.uname().machine}") or shutil.which(f"qemu-{os.uname().machine}-static"),
        "numa_nodes": len(glob.glob("/sys/devices/system/node/node[0-9]*")),
        "swap": _swap_total() != "0",
        "in_container": os.path.exists("/.dockerenv") or os.path.exists("/run/.containerenv"),
    }


def _swap_total() -> str:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("SwapTotal:"):
            return line.split()[1]
    return "0"


def why_no_perf_event(facts: Facts, error: int) -> tuple[str, str]:
    """The cause of a refused perf event, told apart, and the remedy."""
    paranoid = facts["perf_event_paranoid"]
    if error == errno.ENOSYS:
        return ("this kernel was built without perf events", "boot a kernel with CONFIG_PERF_EVENTS=y")
    if paranoid is None:
        return (
            "this kernel has no perf events (no /proc/sys/kernel/perf_event_paranoid)",
            "boot a kernel with CONFIG_PERF_EVENTS=y",
        )
    if error in (errno.EACCES, errno.EPERM):
        if not facts["has_perf_capability"] and paranoid > 2:
            return (
                f"perf_event_paranoid is {paranoid}: this system forbids perf events to users without privilege",
                "sudo sysctl kernel.perf_event_paranoid=2",
            )
        if facts["seccomp_mode"] == 2:
            return (
                "a seccomp filter refuses perf_event_open (containers do this)",
                "start the container with --security-opt seccomp=unconfined --cap-add PERFMON",
            )
        if not facts["has_perf_capability"]:
            return (
                f"no permission for perf events (perf_event_paranoid {paranoid}, no CAP_PERFMON)",
                "sudo setcap cap_perfmon+ep $(readlink -f $(command -v python3)), or run as root",
            )
        return ("a security module refuses perf_event_open", "look at the kernel log: sudo dmesg | tail")
    return (f"perf_event_open failed: {os.strerror(error)}", "look at the kernel log: sudo dmesg | tail")
