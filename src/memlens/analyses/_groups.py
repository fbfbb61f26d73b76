"""What accesses are grouped by: function, line, loop, object, thread, region, NUMA node, address range, the whole program, or two
of these."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..errors import NoDataError, UsageError

if TYPE_CHECKING:
    from ..arrays import Integers, Ints, Uint32s, Uint64s
    from ..capture.model.locality import AccessBatch, ThreadAccesses
    from ..results import Key

DIMENSIONS = ("program", "function", "line", "loop", "object", "thread", "region", "node", "range")
RANGE_BYTES = 2 << 20
NO_GROUP = 2**32 - 1
MOST_CELLS = 1 << 22
"""Of a table of all pairs of two dimensions: 16 MiB."""
Range = tuple[int, int]
"""Addresses from the first to before the second."""


class Dimension:
    """Numbers a batch's accesses; `keys` says what each number means."""

    names: tuple[str, ...] = ()
    columns: frozenset[str] = frozenset()
    """What it asks of a batch: `AccessBatch.made`."""

    def __init__(self, accesses: ThreadAccesses) -> None:
        self.accesses = accesses
        self.keys: list[Key] = []

    def numbers(self, batch: AccessBatch) -> Uint32s:
        raise NotImplementedError

    def constant_numbers(self, batch: AccessBatch) -> Uint32s:
        """The same of constants, whose addresses are not known; `NO_GROUP` where the group is not."""
        import numpy as np

        return np.full(len(batch), NO_GROUP, dtype=np.uint32)

    @property
    def identities(self) -> Sequence[Key]:
        """What tells the groups apart, one for each number: their keys, where no two are alike."""
        return self.keys

    def continue_from(self, before: Dimension) -> None:
        """Gives groups the numbers that they had when the capture was shorter; new ones come behind."""
        if list(self.identities[: len(before.identities)]) != list(before.identities):
            raise ValueError("the groups of the shorter capture have other numbers")

    @property
    def knows_constants(self) -> bool:
        """Whether constants that traces leave out can be counted by group."""
        return False

    @property
    def has_constants(self) -> bool:
        """Whether they belong to groups at all: they have no known address."""
        return False


def renumbered(now: Dimension, before: Dimension) -> Uint32s:
    """New numbers by present ones, as `Dimension.continue_from` says; `keys` become the identities in that order."""
    import numpy as np

    index = {one: number for number, one in enumerate(before.identities)}
    numbers = [index.setdefault(one, len(index)) for one in now.identities]
    now.keys = list(index)
    return np.array(numbers, dtype=np.uint32)


class _OfWindow(Dimension):
    """All accesses of a window, constants included, belong to one group."""

    def constant_numbers(self, batch: AccessBatch) -> Uint32s:
        return self.numbers(batch)

    @property
    def knows_constants(self) -> bool:
        return True

    @property
    def has_constants(self) -> bool:
        return True


class _OfCode(Dimension):
    """The code of an access has its group."""

    columns = frozenset({"codes"})
    _of_code: Uint32s

    def continue_from(self, before: Dimension) -> None:
        numbers = renumbered(self, before)
        self._of_code = numbers[self._of_code]

    def numbers(self, batch: AccessBatch) -> Uint32s:
        import numpy as np

        return self._of_code[np.minimum(self.accesses.codes(batch), np.uint32(len(self._of_code) - 1))]

    def constant_numbers(self, batch: AccessBatch) -> Uint32s:
        import numpy as np

        codes = self.accesses.codes(batch)
        found = self._of_code[np.minimum(codes, np.uint32(len(self._of_code) - 1))]
        # Without an instruction either, nothing leads to their code; code without a name is a group like others.
        return np.where((codes >= len(self._of_code)) & (batch.pc == 0), np.uint32(NO_GROUP), found).astype(np.uint32)

    @property
    def knows_constants(self) -> bool:
        return self.accesses.knows_constants_by_code

    @property
    def has_constants(self) -> bool:
        return True


