"""Collector `alloc`: heap objects, mappings, pinning and annotations, from a library preloaded into the program."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...registry import Asked, CollectorDescriptor, Option
from ...units import human_bytes
from .. import preload
from ..facts import Availability
from ..protocol import NEVER_S, ChannelPlan, Collector

if TYPE_CHECKING:
    from ..facts import Facts

EXACT_WAIT_MS = 5000
"""How long a thread of the program waits for a recorder that makes no progress, when every object counts."""
EXACT_TICK_S = 0.02


@dataclass(frozen=True)
class AllocOptions:
    sample_bytes: int = 512 << 10
    """Mean distance of recorded small objects in allocated bytes; 0: every object."""
    large_bytes: int = 64 << 10
    """Objects of this size and more are always recorded."""


def byte_count(text: str) -> int:
    """4096, 512K, 2M, 1G."""
    factors = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    digits = text.upper().removesuffix("B").removesuffix("I")
    factor = factors.get(digits[-1:], 1)
    digits = digits.rstrip("KMG") if factor > 1 else digits
    if not digits.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of bytes; write 4096, 512K, 2M or 1G")
    return int(digits) * factor


def probe(facts: Facts) -> Availability:
    if not preload.library().is_file():
        return Availability(False, "not usable", (("libmemlens.so is not installed beside memlens", "make build"),))
    return Availability(True, "every large object, a sample of small ones, with call stacks; regions and tags")


def settings(values: Mapping[str, int], asked: Asked) -> AllocOptions:
    return AllocOptions(values["sample_bytes"], values["large_bytes"])


class Alloc(Collector[AllocOptions]):
    """The library inside the program does the work (native/runtime); its records come through the channel."""

    def plan_channel(self, plan: ChannelPlan) -> None:
        plan.users.append(self.name)
        plan.alloc = True
        plan.sample_bytes, plan.large_bytes = self.settings.sample_bytes, self.settings.large_bytes
        if self.settings.sample_bytes == 0:
            plan.wait_at_least(EXACT_WAIT_MS)

    def due_s(self) -> float:
        return EXACT_TICK_S if self.settings.sample_bytes == 0 and self.recording.channel is not None else NEVER_S

    def describe(self) -> dict[str, int]:
        return vars(self.settings).copy()


def words(options: Mapping[str, Any]) -> list[str]:
    if "sample_bytes" not in options:
        return []
    every = options["sample_bytes"]
    said = [f"one in {human_bytes(every)} of small objects" if every else "every object"]
    if every and options.get("large_bytes"):
        said.append(f"all of {human_bytes(options['large_bytes'])} and more")
    return said


def quality(options: Mapping[str, int], meta: Mapping[str, object], is_incomplete: bool, lost: int) -> list[str]:
    rate = options.get("sample_bytes", 0)
    return [f"small objects sampled, one in {human_bytes(rate)}" if rate else "every object"]


DESCRIPTOR = CollectorDescriptor(
    name="alloc",
    question="Which objects does the program allocate, where, how long do they live, and are they used?",
    needs=("a dynamically linked program (LD_PRELOAD)",),
    gives=(
        "allocation", "stack", "tag_event", "region_event", "pinning", "thread_memory", "tls_module", "runtime_status",
    ),
    options=(
        Option("--sample-bytes", "record one small object in N allocated bytes (512K); 0: every object", "512K", byte_count, "N"),
        Option("--large-bytes", "always record objects of N bytes and more (64K)", "64K", byte_count, "N"),
    ),
    order=50,
    is_partly_notable=True,
    within_wrapper=True,
    needs_start=(
        "the library that sees allocations is loaded when a program starts; this one runs already",
        "start the program with memlens record",
    ),
    probe=probe,
    settings=settings,
    make=Alloc,
    words=words,
    quality=quality,
)  # fmt: skip
