"""Collector `alloc`: heap objects, mappings, pinning and annotations, from a library preloaded into the program."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...registry import CollectorDescriptor, Option


def probe(facts: Mapping[str, Any]) -> Any:
    from .. import preload
    from ..facts import Availability

    if not preload.library().is_file():
        return Availability(False, "not usable", (("libmemlens.so is not installed beside memlens", "make build"),))
    return Availability(True, "every large object, a sample of small ones, with call stacks; regions and tags")


DESCRIPTOR = CollectorDescriptor(
    name="alloc",
    question="Which objects does the program allocate, where, how long do they live, and are they used?",
    needs=("a dynamically linked program (LD_PRELOAD)",),
    gives=(
        "allocation", "stack", "tag_event", "region_event", "pinning", "thread_memory", "tls_module", "runtime_status",
    ),
    options=(
        Option("--sample-bytes", "one small object in so many allocated bytes is recorded; 0: every object", "512K"),
        Option("--large-bytes", "objects of this size and more are always recorded", "64K"),
    ),
    probe=probe,
)  # fmt: skip