class _Program(_OfWindow):
    def __init__(self, accesses: ThreadAccesses) -> None:
        super().__init__(accesses)
        self.keys = [()]

    def numbers(self, batch: AccessBatch) -> Uint32s:
        import numpy as np

        return np.zeros(len(batch), dtype=np.uint32)


class _Thread(_OfWindow):
    names = ("process", "thread", "thread_name")

    def __init__(self, accesses: ThreadAccesses) -> None:
        super().__init__(accesses)
        rows = accesses.capture.table("threads").to_pylist()
        names = {(row["process"], row["thread"]): row["name"] for row in rows}
        self.keys = [(*key, names.get(key)) for key in accesses.streams]

    def numbers(self, batch: AccessBatch) -> Uint32s:
        import numpy as np

        return np.full(len(batch), batch.stream, dtype=np.uint32)


class _Region(_OfWindow):
    names = ("region",)

    def __init__(self, accesses: ThreadAccesses) -> None:
        import numpy as np

        super().__init__(accesses)
        strings = accesses.capture.strings()
        found, self._of_window = np.unique(accesses.capture.windows.columns["region"], return_inverse=True)
        self.keys = [(strings.get(int(number)) if number else None,) for number in found]

    def numbers(self, batch: AccessBatch) -> Uint32s:
        import numpy as np

        return self._of_window.reshape(-1)[batch.window].astype(np.uint32)


class _Code(_OfCode):
    def __init__(self, accesses: ThreadAccesses, *, line: bool) -> None:
        import numpy as np

        from .traffic import CodeNames

        super().__init__(accesses)
        names = CodeNames(accesses.capture)
        self.names = ("function", "module", "file", "line") if line else ("function", "module")
        columns: list[Sequence[int | str | None]] = [
            names.function,
            names.module,
            *([names.file, names.line] if line else []),
        ]
        index: dict[Key, int] = {}
        numbers = [index.setdefault(key, len(index)) for key in zip(*columns, strict=True)]
        self._of_code = np.array(numbers, dtype=np.uint32)
        self.keys = list(index)


class _Object(Dimension):
    names = ("object", "kind")
    columns = frozenset({"objects"})

    def __init__(self, accesses: ThreadAccesses) -> None:
        from ._object_groups import ObjectGroups

        super().__init__(accesses)
        groups = ObjectGroups(accesses.capture)
        self._of_object = groups.of_object
        # Groups of one name differ by thread or site: one row each, as in the analysis `accesses`.
        self.keys = [(row["object"], row["kind"]) for row in groups.rows]
        self._identities = [tuple(row.values()) for row in groups.rows]

    @property
    def identities(self) -> Sequence[Key]:
        return self._identities

    def continue_from(self, before: Dimension) -> None:
        keys = dict(zip(self._identities, self.keys, strict=True)) | dict(
            zip(before.identities, before.keys, strict=True)
        )
        numbers = renumbered(self, before)
        self._of_object = numbers[self._of_object]
        self._identities = list(self.keys)
        self.keys = [keys[one] for one in self._identities]

    def numbers(self, batch: AccessBatch) -> Uint32s:
        found: Uint32s = self._of_object[self.accesses.objects(batch)]
        return found


