"""This machine's peaks, as `memlens calibrate` wrote them: where the file is, whose it is, and what a peak is.

Owns the file. It is named by the machine's fingerprint and holds what the fingerprint was made of, so that a home directory
that was copied, or that several machines share, gives each machine its own peaks or none.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypedDict

from ...errors import CaptureError
from . import machine
from .files import read_whole

VERSION = 1
MOST_BYTES = 1 << 20
DRAM = "DRAM"
KINDS = ("read", "write", "copy")
ONE_KIND = 0.95
"""So much of the bytes read (or written) and it is compared with the peak of reading (or writing) alone."""


def identity() -> dict[str, object]:
    """What tells this machine from others, as far as peaks go."""
    host = hashlib.sha256(f"memlens {platform.node()}".encode()).hexdigest()[:16]
    return {
        "architecture": platform.machine(),
        "cpu": machine.cpu_model(),
        "microcode": machine.microcode(),
        "cpus": os.cpu_count() or 0,
        "caches": [
            {name: value for name, value in cache.items() if name not in ("ways", "sets")} for cache in machine.caches()
        ],
        "nodes": [
            {"node": node["node"], "cpus": node["cpus"], "has_memory": node["bytes"] > 0}
            for node in machine.numa_nodes()
        ],
        "host_hash": host,
    }


def fingerprint(identity: Mapping[str, object]) -> str:
    """A short name of an identity.

    >>> fingerprint({"cpu": "a"}) == fingerprint({"cpu": "a"}), fingerprint({"cpu": "a"}) == fingerprint({"cpu": "b"})
    (True, False)
    """
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]


def directory() -> Path:
    """Where calibrations are kept: state, not cache, since half a minute of a quiet machine is not made again for nothing."""
    base = os.environ.get("XDG_STATE_HOME") or ""
    if not os.path.isabs(base):  # relative ones are to be ignored, says the specification
        base = os.path.join(os.path.expanduser("~"), ".local", "state")
    return Path(base) / "memlens"


def path_of(name: str) -> Path:
    return directory() / f"calibration-{name}.json"


@dataclass(frozen=True)
class Found:
    """What is known of a calibration file: `content` is None where there is none that can be used, `problem` says why."""

    path: Path
    content: dict[str, Any] | None
    problem: str | None = None


def load(name: str) -> Found:
    """The calibration of the machine with this fingerprint."""
    path = path_of(name)
    try:
        content = json.loads(read_whole(path, most_bytes=MOST_BYTES))
    except FileNotFoundError:
        others = len(list(directory().glob("calibration-*.json"))) if directory().is_dir() else 0
        return Found(path, None, "of other machines only" if others else "none yet")
    except (OSError, ValueError, RecursionError, CaptureError) as error:
        return Found(path, None, f"cannot be read: {error}")
    if not isinstance(content, dict) or content.get("version") != VERSION:
        return Found(path, None, "of another version of memlens")
    try:
        if content["fingerprint"] != name or fingerprint(content["machine"]) != name:
            return Found(path, None, "of another machine")
        Peaks(content).check()
    except (KeyError, TypeError, ValueError, IndexError, StopIteration):
        return Found(path, None, "damaged")
    return Found(path, content)


def for_capture(content: Mapping[str, object]) -> dict[str, object]:
    """The part that a capture keeps: peaks, without what names the machine."""
    return {name: value for name, value in content.items() if name not in ("machine", "fingerprint")}


class Rate(TypedDict):
    """A peak of moving memory in one way."""

    bytes_per_second: float
    median_bytes_per_second: float
    spread: float
    windows: int


class Level(TypedDict):
    level: str
    bytes: int | None
    instances: int
    shared_by_cores: int
    one: dict[str, Rate]
    all: dict[str, Rate]


"""Peaks of one level: of one core and of all."""


class Peaks:
    """Peaks by level: bytes a second at the cores, as `access bandwidth` is."""

    def __init__(self, content: Mapping[str, Any]) -> None:
        self.content = content

    @cached_property
    def levels(self) -> list[str]:
        """From the first cache to memory."""
        return [level["level"] for level in self.content["levels"]]

    def level(self, name: str) -> Level:
        found: Level = next(level for level in self.content["levels"] if level["level"] == name)
        return found

    def check(self) -> None:
        """Raises if a number is missing that a comparison would use."""
        if DRAM not in self.levels:
            raise ValueError("no memory")
        for name in self.levels:
            for kind in KINDS:
                if not self.bandwidth(name, kind, threads=1) > 0:
                    raise ValueError(name)

    @property
    def cores(self) -> int:
        return len(self.content["cores"])

    def bandwidth(self, level: str, kind: str, *, threads: int) -> float:
        """What so many threads can move at most: as many times one core's peak, and no more than all cores together."""
        found = self.level(level)
        one, everyone = found["one"][kind]["bytes_per_second"], found["all"][kind]["bytes_per_second"]
        # Noise may leave the figure of all cores below one core's.
        return float(min(max(threads, 1) * one, max(one, everyone)))

    def results_per_second(self, *, threads: int) -> float | None:
        """Floating-point results (double) of so many threads."""
        found = self.content.get("float")
        if not found:
            return None
        one, everyone = found["one"]["double"]["per_second"], found["all"]["double"]["per_second"]
        return float(min(max(threads, 1) * one, max(one, everyone)))

    @cached_property
    def cache_bytes(self) -> dict[str, tuple[int, int]]:
        """Of each cache level (bytes of one instance, cores that share it)."""
        return {
            level["level"]: (level["bytes"], level["shared_by_cores"])
            for level in self.content["levels"]
            if level["level"] != DRAM
        }


def kind_of(read_bytes: float, written_bytes: float) -> str:
    """Which peak bytes of this mix are compared with.

    >>> kind_of(100, 1), kind_of(0, 5), kind_of(2, 1)
    ('read', 'write', 'copy')
    """
    total = read_bytes + written_bytes
    if not total or read_bytes >= ONE_KIND * total:
        return "read"
    return "write" if written_bytes >= ONE_KIND * total else "copy"
