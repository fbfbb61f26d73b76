"""From the counters that emulated processes left in the arena to `code_count` records.

The guest shares its memory with the plugin: it can write anything there. A block that makes no sense is left out, as is a process
whose numbers are larger than the arena; both are counted.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from ....capture.store.arena_layouts import constants, layout
from ....capture.store.layouts import Packer, enum_names, enum_value, layouts
from ....capture.store.writer import CaptureWriter

if TYPE_CHECKING:
    from ....arrays import Bools, Ints, Records, Uint64s

_C = constants()
BLOCK_BYTES = _C["ML_BLOCK_BYTES"]
KIND_SLOTS, KIND_COUNTERS, KIND_REGIONS, KIND_MEMBERS, KIND_RUNS = (
    _C[f"ML_ARENA_{name}"] for name in ("SLOTS", "COUNTERS", "REGIONS", "MEMBERS", "RUNS")
)
BLOCK, SLOT, COUNTER, MEMBER = (
    layout(name).dtype() for name in ("arena_block", "count_slot", "slot_counter", "block_member")
)
"""Of a counter `parts_0` and `merged_0` are those elsewhere, `parts_1` and `merged_1` those on a stack."""
LOAD, STORE, UNSEEN, BOTH, BLOCK_RUNS = enum_names("slot_store")
WHOLE = _C["ML_SLOT_WHOLE"]  # in `store`: the slot's width is that of an access, not of its parts


class _Image:
    """The counters of one program image: a process between exec, fork and exit."""

    def __init__(self) -> None:
        self.slots: list[tuple[int, Records]] = []
        self.counters: list[tuple[int, int, int, Records]] = []
        self.regions: list[str] = [""]
        self.members: list[Records] = []
        self.runs: dict[tuple[int, int], list[tuple[Ints, Uint64s]]] = defaultdict(list)


def _images(extents: Iterable[bytes]) -> tuple[dict[tuple[int, int], _Image], int, int]:
    """Images by (pid, birth), all slots of the arena, extents with damage."""
    images: dict[tuple[int, int], _Image] = defaultdict(_Image)
    n_slots = n_damaged = 0
    for extent in extents:
        after = 0
        while after < len(extent):
            at = after
            if len(extent) - at < BLOCK.itemsize:
                n_damaged += 1
                break
            header = np.frombuffer(extent, dtype=BLOCK, count=1, offset=at)[0]
            if header["bytes"] == 0:
                break  # nothing was taken behind it
            after += int(header["bytes"])
            if header["kind"] not in (KIND_SLOTS, KIND_COUNTERS, KIND_REGIONS, KIND_MEMBERS, KIND_RUNS):
                continue
            known = header["kind"] in (KIND_SLOTS, KIND_COUNTERS)
            least = BLOCK_BYTES if known else BLOCK.itemsize
            if header["kind"] == KIND_MEMBERS:
                least += MEMBER.itemsize * int(header["used"])
            if header["bytes"] < least or after > len(extent):
                n_damaged += 1
                break
            image = images[int(header["pid"]), int(header["born_ns"])]
            content = at + BLOCK.itemsize
            first = int(header["first"])
            if header["kind"] == KIND_SLOTS:
                rows = np.frombuffer(extent, dtype=SLOT, count=(BLOCK_BYTES - BLOCK.itemsize) // 32, offset=content)
                image.slots.append((first, rows))
                n_slots += len(rows)
            elif header["kind"] == KIND_COUNTERS:
                rows = np.frombuffer(extent, dtype=COUNTER, count=(BLOCK_BYTES - BLOCK.itemsize) // 32, offset=content)
                if rows["parts_0"].any() or rows["parts_1"].any():
                    image.counters.append((int(header["thread"]), int(header["region"]), first, rows))
            elif header["kind"] == KIND_RUNS:
                runs = np.frombuffer(extent, dtype="<u8", count=(after - content) // 8, offset=content)
                used = np.flatnonzero(runs)
                if len(used):
                    image.runs[int(header["thread"]), int(header["region"])].append((used, runs[used]))
            elif header["kind"] == KIND_MEMBERS:
                image.members.append(np.frombuffer(extent, dtype=MEMBER, count=int(header["used"]), offset=content))
            else:
                text = extent[content : content + int(header["used"])]
                image.regions = ["", *(name.decode("utf-8", "replace") for name in text.split(b"\0")[:-1])]
    return images, n_slots, n_damaged


def code_counts(writer: CaptureWriter, extents: Iterable[bytes], processes: dict[int, int]) -> dict[str, int]:
    """Writes the records; returns totals."""
    totals: dict[str, int] = defaultdict(int)
    dtype = layouts()["code_count"].dtype()
    strings = Packer("string")
    names: dict[str, int] = {text: number for number, text in writer.strings.items()}

    def string_id(text: str) -> int:
        if text not in names:
            names[text] = max(writer.strings, default=0) + 1
            writer.records("string", [strings.pack(text.encode(), id=names[text])])
        return names[text]

    images, n_slots, n_damaged = _images(extents)
    if n_damaged:
        totals["damaged"] += n_damaged
    for (pid, _), image in sorted(images.items(), key=lambda item: item[0]):
        if pid not in processes:
            totals["unknown_processes"] += 1
            continue
        count = max((first + len(rows) for first, rows in image.slots), default=0)
        n_runs = max((int(rows["run"].max(initial=0)) for _, rows in image.slots), default=0)
        counted_runs = max((int(used[-1]) + 1 for parts in image.runs.values() for used, _ in parts), default=0)
        if count > n_slots or n_runs > n_slots or counted_runs > n_runs:
            totals["damaged"] += 1
            continue
        slots = np.zeros(count, dtype=SLOT)
        for first, rows in image.slots:
            slots[first : first + len(rows)] = rows
        whole = (slots["store"] & WHOLE) != 0
        slots["store"] &= ~np.uint16(WHOLE)
        by_place: dict[tuple[int, int], list[tuple[int, Records]]] = defaultdict(list)
        for thread, region, first, rows in image.counters:
            by_place[thread, region].append((first, rows))
        for place in image.runs:
            by_place[place]  # there may be no other counters
        blocks = np.flatnonzero(slots["run"])
        block_of_run = np.zeros(int(slots["run"].max(initial=0)), dtype=np.int64)
        block_of_run[slots["run"][blocks] - 1] = blocks
        for (thread, region), parts in sorted(by_place.items()):
            counters = np.zeros(count, dtype=COUNTER)
            for first, rows in parts:
                end = min(first + len(rows), count)
                # Several blocks may count for one place: what ran inline, and what called.
                for field in COUNTER.names or ():
                    counters[field][first:end] += rows[field][: end - first]
            for used, runs in image.runs[thread, region]:
                counters["parts_0"][block_of_run[used]] += runs
            _run_blocks(slots, counters, image.members)
            name = string_id(image.regions[region]) if 0 < region < len(image.regions) else 0
            table = _records(slots, counters, whole, dtype)
            table["thread"], table["region"] = thread, name
            if len(table):
                writer.append(
                    layouts()["code_count"].kind,
                    table.tobytes(),
                    record_count=len(table),
                    process=processes[pid],
                    begin_ns=int(table["time_ns"].min()),
                    end_ns=int(table["time_ns"].max()),
                )
            for field in ("loads", "stores", "load_bytes", "store_bytes", "unseen"):
                totals[field] += int(table[field].sum())
    return dict(totals)


def _run_blocks(slots: Records, counters: Records, members: list[Records]) -> None:
    """Blocks that counted their executions: their instructions get the parts that each execution makes."""
    for table in members:
        known = table[(table["block"] < len(slots)) & (table["slot"] < len(slots))]
        runs = counters["parts_0"][known["block"]]
        np.add.at(counters["parts_0"], known["slot"], runs * known["parts"])
    counters["parts_0"][slots["store"] == BLOCK_RUNS] = 0


def _records(slots: Records, counters: Records, whole: Bools, dtype: np.dtype[np.void]) -> Records:
    """One record an instruction, from its slots: directions and widths, counted inline or by calls."""
    used = np.flatnonzero(counters["parts_0"] + counters["parts_1"])
    slots, counters, whole = slots[used], counters[used], whole[used]
    parts = counters["parts_0"] + counters["parts_1"]
    merged = counters["merged_0"] + counters["merged_1"]
    keys = np.stack([slots["pc"], slots["generation"].astype("<u8")], axis=1)
    unique, inverse = np.unique(keys, axis=0, return_inverse=True)
    inverse = inverse.reshape(-1)
    table = np.zeros(len(unique), dtype=dtype)
    table["pc"] = unique[:, 0]
    table["time_ns"] = np.iinfo("<u8").max
    np.minimum.at(table["time_ns"], inverse, slots["first_ns"])
    np.bitwise_or.at(table["flags"], inverse, slots["flags"].astype("<u4"))
    inline = slots["parts"] > 0
    divisor = np.maximum(slots["parts"], 1).astype("<u8")
    accesses = np.where(inline, parts // divisor, parts - merged)
    stack_accesses = counters["parts_1"] - counters["merged_1"]
    width = slots["width"].astype("<u8")
    known = np.ones(len(unique), dtype=bool)
    seen = slots["store"] != UNSEEN
    np.logical_and.at(known, inverse[seen], ~inline[seen])
    # As many loads as stores, counted together: half of each.
    both = slots["store"] == BOTH
    accesses = np.where(both, accesses // 2, accesses)
    parts = np.where(both, parts // 2, parts)
    moved = np.where(whole, accesses, parts) * width  # bytes
    stack_moved = np.where(whole, stack_accesses, counters["parts_1"]) * width
    for direction, name in ((LOAD, "load"), (STORE, "store")):
        pick = both | (slots["store"] == direction)
        rows = inverse[pick]
        np.add.at(table[f"{name}s"], rows, accesses[pick])
        np.add.at(table[f"{name}_bytes"], rows, moved[pick])
        np.add.at(table[f"stack_{name}s"], rows, stack_accesses[pick])
        np.add.at(table[f"stack_{name}_bytes"], rows, stack_moved[pick])
        # The width of an access, where all slots of the direction agree on it.
        each = np.where(accesses > 0, moved // np.maximum(accesses, 1), 0)
        exact = (each * accesses == moved) & (accesses > 0)
        low = np.full(len(unique), np.iinfo("<u8").max, dtype="<u8")
        high = np.zeros(len(unique), dtype="<u8")
        np.minimum.at(low, rows, np.where(exact, each, 0)[pick])
        np.maximum.at(high, rows, np.where(exact, each, 0)[pick])
        table[f"{name}_width"] = np.where((low == high) & (high < 65536), high, 0)
    table["flags"] |= np.where(known, enum_value("code_flags", "stack_known"), 0).astype("<u4")
    unseen = slots["store"] == UNSEEN
    np.add.at(table["unseen"], inverse[unseen], parts[unseen])
    # An instruction that was expected to hide its accesses and did show them is seen.
    shown = (table["loads"] + table["stores"]) > 0
    table["unseen"][shown] = 0
    flag = np.uint32(enum_value("code_flags", "unseen"))
    table["flags"] = np.where(shown, table["flags"] & ~flag, table["flags"])
    for name in ("loads", "stores", "load_bytes", "store_bytes"):
        table[f"stack_{name}"][~known] = 0
    return table