class _Loop(_OfCode):
    """The innermost loop around an access, as the table ``sites`` names it; (None, …) outside any.

    A loop of traced code belongs to the function that it is written in, also where an access in it is of an inlined one.
    """

    def __init__(self, accesses: ThreadAccesses, *, function_name: str = "function") -> None:
        import numpy as np

        from .traffic import CodeNames

        super().__init__(accesses)
        self.names = ("loop", function_name, "module", "loop_depth", "loop_parent")
        capture = accesses.capture
        loops = capture.table("sites").column("loop").to_pylist()
        if not any(loops):
            raise NoDataError(
                "this capture does not record the loops of its accesses",
                hint="programs built by this version's memlens cc --memlens=trace do, and imported MemGaze traces with an "
                ".hpcstruct; group by line instead",
            )
        names = CodeNames(capture)
        loops = [*loops[: names.count], *[None] * (names.count + 1 - len(loops[: names.count]))]
        functions: list[str | None] = list(names.function)
        nesting: list[tuple[int | None, str | None]] = [(None, None)] * len(loops)
        traced = capture.table("trace_sites").select(["code", "loop_function", "loop_depth", "loop_parent"]).to_pylist()
        for row in traced:
            if row["loop_depth"] is not None:
                functions[row["code"]] = row["loop_function"]
                nesting[row["code"]] = row["loop_depth"], row["loop_parent"]
        index: dict[Key, int] = {}
        keys = ((*key, *around) for *key, around in zip(loops, functions, names.module, nesting, strict=True))
        numbers = [index.setdefault(key, len(index)) for key in keys]
        self._of_code = np.array(numbers, dtype=np.uint32)
        self.keys = list(index)


class _Node(Dimension):
    """The NUMA node that a page lay on when the recorder last asked; None where it did not, or the page had gone.

    A machine with one node needs no asking.
    """

    names = ("node",)

    def __init__(self, accesses: ThreadAccesses) -> None:
        import numpy as np

        super().__init__(accesses)
        capture = accesses.capture
        nodes = capture.meta.get("machine", {}).get("numa_nodes", [])
        self._only = None if len(nodes) > 1 else 1
        self.keys = [(None,), (nodes[0]["node"] if nodes else 0,)]
        if self._only is not None:
            return
        placements = capture.table("placements")
        if not placements.num_rows:
            raise NoDataError(
                "this capture does not record the NUMA nodes of its pages",
                hint="record page faults with the accesses: memlens record asks for the node of every page that faults",
            )
        self.keys = [(None,), *((node["node"],) for node in nodes)]
        number = {key[0]: at for at, key in enumerate(self.keys)}
        table = {
            name: placements.column(name).to_numpy() for name in ("process", "address", "time_ns", "node", "page_shift")
        }
        order = np.lexsort((table["time_ns"], table["address"], table["process"]))
        self._pages: dict[int, tuple[Uint64s, Uint64s, Uint32s]] = {}
        for process in np.unique(table["process"]).tolist():
            mine = order[table["process"][order] == process]
            address = table["address"][mine].astype(np.uint64)
            last = np.concatenate((np.diff(address) != 0, [True]))  # of several answers the latest
            mine, address = mine[last], address[last]
            found = np.array([number.get(node, 0) for node in table["node"][mine].tolist()], dtype=np.uint32)
            self._pages[process] = (
                address,
                address + (np.uint64(1) << table["page_shift"][mine].astype(np.uint64)),
                found,
            )

    def numbers(self, batch: AccessBatch) -> Uint32s:
        import numpy as np

        if self._only is not None:
            return np.full(len(batch), self._only, dtype=np.uint32)
        if batch.process not in self._pages:
            return np.zeros(len(batch), dtype=np.uint32)
        begins, ends, nodes = self._pages[batch.process]
        at = np.searchsorted(begins, batch.address, side="right").astype(np.int64) - 1
        inside = (at >= 0) & (batch.address < ends[np.maximum(at, 0)])
        return np.where(inside, nodes[np.maximum(at, 0)], np.uint32(0))


