"""Measuring this machine's peaks for `memlens calibrate`: what is measured on which CPUs with how many bytes, and the file.

The kernels are native (native/recorder/peaks.c). Here is decided how large memory must be to stay in a level, which CPUs
stand for all cores, how the time is shared out, and what about the figures is to be doubted.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NotRequired, TypedDict, cast

from .. import _recorder
from ..capture.store import calibration, machine
from ..capture.store.calibration import DRAM, KINDS
from ..errors import CollectorError, OutputError, os_reason
from ..version import __version__

DEFAULT_SECONDS = 20.0
LEAST_SECONDS = 1.0
TIMES_LAST_CACHE = 4
"""Memory is measured with so many times the last cache: of a sweep through it next to nothing is still there."""
ENOUGH_TIMES = 2
MANY_PAIRS = 16
"""More of them (CPU node, memory node), and each gets less memory: 64 would not be done in half a minute."""
LEAST_DRAM_BYTES = 64 << 20
PAGE = 8192
ASSUMED = (("L1", 32 << 10, 1), ("L2", 1 << 20, 1), ("L3", 32 << 20, 0))
"""Where the kernel shows no caches: usual sizes (0: shared by all)."""
NOISY = 0.25
TOGETHER = 0.7
"""Of as many times one core's first cache as there are cores."""
TOLERANCE = 0.10
"""A level that is faster than the one before it by more than this was not measured alone."""


@dataclass(frozen=True)
class Level:
    """A cache level, seen from the CPUs that are measured."""

    name: str
    bytes: int
    sharing: tuple[tuple[int, ...], ...]
    """Cores by instance."""

    @property
    def instances(self) -> int:
        return len(self.sharing)

    def shared_by(self, cpu: int, cores: list[int]) -> int:
        """How many of these cores share the instance of a core."""
        mine = next((group for group in self.sharing if cpu in group), (cpu,))
        return max(1, len(set(mine) & set(cores)))


@dataclass(frozen=True)
class Topology:
    cores: list[int]
    """One CPU of each core that we may run on."""
    levels: list[Level]
    nodes: list[tuple[int, list[int], bool, list[int]]]
    """(node, its cores of ours, has memory, distances)"""
    line_bytes: int
    assumed: bool


def topology() -> Topology:
    """Cores, caches and nodes as far as this process may use them."""
    allowed = sorted(os.sched_getaffinity(0))
    first_of = {cpu: machine.core_of(cpu) for cpu in allowed}
    cores = sorted({min(cpu for cpu in allowed if first_of[cpu] == core) for core in first_of.values()})
    caches = sorted((cache for cache in machine.caches() if cache["type"] != "instruction"), key=lambda c: c["level"])
    caches = [cache for cache in caches if cache["bytes"] > 0]
    if caches:
        levels = []
        for cache in caches:
            groups = {tuple(sorted(set(machine.cpus_sharing(core, cache["level"])) & set(cores))) for core in cores}
            levels.append(Level(f"L{cache['level']}", cache["bytes"], tuple(sorted(groups))))
    else:
        levels = [
            Level(name, size, tuple((core,) for core in cores) if sharing else (tuple(cores),))
            for name, size, sharing in ASSUMED
        ]
    nodes = [
        (node["node"], [core for core in cores if core in node["cpus"]], node["bytes"] > 0, node["distances"])
        for node in machine.numa_nodes()
    ]
    line_bytes = next((cache["line_bytes"] for cache in caches if cache["line_bytes"]), 64)
    return Topology(cores, levels, nodes or [(0, cores, True, [10])], line_bytes, not caches)


