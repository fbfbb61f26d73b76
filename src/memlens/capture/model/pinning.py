"""Records of affinity and memory policy, with their masks decoded and their threads named.

A thread sets the affinity of another by its thread pointer; `thread_memory` says which thread that is. Must not import NumPy: recordings end with these rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from ..store.source import RecordSource

MASK_BYTES = 4096
"""Of a mask of CPUs or nodes: four times what a kernel can have."""


class Pinned(TypedDict):
    """The fields of the record that readers use, ``process``, and ``members``, the numbers in the mask. ``thread`` 0: not known."""

    process: int
    thread: int
    time_ns: int
    address: int
    operation: str
    policy: int
    members: list[int]


def pinned(capture: RecordSource) -> list[Pinned]:
    found: list[Pinned] = []
    for batch in capture.batches("pinning"):
        for row in batch.to_pylist():
            mask = int.from_bytes(row["tail"][:MASK_BYTES], "little")
            members = [bit for bit in range(mask.bit_length()) if mask >> bit & 1]
            found.append(
                Pinned(process=row["process"], thread=row["thread"], time_ns=row["time_ns"], address=row["address"],
                       operation=row["operation"], policy=row["policy"], members=members)
            )  # fmt: skip
    unnamed = [row for row in found if not row["thread"]]
    if not unnamed:
        return found
    pointers: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for batch in capture.batches("thread_memory"):
        for row in batch.to_pylist():
            if row["thread"]:
                key = row["process"], row["thread_pointer"]
                pointers.setdefault(key, []).append((row["time_ns"], row["thread"]))
    for row in unnamed:
        # A pointer is one thread's after another: the first that is seen from then on, else the last before.
        users = sorted(pointers.get((row["process"], row["address"]), ()))
        later = [thread for seen_ns, thread in users if seen_ns >= row["time_ns"]]
        if users:
            row["thread"] = later[0] if later else users[-1][1]
    return found