class _Range(Dimension):
    """Ranges that were given, (None, None) for what lies outside them; or all pages of one size."""

    names = ("process", "range_begin", "range_bytes")

    def __init__(self, accesses: ThreadAccesses, ranges: Sequence[Range] | None, range_bytes: int) -> None:
        import numpy as np

        super().__init__(accesses)
        if range_bytes < 1 or range_bytes & (range_bytes - 1):
            raise UsageError(
                f"ranges of {range_bytes} bytes are not a power of two", hint="for example range_bytes=2097152"
            )
        self._bytes, self._ranges = range_bytes, None
        self._index: dict[tuple[int, int], int] = {}
        if ranges is None:
            return
        given = sorted(ranges)
        for begin, end in given:
            if not 0 <= begin < end <= 2**64:
                raise UsageError(
                    f"invalid range of addresses: {begin:#x} to {end:#x}", hint="(begin, end), end not included"
                )
        for (_, end), (begin, _) in itertools.pairwise(given):
            if begin < end:
                raise UsageError(f"ranges overlap at {begin:#x}", hint="an access belongs to one range")
        self._given = given
        self._ranges = (
            np.array([b for b, _ in given], dtype=np.uint64),
            np.array([e - 1 for _, e in given], dtype=np.uint64),
        )

    def numbers(self, batch: AccessBatch) -> Uint32s:
        import numpy as np

        if self._ranges is None:
            place = batch.address & np.uint64(~(self._bytes - 1) & (2**64 - 1))
        else:
            begins, lasts = self._ranges
            at = np.searchsorted(begins, batch.address, side="right").astype(np.int64) - 1
            inside = (
                (at >= 0) & (batch.address <= lasts[np.maximum(at, 0)])
                if len(begins)
                else np.zeros(len(batch), dtype=bool)
            )
            place = np.where(inside, at, len(begins)).astype(np.uint64)
        found, inverse = np.unique(place, return_inverse=True)
        numbers: Uint32s = np.array([self._number(batch.process, value) for value in found.tolist()], dtype=np.uint32)
        of_access: Ints = inverse.reshape(-1)
        return numbers[of_access]

    def _number(self, process: int, value: int) -> int:
        key = (process, value)
        if key not in self._index:
            self._index[key] = len(self.keys)
            if self._ranges is None:
                self.keys.append((process, value, self._bytes))
            elif value < len(self._given):
                begin, end = self._given[value]
                self.keys.append((process, begin, end - begin))
            else:
                self.keys.append((process, None, None))
        return self._index[key]