def footprint_bytes(levels: list[Level], index: int, core: int, cores: list[int]) -> int:
    """Bytes of one thread that do not fit into the level before and do fit into this one, beside the other threads'.

    A level of its own is filled to a half, a shared one to a quarter: others use it, too. A sweep must be well beyond the level
    before, which may not forget what was used longest ago.
    """
    before = levels[index - 1].bytes // levels[index - 1].shared_by(core, cores) if index else 0
    sharing = levels[index].shared_by(core, cores)
    is_shared = any(len(group) > 1 for group in levels[index].sharing)
    share = levels[index].bytes // sharing
    wanted = before + share // (4 if is_shared else 2)
    return max(wanted, min(before * 3 // 2, before + share * 3 // 4)) // PAGE * PAGE or PAGE


def latency_bytes(levels: list[Level], index: int, core: int) -> int:
    """Of the walk that tells a cache's latency. It comes back to a line late: in a shared cache that is large for it, what others bring
    in would have pushed the line out. Three times the level before is enough to be beyond it."""
    usual = footprint_bytes(levels, index, core, [core])
    if index == 0 or not any(len(group) > 1 for group in levels[index].sharing):
        return usual
    return min(3 * levels[index - 1].bytes, usual) // PAGE * PAGE


def dram_bytes(
    levels: list[Level], cores: list[int], available: int, *, times: int = TIMES_LAST_CACHE
) -> tuple[int, float]:
    """(bytes of each of these cores' threads, how many times their last caches that is together)."""
    last = levels[-1]
    cached = last.bytes * sum(1 for group in last.sharing if set(group) & set(cores))
    wanted = min(max(times * cached, LEAST_DRAM_BYTES), available)
    each = max(wanted // len(cores) // PAGE * PAGE, PAGE)
    return each, each * len(cores) / max(cached, 1)


class _Measured(TypedDict):
    """Of one kernel: the best and the median of its windows."""

    best: float
    median: float
    windows: int
    kernel: NotRequired[int]


def _latency(kinds: dict[str, _Measured], n_bytes: int) -> dict[str, object]:
    found = kinds["latency"]
    huge_bytes = cast("int | None", kinds["huge_bytes"])  # of all kinds
    return {
        "ns": round(found["best"], 3),
        "median_ns": round(found["median"], 3),
        "spread": round(found["median"] / found["best"] - 1, 4),
        "windows": found["windows"],
        "footprint_bytes": n_bytes,
        "huge_page_share": None if huge_bytes is None else round(min(1.0, huge_bytes / n_bytes), 4),
    }


def _rate(found: _Measured) -> dict[str, float]:
    return {
        "per_second": round(found["best"]),
        "spread": round(1 - found["median"] / found["best"], 4),
        "windows": found["windows"],
    }


class Measurement:
    """One calibration. `seconds` is for all of it; `say` is told what is being measured."""

    def __init__(self, *, seconds: float, say: Callable[[str], None] = lambda _: None) -> None:
        self.seconds = seconds
        self.say = say
        self.at = topology()
        self.begin = time.monotonic()
        self.left = 0.0
        self.names = _recorder.peak_kernels()
        self.kernels = list(range(len(self.names)))
        self.times = TIMES_LAST_CACHE
        self.warnings: list[str] = []

    # ---- what each call of the kernels gets ------------------------------------------------------------------------
    def _call(
        self, what: str, *, weight: float, cpus: list[int], kinds: tuple[str, ...], **more: Any
    ) -> dict[str, _Measured]:
        self.say(what)
        rest = max(0.0, self.seconds - (time.monotonic() - self.begin))
        share = rest * weight / max(self.left, weight)
        self.left -= weight
        try:
            found = _recorder.measure_peaks(
                cpus=cpus, kinds=list(kinds), time_ns=round(share * 1e9), line_bytes=self.at.line_bytes, **more
            )
        except OSError as error:
            raise CollectorError(
                f"cannot measure {what}: {error.filename}: {error.strerror}",
                hint="CPUs and memory nodes of this process may be limited (taskset, numactl, a container): see /proc/self/status",
            ) from error
        if any(kind not in found for kind in kinds if kind != "stream_write"):
            raise CollectorError(
                f"cannot measure {what}: {len(cpus)} threads were never running at the same time",
                hint="the machine is too busy; try again when it is quiet",
            )
        return found

    def _best(
        self, what: str, *, weight: int, cpus: list[int], kinds: tuple[str, ...], **more: Any
    ) -> dict[str, _Measured]:
        """Each kind with every kernel, the best kept: the widest vectors are not always the fastest."""
        best: dict[str, _Measured] = {}
        for number in self.kernels:
            found = self._call(what, weight=weight / len(self.kernels), cpus=cpus, kinds=kinds, kernel=number, **more)
            for kind in kinds:
                if kind in found and (kind not in best or found[kind]["best"] > best[kind]["best"]):
                    best[kind] = {**found[kind], "kernel": number}
        return best

    def _figure(self, found: _Measured) -> dict[str, object]:
        return {
            "bytes_per_second": round(found["best"]),
            "median_bytes_per_second": round(found["median"]),
            "spread": round(1 - found["median"] / found["best"], 4),
            "windows": found["windows"],
            "vectors": self.names[found["kernel"]],
        }

    def run(self) -> dict[str, object]:
        at = self.at
        many = len(at.cores) > 1
        pairs = [
            (node, cores, memory, distances[memory_index] if memory_index < len(distances) else None)
            for node, cores, _, distances in at.nodes
            for memory_index, (memory, _, has_memory, _) in enumerate(at.nodes)
            if cores and has_memory
        ]
        # Units of time: memory has more of them, it must be filled first.
        self.left = 3.0 * len(at.levels) + 2.0 * many * len(at.levels) + 4 * (1 + many) + 4 + 1 + many
        self.left += 0 if len(pairs) == 1 else 6 * len(pairs)
        levels = [self._level(index) for index in range(len(at.levels))]
        levels.append(self._dram())
        described = self._pairs(pairs, levels[-1])
        self.kernels = list(range(len(self.names)))
        arithmetic = {"one": self._float([at.cores[0]])}
        arithmetic["all"] = self._float(at.cores) if many else arithmetic["one"]
        self._doubt(levels, described)
        identity = calibration.identity()
        return {
            "version": calibration.VERSION,
            "memlens": __version__,
            "measured": datetime.now(UTC).isoformat(timespec="seconds"),
            "seconds": round(time.monotonic() - self.begin, 1),
            "fingerprint": calibration.fingerprint(identity),
            "machine": identity,
            "vector_widths": self.names,
            "cores": at.cores,
            "assumed_caches": at.assumed,
            "levels": levels,
            "pairs": described,
            "float": arithmetic,
            "warnings": self.warnings,
        }

    # ---- parts ----------------------------------------------------------------------------------------------------------
    def _level(self, index: int) -> dict[str, object]:
        at, level = self.at, self.at.levels[index]
        core = at.cores[0]
        size = footprint_bytes(at.levels, index, core, [core])
        found = self._best(f"{level.name}, one core", weight=2, cpus=[core], kinds=KINDS, bytes=size)
        one = {"cores": 1, "footprint_bytes": size, **{kind: self._figure(found[kind]) for kind in KINDS}}
        size = latency_bytes(at.levels, index, core)
        walk = self._call(f"{level.name}, latency", weight=1, cpus=[core], kinds=("latency",), bytes=size)
        latency = _latency(walk, size)
        return {
            "level": level.name,
            "bytes": level.bytes,
            "instances": level.instances,
            "shared_by_cores": max(len(group) for group in level.sharing),
            "one": one,
            "all": self._all(f"{level.name}, all cores", index) or one,
            "latency": latency,
        }

    def _all(self, what: str, index: int) -> dict[str, object] | None:
        cores = self.at.cores
        if len(cores) < 2:
            return None
        size = min(footprint_bytes(self.at.levels, index, core, cores) for core in cores)
        found = self._best(what, weight=2, cpus=cores, kinds=KINDS, bytes=size)
        return {
            "cores": len(cores),
            "footprint_bytes": size * len(cores),
            **{kind: self._figure(found[kind]) for kind in KINDS},
        }

    def _memory(self, what: str, cores: list[int], *, node: int = -1, stream: bool = True) -> dict[str, object]:
        size, times = dram_bytes(self.at.levels, cores, self._available(node), times=self.times)
        if times < ENOUGH_TIMES:
            self.warnings.append(
                f"{what}: only {times:.1f} times the last caches was free: part of the data was still in them."
            )
        kinds = (*KINDS, "stream_write") if stream else KINDS
        found = self._best(what, weight=4, cpus=cores, kinds=kinds, bytes=size, node=node)
        return {
            "cores": len(cores),
            "footprint_bytes": size * len(cores),
            **{kind: self._figure(found[kind]) for kind in kinds if kind in found},
        }

    def _memory_latency(self, what: str, core: int, *, node: int = -1, huge_pages: bool = True) -> dict[str, object]:
        size, _ = dram_bytes(self.at.levels, [core], self._available(node), times=self.times)
        found = self._call(
            what, weight=2, cpus=[core], kinds=("latency",), bytes=size, node=node, huge_pages=huge_pages
        )
        return _latency(found, size)

    def _available(self, node: int) -> int:
        """A quarter of what is free: the machine must not swap for this."""
        if node < 0:
            return machine.memory_available_bytes() // 4
        return min(machine.memory_available_bytes() // 4, machine.node_free_bytes(node) // 2)

    def _dram(self) -> dict[str, object]:
        core, cores = self.at.cores[0], self.at.cores
        one = self._memory("DRAM, one core", [core])
        return {
            "level": DRAM,
            "bytes": None,
            "instances": sum(1 for node in self.at.nodes if node[2]),
            "shared_by_cores": len(cores),
            "one": one,
            "all": self._memory("DRAM, all cores", cores) if len(cores) > 1 else one,
            "latency": self._memory_latency("DRAM, latency", core),
            "latency_small_pages": self._memory_latency("DRAM, latency with small pages", core, huge_pages=False),
        }

    def _pairs(
        self, pairs: list[tuple[int, list[int], int, int | None]], dram: dict[str, Any]
    ) -> list[dict[str, object]]:
        if len(pairs) == 1:  # nothing that was not measured above
            node, _, memory, distance = pairs[0]
            rates = {name: dram["all"][name] for name in ("cores", "footprint_bytes", *KINDS)}
            return [
                {"cpu_node": node, "memory_node": memory, "distance": distance, **rates, "latency": dram["latency"]}
            ]
        # Every kernel again for every pair would take too long: the one that read memory fastest.
        self.kernels = [self.names.index(dram["one"]["read"]["vectors"])]
        # Filling memory takes most of the time.
        self.times = TIMES_LAST_CACHE if len(pairs) <= MANY_PAIRS else ENOUGH_TIMES
        found = []
        for node, cores, memory, distance in pairs:
            what = f"cores of node {node}, memory of node {memory}"
            rates = self._memory(what, cores, node=memory, stream=False)
            latency = self._memory_latency(f"{what}, latency", cores[0], node=memory)
            found.append({"cpu_node": node, "memory_node": memory, "distance": distance, **rates, "latency": latency})
        return found

    def _float(self, cores: list[int]) -> dict[str, object]:
        found = self._best("floating point", weight=1, cpus=cores, kinds=("double", "single"))
        return {"cores": len(cores), "double": _rate(found["double"]), "single": _rate(found["single"])}

    # ---- doubts ------------------------------------------------------------------------------------------------------
    def _doubt(self, levels: list[dict[str, Any]], pairs: list[dict[str, object]]) -> None:
        warn = self.warnings.append
        if self.at.assumed:
            warn(
                "The kernel shows no caches here (a virtual machine or container may hide them): usual sizes were assumed "
                f"({', '.join(f'{level.name} {level.bytes >> 10} KiB' for level in self.at.levels)}), so levels may be wrong."
            )
        if len(os.sched_getaffinity(0)) < (os.cpu_count() or 1):
            warn(
                f"Only {len(os.sched_getaffinity(0))} of {os.cpu_count()} CPUs may be used here: figures of all cores are for these."
            )
        for before, after in itertools.pairwise(levels):
            for kind in KINDS:
                a, b = (level["one"][kind]["bytes_per_second"] for level in (before, after))
                if b > (1 + TOLERANCE) * a:
                    warn(
                        f"{after['level']} was faster than {before['level']} ({kind}, one core): the machine was busy, or sizes are wrong."
                    )
            if after["latency"]["ns"] < (1 - TOLERANCE) * before["latency"]["ns"]:
                warn(
                    f"A load from {after['level']} took less than one from {before['level']}: the machine was busy, or sizes are wrong."
                )
        together = levels[0]["all"]["read"]["bytes_per_second"] / levels[0]["one"]["read"]["bytes_per_second"]
        if together < TOGETHER * len(self.at.cores):
            warn(
                f"{len(self.at.cores)} cores together read their own first caches only {together:.1f} times as fast as one: they were not observed "
                "running at the same time, or share processors. Figures of all cores are too low."
            )
        noisy = [
            f"{level['level']} {kind}"
            for level in levels
            for kind in KINDS
            if max(level["one"][kind]["spread"], level["all"][kind]["spread"]) > NOISY
        ]
        if noisy:
            warn(
                f"The median half millisecond was more than {NOISY:.0%} below the best for {', '.join(noisy)}: "
                "other programs ran, or the clock of the processor changed. The best is kept; on an idle machine it may be higher."
            )
        small = [
            level["level"]
            for level in levels
            if (level["latency"]["huge_page_share"] or 0) < 0.5 and level["level"] == DRAM
        ]
        if small:
            warn("Huge pages were requested and not granted: the latency of DRAM includes misses of the TLB.")


def check_place() -> None:
    """Raises if the file could not be written: better said before measuring than after."""
    folder = calibration.directory()
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise _not_written(str(folder), error) from error


def write(content: dict[str, Any]) -> str:
    """Keeps a calibration; returns the file's name. It is there as a whole or not at all."""
    path = calibration.path_of(content["fingerprint"])
    part = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        part.write_text(json.dumps(content, indent=1) + "\n")
        os.replace(part, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            part.unlink()
        raise _not_written(str(path), error) from error
    return str(path)


def _not_written(path: str, error: OSError) -> OutputError:
    return OutputError(
        f"cannot write {path}: {os_reason(error)}", hint="set XDG_STATE_HOME to a folder that can be written"
    )
