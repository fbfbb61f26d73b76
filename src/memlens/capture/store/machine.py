"""Facts of the machine that a capture keeps: CPU, caches, NUMA topology, kernel.

Everything comes from /proc and /sys, read once at the start of a recording; a
file that is not there leaves its key out.
"""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import TypedDict


def _text(path: str | Path) -> str | None:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return None


def parse_cpu_list(text: str) -> list[int]:
    """Numbers of a kernel list.

    >>> parse_cpu_list("0-2,5")
    [0, 1, 2, 5]
    >>> parse_cpu_list("")
    []
    """
    numbers: list[int] = []
    for part in text.split(","):
        if not part.strip():
            continue
        first, _, last = part.partition("-")
        numbers.extend(range(int(first), int(last or first) + 1))
    return numbers


def _size_bytes(text: str) -> int:
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    return int(text[:-1]) * units[text[-1]] if text[-1:] in units else int(text)


def cpu_model() -> str:
    for line in (_text("/proc/cpuinfo") or "").splitlines():
        key, _, value = line.partition(":")
        if key.strip() in ("model name", "Model", "cpu model", "uarch", "cpu"):
            return value.strip()
    return platform.machine()


class Cache(TypedDict):
    """A cache level of the first CPU."""

    level: int
    type: str
    bytes: int
    line_bytes: int
    ways: int
    sets: int
    shared_by_cpus: int


class NumaNode(TypedDict):
    """A NUMA node."""

    node: int
    cpus: list[int]
    bytes: int
    distances: list[int]


class Machine(TypedDict, total=False):
    """The machine as `meta.json` has it; an old or a redacted capture has less."""

    host: str
    kernel: str
    architecture: str
    cpu: str
    cpus: int
    cpu_max_mhz: float | None
    caches: list[Cache]
    numa_nodes: list[NumaNode]
    memory_bytes: int
    page_bytes: int
    transparent_hugepages: str
    numa_balancing: bool
    fingerprint: str | None


def caches() -> list[Cache]:
    """The cache levels of the first CPU, with how many CPUs share each."""
    found: list[Cache] = []
    for index in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        size = _text(index / "size")
        kind = _text(index / "type")
        level = _text(index / "level")
        if not (size and kind and level):
            continue
        found.append(
            {
                "level": int(level),
                "type": kind.lower(),
                "bytes": _size_bytes(size),
                "line_bytes": int(_text(index / "coherency_line_size") or 0),
                "ways": int(_text(index / "ways_of_associativity") or 0),
                "sets": int(_text(index / "number_of_sets") or 0),
                "shared_by_cpus": len(parse_cpu_list(_text(index / "shared_cpu_list") or "")),
            }
        )
    return found


def microcode() -> str | None:
    """The version that the kernel shows; one that a hypervisor makes up is as good: it tells machines apart."""
    for line in (_text("/proc/cpuinfo") or "").splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "microcode":
            return value.strip()
    return None


def core_of(cpu: int) -> int:
    """The first CPU of the core that a CPU belongs to: threads of one core share its caches."""
    folder = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology")
    siblings = _text(folder / "core_cpus_list") or _text(folder / "thread_siblings_list") or ""
    return min(parse_cpu_list(siblings), default=cpu)


def cpus_sharing(cpu: int, level: int) -> list[int]:
    """The CPUs that share a CPU's cache of a level; itself alone where that is not known."""
    for index in Path(f"/sys/devices/system/cpu/cpu{cpu}/cache").glob("index*"):
        if _text(index / "level") == str(level) and (_text(index / "type") or "").lower() != "instruction":
            return parse_cpu_list(_text(index / "shared_cpu_list") or "") or [cpu]
    return [cpu]


def numa_nodes() -> list[NumaNode]:
    """Every NUMA node: CPUs, memory, distances."""
    nodes: list[NumaNode] = []
    for directory in Path("/sys/devices/system/node").glob("node[0-9]*"):
        number = int(directory.name.removeprefix("node"))
        total = 0
        for line in (_text(directory / "meminfo") or "").splitlines():
            if "MemTotal:" in line:
                total = int(line.split()[-2]) << 10
        nodes.append(
            {
                "node": number,
                "cpus": parse_cpu_list(_text(directory / "cpulist") or ""),
                "bytes": total,
                "distances": [int(d) for d in (_text(directory / "distance") or "").split()],
            }
        )
    return sorted(nodes, key=lambda node: node["node"])


def memory_total_bytes() -> int:
    for line in (_text("/proc/meminfo") or "").splitlines():
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) << 10
    return 0


def memory_available_bytes() -> int:
    """What can be used without swapping, and within the control group's limit."""
    available = 0
    for line in (_text("/proc/meminfo") or "").splitlines():
        if line.startswith("MemAvailable:"):
            available = int(line.split()[1]) << 10
    limit, used = _text("/sys/fs/cgroup/memory.max"), _text("/sys/fs/cgroup/memory.current")
    if limit and limit.isdigit() and used and used.isdigit():
        available = min(available, max(0, int(limit) - int(used)))
    return available


def node_free_bytes(node: int) -> int:
    for line in (_text(f"/sys/devices/system/node/node{node}/meminfo") or "").splitlines():
        if "MemFree:" in line:
            return int(line.split()[-2]) << 10
    return memory_available_bytes()


def cpu_max_mhz() -> float | None:
    """The highest frequency that the kernel names for the first CPU; None where it names none."""
    text = _text("/sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq")
    return int(text) / 1000 if text and text.strip().isdigit() else None


def describe() -> Machine:
    """The machine as `meta.json` keeps it."""
    thp = _text("/sys/kernel/mm/transparent_hugepage/enabled") or ""
    return {
        "host": platform.node(),
        "kernel": platform.release(),
        "architecture": platform.machine(),
        "cpu": cpu_model(),
        "cpus": os.cpu_count() or 0,
        "cpu_max_mhz": cpu_max_mhz(),
        "caches": caches(),
        "numa_nodes": numa_nodes(),
        "memory_bytes": memory_total_bytes(),
        "page_bytes": os.sysconf("SC_PAGE_SIZE"),
        "transparent_hugepages": thp.partition("[")[2].partition("]")[0],
        "numa_balancing": (_text("/proc/sys/kernel/numa_balancing") or "0") != "0",
    }