class _Pair(Dimension):
    def __init__(self, first: Dimension, second: Dimension) -> None:
        import numpy as np

        super().__init__(first.accesses)
        self._parts = (first, second)
        self.columns = first.columns | second.columns
        # What both say of an access (its process, its function) is the same: once is enough.
        self._kept = [at for at, name in enumerate(second.names) if name not in first.names]
        self.names = (*first.names, *(second.names[at] for at in self._kept))
        self._seen = np.zeros(0, dtype=np.uint64)
        self._number = np.zeros(0, dtype=np.uint32)
        self._sizes = (0, 0)
        self._cells = np.zeros(0, dtype=np.uint32)

    def of_parts(self, first: Uint32s, second: Uint32s) -> Uint32s:
        """Numbers of pairs of numbers; new pairs get the next ones."""
        import numpy as np

        sizes = len(self._parts[0].keys), len(self._parts[1].keys)
        if sizes[0] * sizes[1] <= MOST_CELLS:
            return self._of_cells(first, second, sizes)
        wanted, inverse = np.unique(
            first.astype(np.uint64) << np.uint64(32) | second.astype(np.uint64), return_inverse=True
        )
        self._number_new(wanted)
        of_access: Ints = inverse.reshape(-1)
        numbers: Uint32s = self._number[np.searchsorted(self._seen, wanted)]
        return numbers[of_access]

    def _of_cells(self, first: Uint32s, second: Uint32s, sizes: tuple[int, int]) -> Uint32s:
        """The same by a table of all pairs."""
        import numpy as np

        if sizes != self._sizes:
            self._sizes = sizes
            self._cells = np.full(sizes[0] * sizes[1], NO_GROUP, dtype=np.uint32)
            self._cells[self._cell_of(self._seen >> np.uint64(32), self._seen & np.uint64(2**32 - 1))] = self._number
        at = self._cell_of(first, second)
        numbers = self._cells[at]
        new = numbers == NO_GROUP
        if new.any():
            found = np.unique(at[new])
            self._number_new(
                (found // sizes[1]).astype(np.uint64) << np.uint64(32) | (found % sizes[1]).astype(np.uint64)
            )
            self._cells[self._cell_of(self._seen >> np.uint64(32), self._seen & np.uint64(2**32 - 1))] = self._number
            numbers = self._cells[at]
        return numbers

    def continue_from(self, before: Dimension) -> None:
        assert isinstance(before, _Pair)
        for mine, theirs in zip(self._parts, before._parts, strict=True):
            mine.continue_from(theirs)
        self._seen, self._number, self.keys = before._seen, before._number, list(before.keys)

    def _cell_of(self, first: Integers, second: Integers) -> Ints:
        import numpy as np

        return first.astype(np.int64) * self._sizes[1] + second.astype(np.int64)

    def _number_new(self, wanted: Uint64s) -> None:
        """Gives those pairs numbers that have none, in ascending order."""
        import numpy as np

        fresh = wanted[~np.isin(wanted, self._seen)]
        if len(fresh):
            for pair in fresh.tolist():
                other = self._parts[1].keys[pair & 0xFFFFFFFF]
                self.keys.append((*self._parts[0].keys[pair >> 32], *(other[at] for at in self._kept)))
            numbers = np.arange(len(self._seen), len(self._seen) + len(fresh), dtype=np.uint32)
            seen = np.concatenate((self._seen, fresh))
            order = np.argsort(seen, kind="stable")
            self._seen, self._number = seen[order], np.concatenate((self._number, numbers))[order]

    def numbers(self, batch: AccessBatch) -> Uint32s:
        return self.of_parts(*(part.numbers(batch) for part in self._parts))

    def constant_numbers(self, batch: AccessBatch) -> Uint32s:
        import numpy as np

        first, second = (part.constant_numbers(batch) for part in self._parts)
        known = (first != NO_GROUP) & (second != NO_GROUP)
        found = np.full(len(batch), NO_GROUP, dtype=np.uint32)
        if known.any():
            found[known] = self.of_parts(first[known], second[known])
        return found

    @property
    def knows_constants(self) -> bool:
        return all(part.knows_constants for part in self._parts)

    @property
    def has_constants(self) -> bool:
        return all(part.has_constants for part in self._parts)


def named_dimension(
    accesses: ThreadAccesses,
    by: str | tuple[str, str],
    *,
    ranges: Sequence[Range] | None = None,
    range_bytes: int = RANGE_BYTES,
) -> Dimension:
    """A dimension by name, or two of them crossed: ``"function"``, ``("function", "object")``, ``"function,object"``."""
    parts = by.split(",") if isinstance(by, str) else list(by)
    unknown = [part for part in parts if part not in DIMENSIONS]
    if unknown or not 1 <= len(parts) <= 2:
        raise UsageError(
            f"accesses cannot be grouped by {' and '.join(map(repr, unknown or parts))}",
            hint=f"one or two of {', '.join(DIMENSIONS)}",
        )
    made = [_Range(accesses, ranges, range_bytes) if part == "range" else _one(accesses, part, parts) for part in parts]
    return made[0] if len(made) == 1 else _Pair(made[0], made[1])


def _one(accesses: ThreadAccesses, name: str, parts: Sequence[str]) -> Dimension:
    if name in ("function", "line"):
        return _Code(accesses, line=name == "line")
    if name == "loop":
        # An access of an inlined function may be in a loop of another one.
        return _Loop(accesses, function_name="loop_function" if {"function", "line"} & set(parts) else "function")
    kinds: dict[str, type[Dimension]] = {
        "program": _Program,
        "thread": _Thread,
        "region": _Region,
        "object": _Object,
        "node": _Node,
    }
    return kinds[name](accesses)
