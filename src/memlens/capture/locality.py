"""Accesses as plain columns, thread by thread, for the engines of native/core/locality; and these engines for Python.

An engine takes columns from anywhere: a capture's windows, an imported trace, arrays made by hand.

>>> import numpy as np
>>> sweep = np.arange(1000, dtype=np.uint64) % 10 * 64
>>> distances, _ = ReuseDistances(block_bytes=64).add(sweep)
>>> set(distances[10:].tolist())
{9}
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from .. import _core
from .accesses import NO_UNIT
from .layouts import enum_value

if TYPE_CHECKING:
    from .reader import Capture

AccessClasses = _core.AccessClasses
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

CLASSES = ("unknown", "constant", "strided", "irregular")
BATCH_ACCESSES = 1 << 17
PROCESS_SHIFT = 48
"""Processes have address spaces of their own: the number of a process goes above its addresses."""
STORE, ATOMIC = 2, 3
QUEUED_BATCHES = 4


@dataclass(frozen=True)
class AccessBatch:
    """Consecutive accesses of one thread."""

    stream: int
    """Row of `ThreadAccesses.streams`."""
    process: int
    thread: int
    window: Any
    """Record of each access (row of table ``windows``)."""
    unit: Any
    """Number of the window as it was sampled: one that was written as several records is one unit."""
    time_ns: Any
    pc: Any
    """Instruction, or number of the site for windows with sites."""
    address: Any
    bytes: Any
    is_store: Any
    weight: Any
    process_number: int = 0
    """Processes in the order of their first window."""
    site_code: Any = None
    """Code of each access whose window has sites; None = the window has instructions."""

    def __len__(self) -> int:
        return len(self.address)

    @property
    def key_address(self) -> Any:
        """Addresses that differ between processes."""
        import numpy as np

        number = self.process_number
        return self.address if number == 0 else self.address ^ np.uint64(number << PROCESS_SHIFT)


class ThreadAccesses:
    """All accesses of a capture, in the order of each thread."""

    def __init__(self, capture: Capture) -> None:
        import numpy as np

        self.capture = capture
        columns = capture.windows.columns
        keys = columns["process"].astype(np.uint64) << np.uint64(32) | columns["thread"]
        unique, first, of_window = np.unique(keys, return_index=True, return_inverse=True)
        order = np.argsort(first, kind="stable")
        number = np.empty(len(unique), dtype=np.uint32)
        number[order] = np.arange(len(unique), dtype=np.uint32)
        self._stream_of_window = number[of_window.reshape(-1)]
        self.streams: list[tuple[int, int]] = [(int(k) >> 32, int(k) & 0xFFFFFFFF) for k in unique[order]]
        """(process, thread), in the order of their first window."""
        processes = list(dict.fromkeys(process for process, _ in self.streams))
        self.process_numbers = {process: number for number, process in enumerate(processes)}
        self.damaged = 0

    def __iter__(self) -> Iterator[AccessBatch]:
        import numpy as np

        windows = self.capture.windows
        columns, units, weights = windows.columns, windows.units, windows.weights
        pc_delta = enum_value("stream_encoding", "pc_delta")
        first = 0
        self.damaged = 0
        for header, payload in self.capture.payloads("window"):
            process = header["process"]
            count = len(_core.window_headers(payload)[1])
            reader = _core.AccessReader(payload, batch_accesses=BATCH_ACCESSES)
            while (found := reader.next()) is not None:
                window = found["row"] + np.uint32(first)
                by_site = columns["encoding"][window] != pc_delta
                site_codes = windows.take_sites(found, window, by_site) if by_site.any() else None
                stream = self._stream_of_window[window]
                # Sites of different modules have the same numbers: they do not meet in one batch.
                changes = (np.diff(stream) != 0) | (np.diff(columns["module"][window]) != 0)
                cuts = np.concatenate(([0], np.flatnonzero(changes) + 1, [len(stream)]))
                for begin, end in zip(cuts[:-1].tolist(), cuts[1:].tolist(), strict=True):
                    part = slice(begin, end)
                    yield AccessBatch(
                        int(stream[begin]), process, int(columns["thread"][window[begin]]), window[part],
                        units.of_window[window[part]], found["time_ns"][part], found["code"][part], found["address"][part],
                        found["bytes"][part], (found["operation"][part] >= STORE).astype(np.uint8), weights[window[part]],
                        self.process_numbers[process], None if site_codes is None else site_codes[part],
                    )  # fmt: skip
            self.damaged += reader.damaged
            first += count

    def codes(self, batch: AccessBatch) -> Any:
        """The code (row of ``sites``) of each access, `NO_CODE` where it is not known."""
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
    def implied_constants(self) -> Any:
        """Constant accesses that each window (unit) leaves out."""
        import numpy as np

        windows = self.capture.windows
        implied = np.zeros(len(windows.units.executed), dtype=np.uint64)
        whose = windows.units.of_window
        drawn = whose != NO_UNIT
        np.add.at(implied, whose[drawn], windows.columns["implied_constant"][drawn].astype(np.uint64))
        return implied

    @cached_property
    def unit_executed(self) -> Any:
        """Accesses that each window (unit) stands for."""
        return self.capture.windows.units.executed

    @cached_property
    def unit_recorded(self) -> Any:
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
    def is_whole(self) -> bool:
        """Nothing was left out but constants."""
        units = self.capture.windows.units
        return int(units.covered.sum()) >= int(units.executed.sum())


class Classifier:
    """The class of each access: what is known of its code beforehand (table ``sites``, or `site_classes` by module), else from the addresses
    of its instruction. With `ignore_static` always from the addresses."""

    def __init__(
        self, accesses: ThreadAccesses, site_classes: Mapping[str, Any] | None = None, *, ignore_static: bool = False
    ) -> None:
        import numpy as np

        self._accesses = accesses
        self._site_classes = dict(site_classes or {})
        self._inferred = AccessClasses()
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
        for batch in accesses:
            if self._module(batch) in self._site_classes:
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

    def static_of(self, batch: AccessBatch) -> Any:
        """Class of each access as its code has it, 0 = not classed."""
        import numpy as np

        if not self._has_static:
            return np.zeros(len(batch), dtype=np.uint8)
        return self._of_code[np.minimum(self._accesses.codes(batch), np.uint32(len(self._of_code) - 1))]

    def _module_id(self, batch: AccessBatch) -> int:
        return int(self._accesses.capture.windows.columns["module"][batch.window[0]])

    def _module(self, batch: AccessBatch) -> str:
        return self._modules[self._module_id(batch)]

    def _keys(self, batch: AccessBatch) -> Any:
        """Instructions, or sites with their module above: a site's number is small."""
        import numpy as np

        module = self._module_numbers[self._module_id(batch)]
        return batch.pc if module == 0 else batch.pc | np.uint64(module << 40)

    def __call__(self, batch: AccessBatch) -> Any:
        import numpy as np

        if self._module(batch) in self._site_classes:
            table = np.asarray(self._site_classes[self._module(batch)], dtype=np.uint8)
            known = batch.pc < len(table)
            self.static_accesses += int(known.sum())
            return np.where(known, table[np.where(known, batch.pc, np.uint64(0))], np.uint8(0))
        classes = self.static_of(batch)
        unknown = classes == 0
        n_unknown = int(unknown.sum())
        self.inferred_accesses += n_unknown
        self.static_accesses += len(batch) - n_unknown
        if n_unknown:
            inferred: Any = self._inferred.classify(batch.stream, self._keys(batch), batch.is_store)
            classes = np.where(unknown, inferred, classes)
        return classes

    @property
    def origin(self) -> str:
        """``static``, ``inferred`` or ``mixed``."""
        if not self.static_accesses:
            return "inferred"
        return "mixed" if self.inferred_accesses else "static"

    def instructions(self) -> dict[str, Any]:
        """Class, most frequent step and its share of every instruction whose class was inferred."""
        return dict(self._inferred.verdicts())


