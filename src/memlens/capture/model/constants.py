"""Constant accesses of traces: executed, mostly not recorded, and known by the code that makes them.

A trace leaves out scalars of the frame (MemGaze, section III-B). What is known of them depends on who wrote the trace:

    stand-ins   a traced program's tables say which recorded site is executed whenever a constant is (`TraceSites`). Some recorded sites are
                constants themselves: global variables, and one of each piece of code that has nothing else. They are counted as constants and
                are no accesses of the locality analyses
    imports     an instruction's table says how many constants go with it (`ImpliedConstants`)
    records     otherwise each record of a window says how many it leaves out (``implied_constant``), not of which code

Accesses of a thread, constants included, have numbers from 0 on. Constants follow the access that stands for them, so a number is off by less
than the length of a piece of straight code.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

from ..store.layouts import enum_value
from ..store.settings import settings_of
from ..store.source import TableSource
from .decoded import DecodedWindows
from .tracing import TraceSites

if TYPE_CHECKING:
    from ...arrays import Bools, Columns, Ints, Uint32s, Uint64s

UNKNOWN_SHARE = 0.02
"""Of the constants: where more belong to no known code, constants by code are not known."""


class Instructions(Protocol):
    """Accesses of one process by their instructions."""

    @property
    def process(self) -> int: ...
    @property
    def pc(self) -> Uint64s: ...


class ConstantSource(TableSource, Protocol):
    """What tells of constants."""

    @property
    def trace_sites(self) -> TraceSites: ...
    @property
    def decoded(self) -> DecodedWindows: ...


class WindowRecords(Protocol):
    """The records of windows (`accesses.Windows`)."""

    @property
    def capture(self) -> ConstantSource: ...
    @property
    def raw(self) -> Columns: ...
    @property
    def covered(self) -> Ints: ...
    def entries(self, found: Columns, window: Uint32s, by_site: Bools) -> tuple[Bools, Ints]: ...


class ImpliedConstants:
    """Constants that go with single accesses: imported traces know them by instruction (table ``import_sites``)."""

    def __init__(self, capture: TableSource) -> None:
        import numpy as np

        table = capture.table("import_sites")
        rows = [row for row in table.to_pylist() if row["implied_constants"] is not None]
        self.known = bool(rows)
        self.imported = table.num_rows > 0
        """The trace is another tool's, with what that one knew of instructions, be it nothing."""
        self._tables: dict[int, tuple[Uint64s, Uint32s]] = {}
        for process in {row["process"] for row in rows}:
            mine = sorted((row["pc"], row["implied_constants"]) for row in rows if row["process"] == process)
            self._tables[process] = (
                np.array([pc for pc, _ in mine], dtype=np.uint64),
                np.array([count for _, count in mine], dtype=np.uint32),
            )

    def of(self, process: int, pcs: Uint64s) -> Uint32s | None:
        """Of each access; None where nothing is known of the process's instructions."""
        import numpy as np

        if process not in self._tables:
            return None
        known, counts = self._tables[process]
        at = np.minimum(np.searchsorted(known, pcs), len(known) - 1)
        return np.where(known[at] == pcs, counts[at], np.uint32(0)).astype(np.uint32)

    def __call__(self, batch: Instructions) -> Uint32s | None:
        return self.of(batch.process, batch.pc)


@dataclass(frozen=True)
class Told:
    """What is known of the accesses of one decoded part."""

    number: Ints
    """Of each access in its record, constants counted."""
    following: Ints
    """Constants that each access stands for and that lie in its record."""
    scalar: Bools
    """Which are constants themselves."""
    entry: Ints
    """Row of the tables of sites, -1 = none."""
    last_row: int
    used: int
    """How far the last record has been told: the next part may go on with it."""


