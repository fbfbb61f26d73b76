"""Objects as conclusions: which heap block, mapping, stack, tag or file lies at an address at a time.

The native engine (native/core/objects) replays allocations, tags, forks and mappings in time
order; this module feeds it, joins it with the faults of the replay and makes tables.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

from ... import _core
from ..store.source import TableSource
from .object_schema import object_schema
from .replay import FAULT_CLASSES, Replay

if TYPE_CHECKING:
    import pyarrow as pa

    from ...arrays import Array, Bools, Columns, Ints, Uint8s, Uint32s, Uint64s


KINDS: tuple[str, ...] = tuple(_core.OBJECT_KINDS)
PIECE: int = _core.OBJECT_PIECE
CUT: int = _core.OBJECT_CUT
"""Flags of objects: what a partial munmap left of one, and one that ended because a part of it was unmapped."""
MOST_STORED = 2_000_000
"""A side table of more objects is not written: it is made anew from the records when it is asked for."""
MOST_ROWS = 3_000_000
"""Of more objects those are forgotten that totals can do without."""
AT_ONCE = 1 << 20
"""Allocations of so many records are replayed at once, more are streamed."""
MOST_WAITING = 1 << 18
"""Streamed records that wait for earlier ones of other chunks."""
NOT_COUNTED = 2**64 - 1
VARIABLE_COLUMNS = ["process", "kind", "name", "base", "bytes", "thread", "born_ns"]


class ObjectSource(TableSource, Protocol):
    """What objects are joined with."""

    @property
    def replay(self) -> Replay: ...


class Objects:
    """The objects of a capture: sums of all of them, and rows.

    In a capture of millions of objects small ones that have ended have no row (`has_all` is False): the sums need none.
    `everything` has a row for each object, in the order of birth, and the index of who lay at an address at a time; it is made when
    it is asked for.
    """

    def __init__(self, capture: ObjectSource, *, most_rows: int | None = MOST_ROWS) -> None:
        self.capture = capture
        self.page_bytes = int(capture.meta.get("machine", {}).get("page_bytes", 4096))
        engine = _core.ObjectTable(page_bytes=self.page_bytes, most_rows=most_rows)
        for _, payload in capture.payloads("string"):
            engine.add_strings(payload)
        for name, add in (
            ("process_event", engine.add_process_events),
            ("mapping", engine.add_mappings),
            ("tag_event", engine.add_tag_events),
            ("thread_memory", engine.add_thread_memory),
        ):
            for header, payload in capture.payloads(name):
                add(header["process"], payload)
        self._variables = capture.table("variables").select(VARIABLE_COLUMNS).to_pylist()
        for row, variable in enumerate(self._variables):
            engine.add_variable(
                process=variable["process"],
                time_ns=variable["born_ns"],
                base=variable["base"],
                bytes=variable["bytes"],
                name=row + 1,
                thread=variable["thread"],
                is_thread_local=variable["kind"] == "tls",
            )
        for process in capture.table("processes").to_pylist():
            if process["end_ns"] is not None:
                engine.add_process_end(process["process"], process["end_ns"])
        self.engine = engine
        self._replay()

    def _replay(self) -> None:
        engine, capture = self.engine, self.capture
        if capture.kinds().get("allocation", 0) <= AT_ONCE:
            for arrival, (header, payload) in enumerate(capture.payloads("allocation")):
                engine.add_allocations(header["process"], payload, arrival)
            engine.run()
            return
        for header in capture.headers("allocation"):
            engine.expect(header["process"], header["begin_ns"], header["end_ns"])
        engine.begin()
        for part in capture.payloads_in_time("allocation"):
            engine.add_allocations(part.header["process"], part.payload, part.arrival)
            if part.next_ns is not None and engine.waiting >= MOST_WAITING:
                engine.advance(part.next_ns)
        engine.finish()

    @property
    def count(self) -> int:
        """All objects."""
        return int(self.engine.made)

    @property
    def has_all(self) -> bool:
        return bool(self.engine.made == self.engine.count)

    @cached_property
    def everything(self) -> Objects:
        """These objects with a row for each."""
        return self if self.has_all else Objects(self.capture, most_rows=None)

    def count_of(self, *kinds: str) -> int:
        """All objects of these kinds."""
        made = self.engine.made_of_kind
        return sum(int(made[KINDS.index(kind)]) for kind in kinds)

    @property
    def counts(self) -> dict[str, int]:
        """What the records could not tell: failed_calls, unknown_releases, lost_releases, unknown_unmaps."""
        return dict(self.engine.counts)

    @cached_property
    def columns(self) -> Columns:
        """NumPy columns, one row for each object that has one, in the order of birth; ``number`` is its id."""
        return self.engine.columns()

    def find(self, addresses: Uint64s, times_ns: Uint64s, *, process: Uint32s | int, layer: str = "any") -> Uint32s:
        """The object at each address and time, 0 = none; `process` is one number, or one for each.

        ``layer`` any: the first of heap, memlens, variable, stack, mmap, brk and file that has one.
        ``layer`` tag: the innermost tag.
        """
        import numpy as np

        processes = np.atleast_1d(np.ascontiguousarray(process, dtype=np.uint32))
        addresses = np.ascontiguousarray(addresses, dtype=np.uint64)
        times = np.ascontiguousarray(times_ns, dtype=np.uint64)
        if layer == "tag":
            return np.asarray(self.engine.find_tags(processes, addresses, times))
        return np.asarray(self.engine.find(processes, addresses, times, layer=layer))

    @cached_property
    def touches(self) -> Columns | None:
        """What faults say about each object; None when the capture has no faults and no page-table looks."""
        import numpy as np

        kinds = self.capture.kinds()
        if not kinds.get("fault") and not kinds.get("residency"):
            return None
        replay = self.capture.replay
        faults, placed = _joined(replay.fault_batches(own_code=True)), replay.placed
        page_bytes = np.uint64(replay.page_bytes)
        return self.engine.touch(
            process=faults["process"],
            time_ns=faults["time_ns"],
            address=faults["address"],
            span_bytes=np.left_shift(np.uint64(1), faults["span_shift"].astype(np.uint64)),
            new_bytes=faults["new_pages"].astype(np.uint64) * page_bytes,
            thread=faults["thread"],
            code=faults["code"],
            mapped_around=np.isin(faults["class"], [FAULT_CLASSES.index(name) for name in ("file", "major")]).astype(
                np.uint8
            ),
            weight=faults["weight"],
            sampled_from_ns=min((begin for begin, _, _ in replay.sampled_stretches), default=2**64 - 1),
            placed_process=placed["process"],
            placed_begin_ns=placed["begin_ns"],
            placed_end_ns=placed["end_ns"],
            placed_address=placed["address"],
            placed_bytes=placed["pages"] * page_bytes,
        )

    def table(self, rows: Ints | None = None) -> pa.Table:
        """The side table ``objects``; with ``rows`` (of `columns`) only those, in that order."""
        import numpy as np
        import pyarrow as pa

        from ..store.layouts import enum_names

        everything = rows is None
        columns = self.columns if everything else {name: values[rows] for name, values in self.columns.items()}
        count = len(columns["process"])
        died = columns["died_ns"]
        ended = died != 0
        operations = enum_names("allocation_operation")
        made: dict[str, Array | pa.Array] = {
            "id": columns["number"].astype(np.uint64),
            "process": columns["process"],
            "kind": _named(columns["kind"], dict(enumerate(KINDS))),
            "name": self._names(columns),
            "base": columns["base"],
            "bytes": columns["bytes"],
            "weight_bytes": np.where(columns["weight_bytes"] != 0, columns["weight_bytes"], columns["bytes"]),
            "count": columns["count_weight"],
            "born_ns": columns["born_ns"],
            "died_ns": pa.array(died, mask=~ended),
            "thread": columns["thread"],
            "death_thread": pa.array(columns["death_thread"], mask=~ended | (columns["death_thread"] == 0)),
            "stack": columns["stack"],
            "operation": _named(columns["operation"], operations),
            "previous": pa.array(self._number_of(columns["previous"]), mask=columns["previous"] == 0),
            "alignment_bytes": pa.array(
                np.left_shift(np.uint64(1), np.minimum(columns["alignment_shift"], 63).astype(np.uint64)),
                mask=columns["alignment_shift"] == 0,
            ),
        }
        made.update(self._touch_columns(rows, count))
        schema = object_schema()
        arrays = [
            (column if isinstance(column, pa.Array) else pa.array(column)).cast(field.type)
            for field, column in ((field, made[field.name]) for field in schema)
        ]
        return pa.Table.from_arrays(arrays, schema=schema)

    def _number_of(self, ids: Uint32s) -> Uint64s:
        """Numbers of objects by id in the engine, 0 = none."""
        import numpy as np

        return np.concatenate(([0], self.columns["number"])).astype(np.uint64)[ids]

    def _touch_columns(self, rows: Ints | None, count: int) -> dict[str, Array | pa.Array]:
        import numpy as np
        import pyarrow as pa

        touches = self.touches
        names = ("touched_bytes", "recycled_bytes", "never_touched_bytes", "faults", "first_touch_ns",
                 "first_touch_thread", "first_touch_code", "touching_threads", "top_thread_bytes")  # fmt: skip
        if touches is None:
            return {name: pa.nulls(count, pa.uint64()) for name in names}
        if rows is not None:
            touches = {name: values[rows] for name, values in touches.items()}
        page_bytes = np.uint64(self.page_bytes)
        made: dict[str, Array | pa.Array] = {}
        for name, which in (("touched_bytes", "touched"), ("recycled_bytes", "recycled"),
                            ("never_touched_bytes", "never")):  # fmt: skip
            unknown = ~_pages_known(touches, which)
            made[name] = pa.array(np.where(unknown, np.uint64(0), touches[f"{which}_pages"]) * page_bytes, mask=unknown)
        untouched = touches["has_touch"] == 0
        nobody = untouched | (touches["first_touch_thread"] == 0)  # placed by the kernel: no thread, no code
        made["faults"] = touches["faults"]
        made["first_touch_ns"] = pa.array(touches["first_touch_ns"], mask=untouched)
        made["first_touch_thread"] = pa.array(touches["first_touch_thread"], mask=nobody)
        made["first_touch_code"] = pa.array(touches["first_touch_code"], mask=nobody)
        made["touching_threads"] = touches["touching_threads"]
        made["top_thread_bytes"] = touches["top_thread_bytes"]
        return made

    def pages(self, which: str) -> Uint64s:
        """Bytes of touched, recycled or never touched pages of each object, 0 where they are not known (`pages_known`)."""
        import numpy as np

        touches = self.touches
        if touches is None:
            return np.zeros(self.count, dtype=np.uint64)
        counts = touches[f"{which}_pages"]
        return np.where(_pages_known(touches, which), counts, np.uint64(0)) * np.uint64(self.page_bytes)

    def pages_known(self, which: str) -> Bools:
        """For which objects `pages` has evidence, as a mask: an object holds a whole page, and for ``never`` it is private
        anonymous memory (of files and shared memory one fault maps up to 16 pages, and other processes fill them)."""
        import numpy as np

        touches = self.touches
        return np.zeros(self.count, dtype=bool) if touches is None else _pages_known(touches, which)

    def is_kind(self, *names: str) -> Bools:
        """Which rows are of these kinds, as a mask."""
        import numpy as np

        wanted = np.zeros(256, dtype=bool)
        wanted[[KINDS.index(name) for name in names]] = True
        return wanted[self.columns["kind"]]

    def _names(self, columns: Columns) -> pa.Array:
        """Tags and files by their strings, stacks by their thread, variables, the brk area as the kernel calls it."""
        import numpy as np
        import pyarrow as pa

        names, kinds = columns["name"], columns["kind"]
        texts: list[str | None] = [None]
        index: dict[tuple[str, int], int] = {}
        codes = np.zeros(len(names), dtype=np.int32)
        strings = self.capture.strings()

        def text_of(what: str, number: int) -> str | None:
            if what == "stack":
                return f"stack of thread {number}"
            if what == "brk":
                return "[heap]"
            return self._variables[number - 1]["name"] if what in ("static", "tls") else strings.get(number)

        for row in np.flatnonzero((names != 0) | np.isin(kinds, [KINDS.index(name) for name in ("stack", "brk")])):
            kind = KINDS[kinds[row]]
            key = (kind, int(columns["thread"][row]) if kind == "stack" else int(names[row]))
            if key not in index:
                index[key] = len(texts)
                texts.append(text_of(*key))
            codes[row] = index[key]
        return pa.array(texts, type=pa.string()).take(pa.array(codes))

    def sites(self) -> pa.Table:
        """Totals of each (process, allocation stack, kind): what was allocated, what is left, peaks, lifetimes."""
        import pyarrow as pa

        columns = dict(self.engine.by_stack())
        columns["kind"] = _named(columns["kind"], dict(enumerate(KINDS)))
        columns["sampled"] = columns["sampled"].astype(bool)
        return pa.table({name: v if isinstance(v, pa.Array) else pa.array(v) for name, v in columns.items()})

    def peaks(self) -> pa.Table:
        """Totals of each process: peak of live heap and mmap bytes and when, allocations, what is left."""
        import pyarrow as pa

        return pa.table({name: pa.array(values) for name, values in self.engine.peaks().items()})

    def peaks_together(self, group_of_site: Ints, groups: int) -> Uint64s:
        """The peak of the live bytes of each group of `sites` together; -1: in no group.

        The highest of a noisy level is too high: where objects are sampled one half of the sample gives the time, the other the
        level (and vice versa).
        """
        import numpy as np

        groups_of = np.where(group_of_site < 0, 2**32 - 1, group_of_site).astype(np.uint32)
        exact, halves = self.engine.peaks_together(groups_of, groups)
        columns = self.engine.by_stack()
        mine = group_of_site >= 0
        noisy = np.zeros(groups, dtype=bool)
        noisy[group_of_site[mine & (columns["sampled"] != 0)]] = True
        # At least what a process leaves at its end, a time that no sample has chosen.
        left: dict[tuple[int, int], int] = {}
        for group, process, size in zip(
            group_of_site[mine].tolist(),
            columns["process"][mine].tolist(),
            columns["live_bytes"][mine].tolist(),
            strict=True,
        ):
            left[group, process] = left.get((group, process), 0) + size
        at_end = np.zeros(groups, dtype=np.uint64)
        for (group, _), size in left.items():
            at_end[group] = max(int(at_end[group]), size)
        peaks: Uint64s = np.where(noisy, np.maximum(halves // np.uint64(2), at_end), exact)
        return peaks

    def curve(self, process: int, kind: str = "heap") -> tuple[Uint64s, Uint64s]:
        """Live bytes over time, (times_ns, bytes): at most 2000 points, the highest among them."""
        times, levels = self.engine.curve(process, kind)
        return times, levels


TOUCH_COLUMNS = ("process", "time_ns", "address", "span_shift", "new_pages", "thread", "code", "class", "weight")


def _joined(batches: Iterator[Columns]) -> Columns:
    """What objects ask of faults, as whole columns."""
    import numpy as np

    parts: dict[str, list[Array]] = {name: [] for name in TOUCH_COLUMNS}
    for batch in batches:
        for name in TOUCH_COLUMNS:
            parts[name].append(batch[name])
    types = {
        "process": "u4",
        "thread": "u4",
        "code": "u4",
        "new_pages": "u4",
        "class": "u1",
        "span_shift": "u1",
        "weight": "f8",
    }
    return {name: np.concatenate(some) if some else np.empty(0, types.get(name, "u8")) for name, some in parts.items()}


def _pages_known(touches: Columns, which: str) -> Bools:
    import numpy as np

    known: Bools = touches["never_pages"] != np.uint64(NOT_COUNTED)
    marked: Bools = touches["never_known" if which == "never" else "touched_known"] != 0
    return known & marked


def _named(values: Uint8s, names: dict[int, str]) -> pa.Array:
    import pyarrow as pa

    texts = [names.get(value) for value in range(256)]
    return pa.array(texts, type=pa.string()).take(pa.array(values))