class Workers:
    """Engines of several threads at the same time: each engine's work stays in order, on one worker."""

    def __init__(self, workers: int | None = None) -> None:
        count = max(1, workers or os.cpu_count() or 1)
        self._pools = [ThreadPoolExecutor(max_workers=1) for _ in range(count)]
        self._waiting: list[list[Future[Any]]] = [[] for _ in range(count)]

    def __enter__(self) -> Workers:
        return self

    def submit(self, stream: int, work: Callable[[], Any]) -> None:
        at = stream % len(self._pools)
        waiting = self._waiting[at]
        while len(waiting) >= QUEUED_BATCHES:  # memory stays bounded: the reader waits
            waiting.pop(0).result()
        waiting.append(self._pools[at].submit(work))

    def __exit__(self, kind: Any, value: Any, trace: Any) -> None:
        for pool in self._pools:
            pool.shutdown(wait=True, cancel_futures=kind is not None)
        if kind is None:
            for waiting in self._waiting:
                for future in waiting:
                    future.result()


def by_time(accesses: ThreadAccesses) -> Iterator[list[AccessBatch]]:
    """Batches of all threads, in groups: everything in a group is earlier than everything in the next."""
    import numpy as np

    waiting: dict[int, list[AccessBatch]] = {}
    begins = accesses.capture.windows.columns["begin_ns"]
    # The earliest moment that a later window record may still begin at.
    last_begin = np.minimum.accumulate(begins[::-1])[::-1] if len(begins) else begins
    held = 0
    for batch in accesses:
        waiting.setdefault(batch.stream, []).append(batch)
        held += len(batch)
        if held < 4 * BATCH_ACCESSES:
            continue
        at = int(batch.window[-1])
        limit = min(int(batch.time_ns[-1]), int(last_begin[at + 1]) if at + 1 < len(last_begin) else 2**64 - 1)
        ready, waiting = _split(waiting, limit)
        held = sum(len(b) for batches in waiting.values() for b in batches)
        if ready:
            yield ready
    rest = [batch for batches in waiting.values() for batch in batches]
    if rest:
        yield rest


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


def _part(batch: AccessBatch, part: slice) -> AccessBatch:
    return AccessBatch(
        batch.stream, batch.process, batch.thread, batch.window[part], batch.unit[part], batch.time_ns[part], batch.pc[part],
        batch.address[part], batch.bytes[part], batch.is_store[part], batch.weight[part], batch.process_number,
        None if batch.site_code is None else batch.site_code[part],
    )  # fmt: skip


def interleaved(batches: list[AccessBatch]) -> tuple[Any, dict[str, Any]]:
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
