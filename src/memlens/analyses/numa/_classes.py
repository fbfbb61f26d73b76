"""The classes of accesses of the NUMAPROF paper (section 5.1), for arrays of accesses.

| class | thread | page |
|---|---|---|
| local, remote | has a home node | bound; on this node, on another one |
| unpinned_page | has a home node | not bound |
| unpinned_thread | runs on CPUs of several nodes | bound |
| unpinned_both | runs on CPUs of several nodes | not bound |
| memory_only_local, memory_only_remote | any | on a node without CPUs that is nearest to the thread's home, or is not |
| first_touch, unpinned_first_touch | places bound, or not | did not exist before this access |
| undecided | moved at about this time | or moved at about this time |
| unknown | its affinity or the page's node was not recorded | |

Where it is not known whether a page is bound, `local` and `remote` are by its node alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ...capture.model.places import MOVING, NO, NOT_KNOWN, UNPINNED, YES, Topology

if TYPE_CHECKING:
    import numpy.typing as npt

CLASSES = (
    "local", "remote", "unpinned_page", "unpinned_thread", "unpinned_both", "memory_only_local", "memory_only_remote",
    "first_touch", "unpinned_first_touch", "undecided", "unknown",
)  # fmt: skip
NUMBER = {name: number for number, name in enumerate(CLASSES)}
REMOTE = ("remote", "memory_only_remote")
COMPARED = ("local", "remote", "memory_only_local", "memory_only_remote")
"""Of which the distance is known by thread and page."""


def classify(
    topology: Topology, home: npt.NDArray[np.int16], node: npt.NDArray[np.int16], bound: npt.NDArray[np.int8]
) -> npt.NDArray[np.uint8]:
    """The class of each access that is no first touch.

    >>> from memlens.capture.model.places import Node
    >>> machine = Topology([Node(0, frozenset((0,)), 1, (10, 20, 31)), Node(1, frozenset((1,)), 1, (20, 10, 31)), Node(2, frozenset(), 1, (16, 31, 10))])
    >>> homes, nodes = np.array([0, 0, 0, -1, -1, 0, 1, 0, -2]), np.array([0, 1, 1, 0, 0, 2, 2, -3, 0])
    >>> bounds = np.array([1, 1, 0, 1, 0, 1, 1, 1, 1])
    >>> [CLASSES[n] for n in classify(machine, homes.astype("i2"), nodes.astype("i2"), bounds.astype("i1"))]
    ['local', 'remote', 'unpinned_page', 'unpinned_thread', 'unpinned_both', 'memory_only_local', 'memory_only_remote', 'undecided', 'unknown']
    """
    found = np.full(len(home), NUMBER["unknown"], dtype=np.uint8)
    there = node >= 0
    pinned = there & (home >= 0)
    not_bound = bound == NO
    found[pinned & ~not_bound] = NUMBER["remote"]
    found[pinned & ~not_bound & (home == node)] = NUMBER["local"]
    found[pinned & not_bound] = NUMBER["unpinned_page"]
    floating = there & (home == UNPINNED)
    found[floating & (bound == YES)] = NUMBER["unpinned_thread"]
    found[floating & not_bound] = NUMBER["unpinned_both"]
    for number in topology.without_cpus:
        here = (node == number) & ((home >= 0) | (home == UNPINNED))
        near = np.isin(home, np.array(topology.nearest(number), dtype=np.int16))
        found[here & near] = NUMBER["memory_only_local"]
        found[here & ~near] = NUMBER["memory_only_remote"]
    found[(node == MOVING) | (home == MOVING)] = NUMBER["undecided"]
    return found


def binding_not_known(classes: npt.NDArray[np.uint8], bound: npt.NDArray[np.int8]) -> npt.NDArray[np.bool_]:
    """Accesses that are local or remote by the page's node alone."""
    found: npt.NDArray[np.bool_] = (bound == NOT_KNOWN) & (classes <= NUMBER["remote"])
    return found