class ConstantsOfWindows:
    """Which constants the records of a capture have. Use `Windows.constants`."""

    def __init__(self, windows: WindowRecords) -> None:
        self.windows = windows
        self.imports = ImpliedConstants(windows.capture)
        self._sites = windows.capture.trace_sites.constants
        trace = settings_of(windows.capture.meta, "traced_module") or {}
        self.loads_only = bool(trace.get("loads_only"))
        self.is_selected = self.loads_only or bool(trace.get("functions"))
        """Records also leave out what nobody asked for: what belongs to no code is not known to be constant."""

    @property
    def by_code(self) -> bool:
        return self.imports.known or self._sites.any

    def tell(self, process: int, found: Columns, window: Uint32s, by_site: Bools, before: Told | None) -> Told:
        """Of a decoded part, which follows the part `before`. `window` are rows of the records."""
        import numpy as np

        count = len(window)
        following = np.zeros(count, dtype=np.int64)
        scalar = np.zeros(count, dtype=bool)
        entry = np.full(count, -1, dtype=np.int64)
        if self._sites.any and by_site.any():
            known, at = self.windows.entries(found, window, by_site)
            entry[known] = at
            following[known] = self._sites.count[at]
            scalar[known] = self._sites.is_scalar[at]
        if self.imports.known and not by_site.all():
            implied = self.imports.of(process, found["code"])
            if implied is not None:
                following = np.where(by_site, following, implied.astype(np.int64))
        steps = following + 1
        passed = np.cumsum(steps) - steps
        begins = np.flatnonzero(np.concatenate(([True], np.diff(window) != 0)))
        lengths = np.diff(np.append(begins, count))
        number = passed - np.repeat(passed[begins], lengths)
        if before is not None and int(window[0]) == before.last_row:
            number[: lengths[0]] += before.used
        used = int(number[-1] + steps[-1])
        covered = self.windows.covered[window]
        number = np.minimum(number, np.maximum(covered - 1, 0))
        # A window ends with its last recorded access: the constants behind that are not in it.
        return Told(number, np.minimum(following, covered - 1 - number), scalar, entry, int(window[-1]), used)

    @cached_property
    def _by_record(self) -> tuple[Ints, Ints]:
        """(constants that are recorded, constants that recorded accesses stand for) of each record."""
        import numpy as np

        windows, raw = self.windows, self.windows.raw
        scalars, attributed = (np.zeros(len(raw["process"]), dtype=np.int64) for _ in range(2))
        if not self.by_code:
            return scalars, attributed
        pc_delta = enum_value("stream_encoding", "pc_delta")
        told: Told | None = None
        for chunk in windows.capture.decoded:
            for found in windows.capture.decoded.unpacked(chunk):
                window = found["row"] + np.uint32(chunk.first)
                told = self.tell(chunk.process, found, window, raw["encoding"][window] != pc_delta, told)
                np.add.at(scalars, window[told.scalar], 1)
                some = told.following > 0
                np.add.at(attributed, window[some], told.following[some])
        return scalars, attributed

    @property
    def scalars(self) -> Ints:
        return self._by_record[0]

    @cached_property
    def unattributed(self) -> Ints:
        """Constants of each record that belong to no known code; 0 where a record may have left out something else."""
        import numpy as np

        if self.is_selected and self.by_code:
            return np.zeros(len(self.windows.raw["process"]), dtype=np.int64)
        left_out: Ints = self.windows.raw["implied_constant"].astype(np.int64)
        unattributed: Ints = np.maximum(left_out - self._by_record[1], 0)
        return unattributed

    @property
    def known_by_code(self) -> bool:
        """Whether constants can be counted by function and line."""
        if not int(self.windows.raw["implied_constant"].sum()):
            return True
        if not self.by_code:
            return False
        total = int(self._by_record[0].sum() + self._by_record[1].sum() + self.unattributed.sum())
        return int(self.unattributed.sum()) <= UNKNOWN_SHARE * max(total, 1)

    def expanded(self, told: Told, by_site: Bools) -> tuple[Ints, Uint32s, Ints]:
        """(access, code, number in the record) of each constant that the accesses stand for, and of each that is recorded.

        The code is `NO_CODE` for those of imported traces: theirs is that of the access.
        """
        import numpy as np

        sites = self._sites
        some = np.flatnonzero(told.following > 0)
        times = told.following[some]
        access = np.repeat(some, times)
        place = np.arange(len(access)) - np.repeat(np.cumsum(times) - times, times)
        code = np.full(len(access), 2**32 - 1, dtype=np.uint32)
        mine = told.entry[access] >= 0
        code[mine] = sites.code[sites.first[told.entry[access[mine]]] + place[mine]]
        own = np.flatnonzero(told.scalar)
        access = np.concatenate((access, own))
        number = np.concatenate((told.number[access[: len(place)]] + 1 + place, told.number[own]))
        code = np.concatenate((code, sites.own_code[told.entry[own]])) if len(own) else code
        if self.loads_only and len(code):
            keep = ~sites.is_store_code(code)
            access, code, number = access[keep], code[keep], number[keep]
        order = np.lexsort((number, access))
        return access[order], code[order], number[order]
