"""Tables of analysis `patterns` from what its pass has collected."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from ..capture.model.locality import CLASSES
from ._offsets import in_words

if TYPE_CHECKING:
    from ..arrays import Ints
    from ._pattern_pass import PatternPass
    from ._pattern_types import InstructionRow, PatternRow

LEAST_SHARE = 0.01
"""Offsets are looked for where a function and an object have this share of the accesses."""
SETTLED = 0.9
"""Of the offsets that are used at all, in both halves of the time."""


class _Step(NamedTuple):
    """Class, most frequent step and its share."""

    number: int
    stride_bytes: int
    share: float


def _steps(walk: PatternPass) -> dict[int, _Step]:
    """Of each pair: of the thread (and of loads or stores) that has most of its accesses."""
    columns = {name: values.tolist() for name, values in walk.classes.verdicts().items()}
    best: dict[int, _Step] = {}
    most: dict[int, int] = {}
    for at, pair in enumerate(columns["pc"]):
        if pair not in best or columns["accesses"][at] > most[pair]:
            best[pair] = _Step(columns["class"][at], columns["stride_bytes"][at], columns["share"][at])
            most[pair] = columns["accesses"][at]
    return best


def instruction_rows(walk: PatternPass) -> list[InstructionRow]:
    """One row for each instruction (or site) and object, most executed first."""
    from ._chases import Chases

    count = len(walk.pair_code)
    names, sums = walk.names, walk.sums
    total = {
        name: sums.get(name, count).tolist()
        for name in ("recorded", "weight", "bytes", "stores", "repeats", "pairs_seen", "misses_full")
    }
    near = [sums.get(f"near_{at}", count).tolist() for at in range(len(walk.levels))]
    missed = walk.model.columns()["misses_1"].tolist()
    steps = _steps(walk)
    chases = Chases(walk.accesses)
    rows: list[InstructionRow] = []
    for pair in range(count):
        code, (thing, kind) = walk.pair_code[pair], walk.objects.keys[walk.pair_object[pair]]
        recorded = int(total["recorded"][pair])
        if not recorded or (walk.is_chosen is not None and not walk.is_chosen[pair]):
            continue
        step = steps.get(pair, _Step(0, 0, 0.0))
        moves = step.number in (2, 3)
        rows.append({
            "pair": pair, "function": names.function[code], "module": names.module[code], "file": names.file[code], "line": names.line[code],
            "code": code if code < names.count else None, "object": str(thing), "kind": str(kind),
            "operation": "store" if total["stores"][pair] == recorded else "load" if not total["stores"][pair] else "both",
            "accesses": total["weight"][pair], "share": total["weight"][pair] / walk.executed if walk.executed else 0.0,
            "recorded": recorded, "mean_bytes": total["bytes"][pair] / recorded, "class": CLASSES[step.number],
            "stride_bytes": step.stride_bytes if moves else None, "stride_share": step.share if moves else None,
            "same_address_share": total["repeats"][pair] / total["pairs_seen"][pair] if total["pairs_seen"][pair] else None,
            "misses": missed[pair] if pair < len(missed) else 0, "misses_full": int(total["misses_full"][pair]),
            "near_misses": [int(one[pair]) for one in near], "leads_itself": None,
        })  # fmt: skip
    rows.sort(key=lambda row: -row["accesses"])
    for row in rows:
        row["leads_itself"] = chases.leads_itself(row)
    return rows


def function_rows(walk: PatternPass, instructions: list[InstructionRow]) -> list[PatternRow]:
    """One row for each function and object, most executed first."""
    footprint = {name: values.tolist() for name, values in walk.footprint.columns().items()}
    keys = walk.function_keys
    visits, visit_bytes = (walk.visits.get(name, len(keys)).tolist() for name in ("count", "bytes"))
    rows: list[PatternRow] = []
    for number, (function, group) in enumerate(keys):
        (name, module), (thing, kind) = walk.functions[function], walk.objects.keys[group]
        rows.append({
            "function": name, "module": module, "object": str(thing), "kind": str(kind), "accesses": 0.0, "share": 0.0, "recorded": 0, "misses": 0,
            "misses_full": 0, "irregular": 0, "lines": footprint["lines"][number], "used_bytes": footprint["bytes"][number],
            "addresses": footprint["addresses"][number], "visits": int(visits[number]),
            "visit_bytes": visit_bytes[number] / visits[number] if visits[number] else None, "sets": walk.sets_of(number),
            "irregular_share": None, "step_bytes": None, "step_share": None, "step_offsets": None, "step_settled": None,
        })  # fmt: skip
    for row in instructions:
        mine = rows[int(walk.pair_function[row["pair"]])]
        mine["accesses"] += row["accesses"]
        mine["share"] += row["share"]
        mine["recorded"] += row["recorded"]
        mine["misses"] += row["misses"]
        mine["misses_full"] += row["misses_full"]
        mine["irregular"] += row["recorded"] if row["class"] == "irregular" else 0
    _add_steps(walk, rows, instructions)
    for one in rows:
        if walk.of_lines:
            one["lines"] = one["used_bytes"] = one["addresses"] = one["visits"] = None
            one["visit_bytes"] = one["sets"] = one["step_offsets"] = one["step_settled"] = None
        one["irregular_share"] = one["irregular"] / one["recorded"] if one["recorded"] else None
    return sorted((row for row in rows if row["recorded"]), key=lambda row: -row["accesses"])


def _add_steps(walk: PatternPass, rows: list[PatternRow], instructions: list[InstructionRow]) -> None:
    """Fills in the most frequent large step of each function and object, and the offsets used in it."""
    steps: dict[int, dict[int, float]] = {}
    for row in instructions:
        stride = abs(row["stride_bytes"] or 0)
        if row["class"] == "strided" and 2 * stride >= walk.line_bytes:
            mine = steps.setdefault(int(walk.pair_function[row["pair"]]), {})
            mine[stride] = mine.get(stride, 0.0) + row["accesses"]
    offsets = Offsets(walk)
    for number, one in enumerate(rows):
        if number in steps and one["share"] >= LEAST_SHARE:
            step, accesses = max(steps[number].items(), key=lambda item: item[1])
            used, settled = offsets.used(number, step)
            one.update(
                {
                    "step_bytes": step, "step_share": accesses / one["accesses"], "step_offsets": in_words(used),
                    "step_settled": settled,
                }
            )  # fmt: skip


class Offsets:
    """Sampled addresses of each function and object, from the starts of the objects that they lie in."""

    def __init__(self, walk: PatternPass) -> None:
        import numpy as np

        self._groups, self._offsets, self._bytes, self._times = (np.zeros(0, dtype=np.uint64) for _ in range(4))
        if not walk.samples:
            return
        objects = walk.accesses.capture.objects.everything
        pairs = np.concatenate([one.pairs for one in walk.samples])
        addresses = np.concatenate([one.addresses for one in walk.samples])
        widths = np.concatenate([one.widths for one in walk.samples])
        times = np.concatenate([one.times_ns for one in walk.samples])
        processes = np.concatenate([np.full(len(one.pairs), one.process, dtype=np.uint32) for one in walk.samples])
        found = objects.find(addresses, times, process=processes)
        bases = (
            np.concatenate(([0], objects.columns["base"])).astype(np.uint64)
            if objects.count
            else np.zeros(1, dtype=np.uint64)
        )
        self._groups, self._offsets, self._bytes, self._times = (
            walk.pair_function[pairs],
            addresses - bases[found],
            widths,
            times,
        )

    def used(self, number: int, step: int) -> tuple[set[int], bool]:
        """(offsets, whether the first half of the samples in time had almost the same as the second)."""
        import numpy as np

        mine = np.flatnonzero(self._groups == number)
        mine = mine[np.argsort(self._times[mine], kind="stable")]
        halves = [self._covered(part, step) for part in np.array_split(mine, 2)]
        used = halves[0] | halves[1]
        return used, len(halves[0] & halves[1]) >= SETTLED * len(used)

    def _covered(self, samples: Ints, step: int) -> set[int]:
        used: set[int] = set()
        for offset, count in set(
            zip((self._offsets[samples] % step).tolist(), self._bytes[samples].tolist(), strict=True)
        ):
            used.update((offset + byte) % step for byte in range(min(max(1, count), step)))
        return used


def level_rows(walk: PatternPass, times: Sequence[float]) -> list[dict[str, object]]:
    import numpy as np

    rows = []
    for level, lines in zip(walk.levels, walk.level_lines, strict=True):
        sizes = np.array([int(lines * time) for time in times], dtype=np.uint64)
        found = walk.curve.curve(sizes)
        for time, size, misses in zip(times, sizes.tolist(), found["misses"].tolist(), strict=True):
            rows.append({
                "level": level.name, "shared": level.shared, "cache_bytes": size * walk.line_bytes, "times": time, "misses": misses,
                "miss_ratio": misses / found["accesses"] if found["accesses"] else None,
            })  # fmt: skip
    return rows
