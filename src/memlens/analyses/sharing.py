"""Analysis `sharing`: lines that threads share and write: who, where, and whether they use the same bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypedDict

from ..registry import AnalysisDescriptor, Option
from ._locality_view import sharing_view

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

    from ..arrays import Array, Columns, Ints, Uint64s
    from ..capture.model.access_pass import TaskPool, TimeGroup
    from ..capture.model.locality import AccessSource, ThreadAccesses
    from ..capture.reader import Capture
    from ..results import Result

MOST_LINES = 2000
LOOKS = 17
"""Moments at which the object of a line is looked for: objects come and go."""
MAX_USEFUL = 0.1
"""Of the hand-overs of a falsely shared line: a thread may add up at the end what the others have counted next to its own counter."""
MIN_HAND_OVERS = 20
"""With fewer, the bytes that each thread uses decide."""


def line_sharing(capture: Capture, *, line_bytes: int = 64) -> Result:
    """False and true sharing of lines between the threads of a process.

    ``hand_overs`` are accesses that find the line last written (or, for a write, last
    used) by the other thread since its own last use, in the order of time that windows give. ``useful_hand_overs`` are those that pass data: the thread uses a
    byte that another one wrote since its last useful one. ``kind`` is ``false`` where at most a tenth of the hand-overs are useful (with
    fewer than 20 hand-overs: where no byte that one thread writes is used by the other), else ``true``: of a falsely shared line only the line is shared,
    and moving the data of the threads apart ends the hand-overs. Windows of two threads seldom overlap, so
    of a sampled capture hand-overs are a lower bound; ``windows`` and ``other_windows`` are those in which each thread used the line while
    both used it (between the later first and the earlier last use), null where everything was recorded. Global variables of traced programs are
    included, though locality counts them as constants. ``offsets`` are the bytes of the line that each writes,
    ``fields`` what lies there where the object is a static variable whose type debug information describes.
    """
    from ..capture.model.access_pass import run

    consumer = SharingConsumer(capture, line_bytes=line_bytes)
    result: Result = run(consumer.accesses, consumer)
    return result


class SharingConsumer:
    """One engine for all threads: hand-overs need the order of time."""

    order: Literal["time"] = "time"
    columns = frozenset({"scalars"})

    def __init__(self, capture: Capture, *, line_bytes: int = 64, accesses: ThreadAccesses | None = None) -> None:
        from ..capture.model.locality import LineSharing, ThreadAccesses
        from ._chosen_accesses import chosen_accesses, with_all_code
        from ._selected import NotSelectable

        self.capture, self._line_bytes = capture, line_bytes
        if capture.selection.code:
            raise NotSelectable("lines are shared by threads, whatever their code")
        self.accesses = ThreadAccesses(with_all_code(capture)) if accesses is None else accesses
        self._choice = chosen_accesses(capture, self.accesses)
        processes = [process for process, _ in self.accesses.streams]
        self._several = len(processes) > len(set(processes))
        self._engine = LineSharing(line_bytes=line_bytes)
        self._taken = 0

    def begin(self, pool: TaskPool) -> None:
        pass

    def add(self, group: TimeGroup) -> None:
        if not self._several:
            return
        columns = group.columns
        self._engine.add(columns["address"], columns["bytes"], columns["is_store"], columns["stream"])
        self._taken += len(group)

    def continue_from(self, before: SharingConsumer) -> None:
        """Takes over what another one saw of the same capture when it was shorter."""
        if self._several != before._several:
            raise ValueError("a process has a second thread now")
        self._engine, self._taken = before._engine, before._taken

    def snapshot(self) -> Result:
        import numpy as np

        from ..results import Quality, Result

        capture, accesses, line_bytes, engine = self.capture, self.accesses, self._line_bytes, self._engine
        several, taken = self._several, self._taken
        pairs = {name: np.asarray(values) for name, values in engine.pairs().items()}
        whole = accesses.is_whole
        # The lines that are used the most, of those with as many hand-overs.
        uses = pairs["reads"] + pairs["writes"] + pairs["other_reads"] + pairs["other_writes"]
        order = np.lexsort((-uses, -pairs["hand_overs"])) if len(pairs["line"]) else np.zeros(0, dtype=np.int64)
        if not whole:  # few hand-overs are seen
            order = np.argsort(-uses, kind="stable") if len(order) else order
        pairs = {name: values[order] for name, values in pairs.items()}
        chosen = self._choice
        rows = _rows(
            accesses.capture, accesses, pairs, line_bytes, MOST_LINES if chosen is None else len(pairs["line"])
        )
        if chosen is not None:
            named = [at for at, row in enumerate(rows) if row["object"] == capture.selection.object][:MOST_LINES]
            rows, pairs = [rows[at] for at in named], {name: values[named] for name, values in pairs.items()}
            taken = sum(row[name] for row in rows for name in ("reads", "writes", "other_reads", "other_writes"))
        if whole:
            for row in rows:
                row["windows"] = row["other_windows"] = None
        else:
            _count_windows(accesses, rows, pairs, line_bytes)
        rows.sort(
            key=lambda row: (
                -row["hand_overs"],
                -(row["reads"] + row["writes"] + row["other_reads"] + row["other_writes"]),
            )
        )
        kinds = kinds_of(pairs)
        figures: dict[str, object] = {
            "threads": len(accesses.streams),
            "line_bytes": line_bytes,
            "accesses": taken if several else accesses.recorded,
            "lines": int(engine.lines) if chosen is None else None,
            "shared_lines": len(np.unique(pairs["line"])),
        }
        for kind in ("false", "true"):
            mine = kinds == kind
            figures[f"{kind}_sharing_lines"] = len(np.unique(pairs["line"][mine]))
            figures[f"{kind}_sharing_hand_overs"] = int(pairs["hand_overs"][mine].sum())
        notes = []
        if several and not whole:
            notes.append(
                "Sharing is observed within windows only: the listed hand-overs are a lower bound. Counting all of them needs every access: "
                "--emulate=full, or --trace=full of a program built with memlens cc --memlens=trace."
            )
        if len(rows) < len(pairs["line"]):
            notes.append(f"The table of shared lines has the first {len(rows):,} of {len(pairs['line']):,} pairs.")
        quality = capture.quality.joined(Quality(exact=whole or not several, notes=tuple(notes)))
        return Result("sharing", figures, {"lines": _table(rows), "by_object": _by_object(rows)}, quality)


def kinds_of(pairs: Columns) -> Array:
    """``false`` or ``true`` for each pair of threads and line."""
    import numpy as np

    by_use = pairs["useful"] <= MAX_USEFUL * pairs["hand_overs"]
    is_false = np.where(pairs["hand_overs"] >= MIN_HAND_OVERS, by_use, pairs["common_mask"] == 0)
    return np.where(is_false, "false", "true")


def _offsets(mask: int, unit: int) -> str:
    """Bytes of a mask as ranges: ``0-7, 16-23``."""
    ranges: list[list[int]] = []
    for bit in range(64):
        if mask >> bit & 1:
            if ranges and ranges[-1][1] == bit * unit - 1:
                ranges[-1][1] = bit * unit + unit - 1
            else:
                ranges.append([bit * unit, bit * unit + unit - 1])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in ranges)


class LineRow(TypedDict):
    """A row of table ``lines``: a cache line that two threads use."""

    process: int
    line: int
    kind: str
    thread: int
    other_thread: int
    hand_overs: int
    useful_hand_overs: int
    reads: int
    writes: int
    other_reads: int
    other_writes: int
    offsets: str
    other_offsets: str
    common_offsets: str
    written_address: int
    object: str | None
    fields: str | None
    other_fields: str | None
    windows: int | None
    other_windows: int | None


def _rows(capture: AccessSource, accesses: ThreadAccesses, pairs: Columns, line_bytes: int, most: int) -> list[LineRow]:
    from ..capture.model.locality import PROCESS_SHIFT

    count = min(most, len(pairs["line"]))
    columns = {name: values[:count].tolist() for name, values in pairs.items()}
    kinds = kinds_of(pairs)[:count].tolist()
    unit = max(1, line_bytes // 64)
    rows: list[LineRow] = []
    for at in range(count):
        (process, thread), (_, other) = accesses.streams[columns["thread"][at]], accesses.streams[columns["other"][at]]
        used = columns["write_mask"][at] | columns["other_write_mask"][at]
        first = (used & -used).bit_length() - 1
        rows.append(
            {
                "process": process,
                "line": columns["line"][at] & ((1 << PROCESS_SHIFT) - 1),
                "kind": kinds[at],
                "thread": thread,
                "other_thread": other,
                "hand_overs": columns["hand_overs"][at],
                "useful_hand_overs": columns["useful"][at],
                "reads": columns["reads"][at],
                "writes": columns["writes"][at],
                "other_reads": columns["other_reads"][at],
                "other_writes": columns["other_writes"][at],
                "offsets": _offsets(columns["write_mask"][at], unit),
                "other_offsets": _offsets(columns["other_write_mask"][at], unit),
                "common_offsets": _offsets(columns["common_mask"][at], unit),
                "written_address": (columns["line"][at] & ((1 << PROCESS_SHIFT) - 1)) + first * unit,
                "object": None,
                "fields": None,
                "other_fields": None,
                "windows": None,
                "other_windows": None,
            }
        )
    _name_objects(capture, rows)
    _name_fields(capture, rows)
    return rows


def _count_windows(accesses: ThreadAccesses, rows: list[LineRow], pairs: Columns, line_bytes: int) -> None:
    """In how many windows each thread of a pair uses the line while both do."""
    import numpy as np

    from ..capture.model.locality import PROCESS_SHIFT
    from ..capture.model.settled import SettledInTime

    lines = pairs["line"][: len(rows)].astype(np.uint64)
    wanted = np.unique(lines)
    mask = np.uint64(~(line_bytes - 1) & (2**64 - 1))
    found: list[Uint64s] = []
    # Most accesses are to other lines: a small table says so at once.
    shift = np.uint64(line_bytes.bit_length() - 1)
    may_be = np.zeros(1 << 16, dtype=bool)
    may_be[_low_bits(wanted, shift)] = True
    decoded, windows = accesses.capture.decoded, accesses.capture.windows
    given = accesses.is_given if isinstance(accesses, SettledInTime) else None
    for chunk in decoded if len(rows) else ():
        process = np.uint64(accesses.process_numbers[chunk.process] << PROCESS_SHIFT)
        for part in decoded.unpacked(chunk):
            line = (part["address"] ^ process) & mask
            mine = np.flatnonzero(may_be[_low_bits(line, shift)])
            at = np.minimum(np.searchsorted(wanted, line[mine]), len(wanted) - 1)
            is_wanted = wanted[at] == line[mine]
            mine, at = mine[is_wanted], at[is_wanted]
            if given is not None and len(mine):
                is_given = given(part["row"][mine] + np.uint32(chunk.first), part["time_ns"][mine])
                mine, at = mine[is_given], at[is_given]
            if len(mine):
                window = part["row"][mine] + np.uint32(chunk.first)
                unit, stream = windows.units.of_window[window], accesses.stream_of_window[window].astype(np.uint64)
                # One for each line and window: its first use.
                _, first = np.unique(at.astype(np.uint64) << np.uint64(32) | unit, return_index=True)
                found.append(np.stack((at[first].astype(np.uint64), stream[first], part["time_ns"][mine][first])))
    at, stream, time = np.concatenate(found, axis=1) if found else np.zeros((3, 0), dtype=np.uint64)
    key = at << np.uint64(32) | stream
    order = np.lexsort((time, key))
    key, time = key[order], time[order]
    of_line = np.searchsorted(wanted, lines)
    for number, row in enumerate(rows):
        own = []
        for name in ("thread", "other"):
            mine_key = np.uint64((int(of_line[number]) << 32) | int(pairs[name][number]))
            low, high = np.searchsorted(key, mine_key), np.searchsorted(key, mine_key, side="right")
            own.append(time[low:high])
        if not len(own[0]) or not len(own[1]):
            row["windows"] = row["other_windows"] = 0
            continue
        begin, end = max(own[0][0], own[1][0]), min(own[0][-1], own[1][-1])
        row["windows"], row["other_windows"] = (int(((t >= begin) & (t <= end)).sum()) for t in own)


def _low_bits(lines: Uint64s, shift: np.uint64) -> Ints:
    """Places in a table of 2^16, neither two neighbours nor two pages in one."""
    import numpy as np

    number: Uint64s = lines >> shift
    return ((number ^ (number >> np.uint64(16))) & np.uint64(0xFFFF)).astype(np.int64)


def _name_objects(capture: AccessSource, rows: list[LineRow]) -> None:
    """The object at the first byte that is written: the one that lies there at most of some moments."""
    from collections import Counter

    import numpy as np

    from ._object_groups import ObjectGroups

    if not rows:
        return
    groups = ObjectGroups(capture)
    columns = capture.windows.columns
    addresses = np.array([row["written_address"] for row in rows], dtype=np.uint64)
    processes = np.array([row["process"] for row in rows], dtype=np.uint32)
    seen: list[Counter[str]] = [Counter() for _ in rows]
    for moment in np.linspace(int(columns["begin_ns"].min()), int(columns["end_ns"].max()), LOOKS).astype(np.uint64):
        times = np.full(len(rows), moment, dtype=np.uint64)
        for names, found in zip(
            seen, capture.objects.everything.find(addresses, times, process=processes).tolist(), strict=True
        ):
            if found:
                names[groups.rows[int(groups.of_object[found])]["object"]] += 1
    for row, names in zip(rows, seen, strict=True):
        row["object"] = names.most_common(1)[0][0] if names else None


def _name_fields(capture: AccessSource, rows: list[LineRow]) -> None:
    """Fields that each thread writes, of static variables whose type debug information describes; None of other objects."""
    from ._fields import FieldsOfVariables
    from ._offsets import of_words

    fields = FieldsOfVariables(capture)
    for row in rows:
        row["fields"] = fields.at(row["object"], (row["line"] + one for one in of_words(row["offsets"])))
        row["other_fields"] = fields.at(row["object"], (row["line"] + one for one in of_words(row["other_offsets"])))


def _table(rows: list[LineRow]) -> pa.Table:
    import pyarrow as pa

    number, text = pa.uint64(), pa.string()
    return pa.Table.from_pylist(rows, schema=pa.schema([
        ("process", pa.uint32()), ("line", number), ("object", text), ("kind", text), ("thread", pa.uint32()),
        ("other_thread", pa.uint32()), ("hand_overs", number), ("useful_hand_overs", number), ("windows", number), ("other_windows", number), ("reads", number), ("writes", number), ("other_reads", number),
        ("other_writes", number), ("offsets", text), ("other_offsets", text), ("common_offsets", text), ("fields", text),
        ("other_fields", text)]))  # fmt: skip


def _by_object(rows: list[LineRow]) -> pa.Table:
    import pyarrow as pa

    groups: dict[tuple[str | None, str], list[LineRow]] = {}
    for row in rows:
        groups.setdefault((row["object"], row["kind"]), []).append(row)
    found = [
        {
            "object": name, "kind": kind, "lines": len({(row["process"], row["line"]) for row in mine}),
            "threads": len({row["thread"] for row in mine} | {row["other_thread"] for row in mine}),
            "hand_overs": sum(row["hand_overs"] for row in mine),
        }
        for (name, kind), mine in sorted(groups.items(), key=lambda group: -sum(row["hand_overs"] for row in group[1]))
    ]  # fmt: skip
    schema = pa.schema([("object", pa.string()), ("kind", pa.string()), ("lines", pa.uint64()), ("threads", pa.uint64()),
                        ("hand_overs", pa.uint64())])  # fmt: skip
    return pa.Table.from_pylist(found, schema=schema)


DESCRIPTOR = AnalysisDescriptor(
    name="sharing",
    question="Which cache lines do threads contend for, and do they use the same bytes of them?",
    needs=("window",),
    options=(Option("line_bytes", "bytes of a line, a power of two", 64),),
    run=line_sharing,
    consumer=SharingConsumer,
    view=sharing_view,
    provide="memlens record --emulate, or memlens cc --memlens=trace and memlens record",
)
