"""Accesses as plain columns, thread by thread, for the engines of native/core/locality; and these engines for Python.

An engine takes columns from anywhere: a capture's windows, an imported trace, arrays made by hand.

>>> import numpy as np
>>> sweep = np.arange(1000, dtype=np.uint64) % 10 * 64
>>> distances, _ = ReuseDistances(block_bytes=64).add(sweep)
>>> set(distances[10:].tolist())
{9}
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

from ... import _core
from ..store.layouts import enum_value
from .accesses import NO_CODE, NO_UNIT, Windows, WindowSource
from .call_stacks import StackSource
from .decoded import BATCH_ACCESSES, DecodedChunk

if TYPE_CHECKING:
    from ...arrays import Bools, Columns, Floats, Ints, Uint8s, Uint32s, Uint64s
    from .constants import Told

AccessClasses = _core.AccessClasses
AccessJoin = _core.AccessJoin
CacheModel = _core.CacheModel
Footprint = _core.Footprint
IntervalTree = _core.IntervalTree
LineSharing = _core.LineSharing
LocalityStream = _core.LocalityStream
MissCurve = _core.MissCurve
ReuseDistances = _core.ReuseDistances
SampledCurve = _core.SampledCurve
memgaze_table = _core.memgaze_table
REUSE_FIRST: int = _core.REUSE_FIRST
REUSE_EARLIER: int = _core.REUSE_EARLIER

CLASSES: tuple[str, ...] = tuple(_core.ACCESS_CLASSES)
NODE_KINDS: tuple[str, ...] = tuple(_core.NODE_KINDS)
"""Of an interval tree."""
PROCESS_SHIFT = 48
"""Processes have address spaces of their own: the number of a process goes above its addresses."""
STORE, ATOMIC = enum_value("access_operation", "store"), enum_value("access_operation", "atomic")


@dataclass(frozen=True)
class AccessBatch:
    """Consecutive accesses of one thread."""

    stream: int
    """Row of `ThreadAccesses.streams`."""
    process: int
    thread: int
    window: Uint32s
    """Record of each access (row of table ``windows``)."""
    unit: Uint32s
    """Number of the window as it was sampled: one that was written as several records is one unit."""
    time_ns: Uint64s
    pc: Uint64s
    """Instruction, or number of the site for windows with sites."""
    address: Uint64s
    bytes: Uint32s
    is_store: Uint8s
    weight: Floats
    process_number: int = 0
    """Processes in the order of their first window."""
    site_code: Uint32s | None = None
    """Code of each access whose window has sites; None = the window has instructions."""
    number: Ints | None = None
    """Place of each access among all of its thread, constants included, where constants were asked for."""
    constants: AccessBatch | None = None
    """Constants that belong to these accesses: address and width are not known."""
    count: Uint64s | None = None
    """Of constants: how many a row stands for."""
    with_scalars: AccessBatch | None = None
    """The same with constants that are recorded, where both were asked for and differ."""
    made: Columns = field(default_factory=dict, compare=False, repr=False)
    """Columns that somebody has made of these accesses: `ThreadAccesses.make`."""

    def __len__(self) -> int:
        return len(self.address)

    @property
    def key_address(self) -> Uint64s:
        """Addresses that differ between processes."""
        import numpy as np

        number = self.process_number
        return self.address if number == 0 else self.address ^ np.uint64(number << PROCESS_SHIFT)


class AccessSource(WindowSource, StackSource, Protocol):
    """A capture with windows of accesses; stacks name the objects that they are grouped by."""

    @property
    def windows(self) -> Windows: ...


class ThreadAccesses:
    """All accesses of a capture, in the order of each thread."""

    def __init__(self, capture: AccessSource) -> None:
        import numpy as np

        self.capture = capture
        for _ in capture.decoded:  # from here on accesses are kept: the replay reads those, too
            pass
        columns = capture.windows.columns
        keys = columns["process"].astype(np.uint64) << np.uint64(32) | columns["thread"]
        unique, first, of_window = np.unique(keys, return_index=True, return_inverse=True)
        order = np.argsort(first, kind="stable")
        number = np.empty(len(unique), dtype=np.uint32)
        number[order] = np.arange(len(unique), dtype=np.uint32)
        self.stream_of_window = number[of_window.reshape(-1)]
        self.streams: list[tuple[int, int]] = [(int(k) >> 32, int(k) & 0xFFFFFFFF) for k in unique[order]]
        """(process, thread), in the order of their first window."""
        processes = list(dict.fromkeys(process for process, _ in self.streams))
        self.process_numbers = {process: number for number, process in enumerate(processes)}
        self.damaged = 0

    def __iter__(self) -> Iterator[AccessBatch]:
        return self.batches()

    def batches(
        self,
        *,
        constants: bool = False,
        scalars: bool = False,
        beside: bool = False,
        on_chunk: Callable[[DecodedChunk, list[Uint64s]], None] | None = None,
        since: int = 0,
    ) -> Iterator[AccessBatch]:
        """All accesses.

        Parameters
        ----------
        constants
            Batches say which constants belong to them. A batch may then have constants only.
        scalars
            Constants that are recorded (global variables, and what stands for others) are accesses like others.
        beside
            Batches also have themselves with such constants (`AccessBatch.with_scalars`). A batch may then have nothing else.
        on_chunk
            Called with each chunk and its packed batches before its accesses come.
        since
            Chunks to leave out.
        """
        import numpy as np

        windows = self.capture.windows
        raw = windows.raw
        pc_delta = enum_value("stream_encoding", "pc_delta")
        maker = _ConstantMaker(self) if constants else None
        any_sites = bool((raw["encoding"] != pc_delta).any())
        self.damaged = 0
        decoded = self.capture.decoded
        for chunk_number, chunk in enumerate(decoded):
            self.damaged += chunk.n_damaged
            if chunk_number < since:
                continue
            process = chunk.process
            packed = [*decoded.batches(chunk)]
            if on_chunk is not None:
                on_chunk(chunk, packed)
            for words in packed:
                found = _core.unpack_accesses(words, chunk.fixed)
                window = found["row"] + np.uint32(chunk.first)
                by_site: Bools = raw["encoding"][window] != pc_delta
                if maker is not None:
                    maker.take(process, found, window, by_site)
                has_sites = any_sites and bool(by_site.any())
                keep = None if scalars or not has_sites else ~windows.is_scalar(found, window, by_site)
                site_codes = windows.take_sites(found, window, by_site) if has_sites else None
                # Sites of different modules have the same numbers: they do not meet in one batch.
                begins = np.flatnonzero(window[1:] != window[:-1]) + 1
                of, before = window[begins], window[begins - 1]
                stream = self.stream_of_window
                changes = (stream[of] != stream[before]) | (raw["module"][of] != raw["module"][before])
                cuts = [0, *begins[changes].tolist(), len(window)]
                for begin, end in itertools.pairwise(cuts):
                    part: Ints | slice = slice(begin, end)
                    if keep is not None and not keep[part].all():
                        part = begin + np.flatnonzero(keep[part])
                    batch = self._batch(process, int(stream[window[begin]]), window, found, site_codes, part)
                    if maker is not None:
                        yield from maker.empty_before(int(window[begin]))
                        batch = maker.with_constants(batch, begin, end, part)
                    if beside and len(batch) < end - begin:
                        every = self._batch(
                            process, int(stream[window[begin]]), window, found, site_codes, slice(begin, end)
                        )
                        batch = replace(batch, with_scalars=every)
                    if len(batch) or batch.constants is not None or batch.with_scalars is not None:
                        yield batch
            if maker is not None:
                yield from maker.empty_before(chunk.first + chunk.count)

    def _batch(
        self, process: int, stream: int, window: Uint32s, found: Columns, site_codes: Uint32s | None, part: Ints | slice
    ) -> AccessBatch:
        import numpy as np

        windows = self.capture.windows
        rows = window[part]
        return AccessBatch(
            stream, process, self.streams[stream][1], rows, windows.units.of_window[rows], found["time_ns"][part], found["code"][part],
            found["address"][part], found["bytes"][part], (found["operation"][part] >= STORE).astype(np.uint8), windows.weights[rows],
            self.process_numbers[process], None if site_codes is None else site_codes[part],
        )  # fmt: skip

    @cached_property
    def _positions(self) -> Ints:
        """Number of the first access of each record among the accesses of its thread, constants included."""
        import numpy as np

        covered = self.capture.windows.covered
        order = np.argsort(self.stream_of_window, kind="stable")
        before = np.cumsum(covered[order]) - covered[order]
        begins = np.searchsorted(self.stream_of_window[order], np.arange(len(self.streams)))
        place = np.empty(len(covered), dtype=np.int64)
        place[order] = before - (before[begins] if len(begins) else before)[self.stream_of_window[order]]
        return place

    @property
    def lengths(self) -> list[int]:
        """Accesses that the records of each thread cover."""
        import numpy as np

        covered = self.capture.windows.covered
        sums = np.bincount(self.stream_of_window, weights=covered, minlength=len(self.streams))
        return [int(value) for value in sums]

    @property
    def knows_constants_by_code(self) -> bool:
        return bool(self.capture.windows.constants.known_by_code)

    @property
    def has_constants(self) -> bool:
        """Batches may have constants: records leave some out, or tables say that accesses stand for some."""
        windows = self.capture.windows
        return bool(windows.raw["implied_constant"].any()) or windows.constants.by_code

    @property
    def has_scalars(self) -> bool:
        """Constants are recorded, to stand for others."""
        return bool(self.capture.windows.constants.scalars.any())

    def make(self, batch: AccessBatch, name: str) -> Uint32s:
        """A column of a batch, made once: ``codes``, or ``objects`` (tags go before what they lie in)."""
        if name not in batch.made:
            batch.made[name] = self._codes(batch) if name == "codes" else self._objects(batch)
        return batch.made[name]

    def codes(self, batch: AccessBatch) -> Uint32s:
        """The code (row of ``sites``) of each access, `NO_CODE` where it is not known."""
        return self.make(batch, "codes")

    def objects(self, batch: AccessBatch) -> Uint32s:
        """The object at each address, 0 = none."""
        return self.make(batch, "objects")

    @cached_property
    def _has_tags(self) -> bool:
        objects = self.capture.objects.everything
        return bool(objects.is_kind("tag").any()) if objects.count else False

    def _objects(self, batch: AccessBatch) -> Uint32s:
        import numpy as np

        objects = self.capture.objects.everything
        found = objects.find(batch.address, batch.time_ns, process=batch.process)
        if self._has_tags:
            tags = objects.find(batch.address, batch.time_ns, process=batch.process, layer="tag")
            found = np.where(tags != 0, tags, found)
        return found

    def _codes(self, batch: AccessBatch) -> Uint32s:
        import numpy as np

        columns = self.capture.windows.columns
        codes = self.capture.windows.codes(
            np.full(len(batch), batch.process, dtype=np.uint32), batch.pc, columns["begin_ns"][batch.window]
        )
        if batch.site_code is None:
            return codes
        by_site = columns["encoding"][batch.window] != enum_value("stream_encoding", "pc_delta")
        return np.where(by_site, batch.site_code, codes)

    @property
    def implied_constants(self) -> Uint64s:
        """Constant accesses that each window (unit) leaves out."""
        import numpy as np

        windows = self.capture.windows
        implied = np.zeros(len(windows.units.executed), dtype=np.uint64)
        whose = windows.units.of_window
        drawn = whose != NO_UNIT
        np.add.at(implied, whose[drawn], windows.columns["implied_constant"][drawn].astype(np.uint64))
        return implied

    @cached_property
    def unit_executed(self) -> Uint64s:
        """Accesses that each window (unit) stands for."""
        return self.capture.windows.units.executed

    @cached_property
    def unit_recorded(self) -> Ints:
        """Accesses that each window (unit) has, without constants that are left out."""
        import numpy as np

        units, columns = self.capture.windows.units, self.capture.windows.columns
        drawn = units.of_window != NO_UNIT
        recorded = np.zeros(len(units.executed), dtype=np.int64)
        np.add.at(recorded, units.of_window[drawn], columns["recorded"][drawn].astype(np.int64))
        return recorded

    @property
    def recorded(self) -> int:
        return int(self.capture.windows.columns["recorded"].sum())

    @property
    def window_accesses(self) -> int:
        """The median length of windows, constants included."""
        import numpy as np

        lengths = np.asarray(self.unit_recorded) + self.implied_constants.astype(np.int64)
        return int(np.median(lengths)) if len(lengths) else 0

    @property
    def units_in_order(self) -> bool:
        """Whether the records of each thread lie in the order of their windows (units), so that a window that was left does not come again."""
        import numpy as np

        units = self.capture.windows.units.of_window
        order = np.argsort(self.stream_of_window, kind="stable")
        order = order[units[order] != NO_UNIT]
        same = np.diff(self.stream_of_window[order].astype(np.int64)) == 0
        return bool((np.diff(units[order].astype(np.int64))[same] >= 0).all())

    @property
    def is_whole(self) -> bool:
        """Nothing was left out but constants."""
        units = self.capture.windows.units
        return int(units.covered.sum()) >= int(units.executed.sum())


class _ConstantMaker:
    """Constants of batches, from what `capture/model/constants.py` knows of the accesses."""

    def __init__(self, accesses: ThreadAccesses) -> None:
        import numpy as np

        self._accesses = accesses
        self._windows = accesses.capture.windows
        self._known = self._windows.constants
        self._unattributed = self._known.unattributed
        # Records that have nothing but constants: no access leads to them.
        self._empty = np.flatnonzero((self._windows.raw["recorded"] == 0) & (self._windows.covered > 0)).tolist()
        self._next_empty = 0
        self._told: Told | None = None

    def take(self, process: int, found: Columns, window: Uint32s, by_site: Bools) -> None:
        """A decoded part, before its sites are looked up."""
        import numpy as np

        self._window, self._found, self._by_site = window, found, by_site
        last_row = self._told.last_row if self._told is not None else -1
        self._told = self._known.tell(process, found, window, by_site, self._told)
        access, code, number = self._known.expanded(self._told, by_site)
        # Where constants of no known code lie is not known either: they are spread over their record.
        self._place = self._spread(window, self._told.number)
        number = self._spread(window[access], number)
        count = np.ones(len(access), dtype=np.uint64)
        begins = np.flatnonzero(np.diff(window.astype(np.int64), prepend=last_row))
        left = self._unattributed[window[begins]]
        begins, left = begins[left > 0], left[left > 0]
        unknown = np.zeros(len(access), dtype=bool)
        if len(begins):
            access = np.concatenate((access, begins))
            code = np.concatenate((code, np.full(len(begins), NO_CODE, dtype=np.uint32)))
            number = np.concatenate((number, np.zeros(len(begins), dtype=np.int64)))
            count = np.concatenate((count, left.astype(np.uint64)))
            unknown = np.concatenate((unknown, np.ones(len(begins), dtype=bool)))
            order = np.argsort(access, kind="stable")
            access, code, number = access[order], code[order], number[order]
            count, unknown = count[order], unknown[order]
        self._unknown = unknown
        self._access, self._code, self._number, self._count = access, code, number, count

    def _spread(self, window: Uint32s, number: Ints) -> Ints:
        import numpy as np

        covered, left = self._windows.covered[window], self._unattributed[window]
        spread: Ints = number + number * left // np.maximum(covered - left, 1)
        return spread

    def with_constants(self, batch: AccessBatch, begin: int, end: int, part: Ints | slice) -> AccessBatch:
        """The batch of accesses `begin` to `end` of the decoded part, of which `part` are no constants."""
        import numpy as np

        base = self._accesses._positions
        number = self._place[part] + base[batch.window]
        low, high = np.searchsorted(self._access, (begin, end))
        if low == high:
            return replace(batch, number=number)
        access, code = self._access[low:high], self._code[low:high]
        rows = self._window[access]
        # Of an imported trace the constants of an access are its instruction's; what belongs to no code has none.
        pc = np.where(self._unknown[low:high], np.uint64(0), self._found["code"][access])
        return replace(
            batch,
            number=number,
            constants=self._constants(
                batch, rows, pc, code if self._by_site[begin] else None, self._number[low:high], self._count[low:high]
            ),
        )

    def empty_before(self, row: int) -> Iterator[AccessBatch]:
        """Batches without accesses for the records before `row` that have constants only."""
        import numpy as np

        accesses, raw = self._accesses, self._windows.raw
        while self._next_empty < len(self._empty) and self._empty[self._next_empty] < row:
            at = self._empty[self._next_empty]
            self._next_empty += 1
            process, stream = int(raw["process"][at]), int(accesses.stream_of_window[at])
            left = int(self._unattributed[at])
            if not left or self._windows.units.of_window[at] == NO_UNIT:
                continue
            none = {name: np.zeros(0, dtype=kind) for name, kind in _DECODED}
            batch = accesses._batch(process, stream, np.zeros(0, dtype=np.uint32), none, None, slice(None))
            rows, zero = np.array([at], dtype=np.uint32), np.zeros(1, dtype=np.int64)
            code = (
                None
                if raw["encoding"][at] == enum_value("stream_encoding", "pc_delta")
                else np.array([NO_CODE], dtype=np.uint32)
            )
            constants = self._constants(
                batch, rows, np.zeros(1, dtype=np.uint64), code, zero, np.array([left], dtype=np.uint64)
            )
            yield replace(batch, number=np.zeros(0, dtype=np.int64), constants=constants)

    def _constants(
        self, batch: AccessBatch, rows: Uint32s, pc: Uint64s, code: Uint32s | None, number: Ints, count: Uint64s
    ) -> AccessBatch:
        import numpy as np

        windows, size = self._windows, len(rows)
        return AccessBatch(
            batch.stream, batch.process, batch.thread, rows, windows.units.of_window[rows], windows.raw["begin_ns"][rows], pc,
            np.zeros(size, dtype=np.uint64), np.zeros(size, dtype=np.uint32), np.zeros(size, dtype=np.uint8), windows.weights[rows],
            batch.process_number, code, number + self._accesses._positions[rows], None, count,
        )  # fmt: skip


_DECODED = (("time_ns", "u8"), ("code", "u8"), ("address", "u8"), ("bytes", "u4"), ("operation", "u1"))


class Classifier:
    """The class of each access: what is known of its code beforehand (table ``sites``, or `site_classes` by module), else from the addresses
    of its instruction. With `ignore_static` always from the addresses.

    With `by_window` an instruction has a class in each window, from its addresses there: what a sample of windows can estimate. Whether
    one that stays at an address in every window stays there for the whole run, windows do not show. Seen once in a window it has none.
    """

    def __init__(
        self,
        accesses: ThreadAccesses,
        site_classes: Mapping[str, Uint8s] | None = None,
        *,
        ignore_static: bool = False,
        by_window: bool = False,
        infer: bool = True,
    ) -> None:
        """`infer`: reads all accesses now, for the classes that nobody knows beforehand."""
        import numpy as np

        self._accesses = accesses
        self._by_window = by_window
        self._site_classes = dict(site_classes or {})
        self._inferred = AccessClasses(least_accesses=2 if by_window else 1)
        self.static_accesses = 0
        self.inferred_accesses = 0
        strings = accesses.capture.strings()
        self._modules = {key: strings.get(key, "") for key in set(accesses.capture.windows.columns["module"].tolist())}
        # Numbers of strings may be large: modules get small ones, 0 for windows without.
        self._module_numbers = {key: at + 1 if key else 0 for at, key in enumerate(sorted(self._modules))}
        names = accesses.capture.table("sites").column("class").to_pylist()
        self._of_code = np.array(
            [CLASSES.index(name) if name in CLASSES else 0 for name in names] + [0], dtype=np.uint8
        )
        self._has_static = bool(self._of_code.any()) and not ignore_static
        for batch in accesses if infer else ():
            if not len(batch) or self._module(batch) in self._site_classes:
                continue
            unknown = self.static_of(batch) == 0
            if unknown.all():
                self._inferred.add(batch.stream, self._keys(batch), batch.address, batch.is_store, batch.unit)
            elif unknown.any():
                self._inferred.add(
                    batch.stream,
                    self._keys(batch)[unknown],
                    batch.address[unknown],
                    batch.is_store[unknown],
                    batch.unit[unknown],
                )

    def static_of(self, batch: AccessBatch) -> Uint8s:
        """Class of each access as its code has it, 0 = not classed."""
        import numpy as np

        if not self._has_static:
            return np.zeros(len(batch), dtype=np.uint8)
        return self._of_code[np.minimum(self._accesses.codes(batch), np.uint32(len(self._of_code) - 1))]

    def _module_id(self, batch: AccessBatch) -> int:
        return int(self._accesses.capture.windows.columns["module"][batch.window[0]])

    def _module(self, batch: AccessBatch) -> str:
        return self._modules[self._module_id(batch)]

    def _codes_of(self, batch: AccessBatch) -> Uint64s:
        """Instructions, or sites with their module above: a site's number is small."""
        import numpy as np

        module = self._module_numbers[self._module_id(batch)]
        return batch.pc if module == 0 else batch.pc | np.uint64(module << 40)

    def _keys(self, batch: AccessBatch) -> Uint64s:
        """The same, of each window for itself where classes are."""
        import numpy as np

        keys = self._codes_of(batch)
        if not self._by_window:
            return keys
        # Instruction and window as one number of 64 bits (the mixing of SplitMix64): two that meet are not to be expected.
        mixed: Uint64s = keys + (batch.unit.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return mixed ^ (mixed >> np.uint64(31))

    def known(self, batch: AccessBatch) -> tuple[Uint8s, Bools, Uint64s]:
        """(classes known beforehand, which accesses must be inferred, the key of each: its instruction)."""
        import numpy as np

        if self._module(batch) in self._site_classes:
            table = np.asarray(self._site_classes[self._module(batch)], dtype=np.uint8)
            known = batch.pc < len(table)
            self.static_accesses += int(known.sum())
            classes = np.where(known, table[np.where(known, batch.pc, np.uint64(0))], np.uint8(0))
            return classes, np.zeros(len(batch), dtype=bool), batch.pc
        classes = self.static_of(batch)
        unknown = classes == 0
        n_unknown = int(unknown.sum())
        self.inferred_accesses += n_unknown
        self.static_accesses += len(batch) - n_unknown
        return classes, unknown, self._codes_of(batch)

    def __call__(self, batch: AccessBatch) -> Uint8s:
        import numpy as np

        classes, unknown, _ = self.known(batch)
        if unknown.any():
            inferred = self._inferred.classify(batch.stream, self._keys(batch), batch.is_store)
            classes = np.where(unknown, np.asarray(inferred), classes)
        return classes

    @property
    def origin(self) -> str:
        """``static``, ``inferred`` or ``mixed``."""
        if not self.static_accesses:
            return "inferred"
        return "mixed" if self.inferred_accesses else "static"

    def instructions(self) -> dict[str, object]:
        """Class, most frequent step and its share of every instruction whose class was inferred."""
        return dict(self._inferred.verdicts())


class TimeOrder:
    """Batches of all threads put in order: everything in a group is earlier than everything in the next."""

    def __init__(self, accesses: ThreadAccesses) -> None:
        import numpy as np

        begins = accesses.capture.windows.columns["begin_ns"]
        # The earliest moment that a later window record may still begin at.
        self._last_begin = np.minimum.accumulate(begins[::-1])[::-1] if len(begins) else begins
        self._waiting: dict[int, list[AccessBatch]] = {}
        self._held = 0

    def push(self, batch: AccessBatch) -> Iterator[list[AccessBatch]]:
        """The groups that are ready now, at most one."""
        self._waiting.setdefault(batch.stream, []).append(batch)
        self._held += len(batch)
        if self._held < 4 * BATCH_ACCESSES:
            return
        at, last = int(batch.window[-1]), self._last_begin
        limit = min(int(batch.time_ns[-1]), int(last[at + 1]) if at + 1 < len(last) else 2**64 - 1)
        ready, self._waiting = _split(self._waiting, limit)
        self._held = sum(len(b) for batches in self._waiting.values() for b in batches)
        if ready:
            yield ready

    def rest(self) -> list[AccessBatch]:
        """What is left at the end."""
        left = [batch for batches in self._waiting.values() for batch in batches]
        self._waiting = {}
        return left


def _split(
    waiting: dict[int, list[AccessBatch]], limit_ns: int
) -> tuple[list[AccessBatch], dict[int, list[AccessBatch]]]:
    import numpy as np

    ready: list[AccessBatch] = []
    later: dict[int, list[AccessBatch]] = {}
    for stream, batches in waiting.items():
        for batch in batches:
            cut = int(np.searchsorted(batch.time_ns, np.uint64(limit_ns), side="left"))
            if stream in later:
                cut = 0
            if cut:
                ready.append(_part(batch, slice(0, cut)))
            if cut < len(batch):
                later.setdefault(stream, []).append(_part(batch, slice(cut, None)))
    return ready, later


def _part(batch: AccessBatch, part: slice | Ints) -> AccessBatch:
    return AccessBatch(
        batch.stream, batch.process, batch.thread, batch.window[part], batch.unit[part], batch.time_ns[part], batch.pc[part],
        batch.address[part], batch.bytes[part], batch.is_store[part], batch.weight[part], batch.process_number,
        None if batch.site_code is None else batch.site_code[part],
        made={name: values[part] for name, values in batch.made.items()},
    )  # fmt: skip


def interleaved(batches: list[AccessBatch]) -> tuple[Ints | slice, Columns]:
    """(order, columns) of batches that belong together: accesses of all threads in the order of time."""
    import numpy as np

    columns = {
        "address": np.concatenate([b.key_address for b in batches]),
        "bytes": np.concatenate([b.bytes for b in batches]),
        "is_store": np.concatenate([b.is_store for b in batches]),
        "stream": np.concatenate([np.full(len(b), b.stream, dtype=np.uint32) for b in batches]),
        "pc": np.concatenate([b.pc for b in batches]),
        "time_ns": np.concatenate([b.time_ns for b in batches]),
        "unit": np.concatenate([b.unit for b in batches]),
    }
    if len({b.stream for b in batches}) == 1:
        return slice(None), columns
    order = np.argsort(columns["time_ns"], kind="stable")
    return order, {name: values[order] for name, values in columns.items()}
