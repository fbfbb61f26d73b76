"""Cache hierarchies by name, for the model of caches.

From the vendors' manuals and optimisation guides, of one processor each where sizes differ by model. Last levels are those that one core
reaches at its own speed: the socket's on Intel's, a core complex's on AMD's.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import UsageError

KIB, MIB = 1 << 10, 1 << 20
PAGE_BYTES = 4096


@dataclass(frozen=True)
class Level:
    """One cache, or one TLB (bytes are then entries times the page)."""

    bytes: int
    ways: int = 0
    """0: fully associative."""
    shared: bool = False
    policy: str = "lru"
    name: str = ""


@dataclass(frozen=True)
class Machine:
    """The data caches and TLBs of a processor."""

    description: str
    levels: tuple[Level, ...]
    tlbs: tuple[Level, ...]
    line_bytes: int = 64
    inclusive: bool = False


def _levels(*sizes: tuple[int, int]) -> tuple[Level, ...]:
    """Bytes and ways of each level; the last one is shared."""
    last = len(sizes) - 1
    return tuple(Level(size, ways, at == last, name=f"L{at + 1}") for at, (size, ways) in enumerate(sizes))


def _tlbs(*sizes: tuple[int, int]) -> tuple[Level, ...]:
    """Entries and ways of each level."""
    return tuple(Level(entries * PAGE_BYTES, ways, name=f"TLB{at + 1}") for at, (entries, ways) in enumerate(sizes))


MACHINES = {
    "haswell-ep": Machine(
        "Intel Xeon E5-2699 v3",
        _levels((32 * KIB, 8), (256 * KIB, 8), (45 * MIB, 20)), _tlbs((64, 4), (1024, 8)), inclusive=True,
    ),
    "skylake-sp": Machine(
        "Intel Xeon Platinum 8180 and 8280", _levels((32 * KIB, 8), (MIB, 16), (38 * MIB + 512 * KIB, 11)), _tlbs((64, 4), (1536, 12))
    ),
    "icelake-sp": Machine(
        "Intel Xeon Platinum 8380", _levels((48 * KIB, 12), (1280 * KIB, 20), (60 * MIB, 12)), _tlbs((64, 4), (2048, 16))
    ),
    "sapphire-rapids": Machine(
        "Intel Xeon Platinum 8480+", _levels((48 * KIB, 12), (2 * MIB, 16), (105 * MIB, 15)), _tlbs((96, 6), (2048, 16))
    ),
    "zen2": Machine("AMD EPYC 7002", _levels((32 * KIB, 8), (512 * KIB, 8), (16 * MIB, 16)), _tlbs((64, 0), (2048, 16))),
    "zen3": Machine("AMD EPYC 7003", _levels((32 * KIB, 8), (512 * KIB, 8), (32 * MIB, 16)), _tlbs((64, 0), (2048, 16))),
    "zen4": Machine("AMD EPYC 9004", _levels((32 * KIB, 8), (MIB, 8), (32 * MIB, 16)), _tlbs((72, 0), (3072, 24))),
    "zen5": Machine("AMD EPYC 9005", _levels((48 * KIB, 12), (MIB, 16), (32 * MIB, 16)), _tlbs((96, 0), (4096, 16))),
    "neoverse-n1": Machine(
        "Arm Neoverse N1 (Graviton2)", _levels((64 * KIB, 4), (MIB, 8), (32 * MIB, 16)), _tlbs((48, 0), (1280, 5))
    ),
    "a64fx": Machine("Fujitsu A64FX", _levels((64 * KIB, 4), (8 * MIB, 16)), _tlbs((16, 0), (1024, 4)), line_bytes=256),
    "power9": Machine(
        "IBM POWER9", _levels((32 * KIB, 8), (512 * KIB, 8), (10 * MIB, 20)), _tlbs((64, 0), (1024, 4)), line_bytes=128
    ),
}  # fmt: skip


def named_machine(name: str) -> Machine:
    """The machine of that name.

    >>> named_machine("zen4").levels[1].bytes
    1048576
    """
    found = MACHINES.get(name)
    if found is None:
        raise UsageError(f"unknown machine {name!r}", hint=f"one of {', '.join(MACHINES)}")
    return found
