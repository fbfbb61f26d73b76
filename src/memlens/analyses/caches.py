"""Analysis `caches`: which code and data would miss in the caches and TLBs of a machine, by a model.

A model, not a measurement: LRU, no time, and no prefetcher unless one is asked for. Levels come from the machine of the
capture, from a machine by name, or from the caller. Threads are cores of their own, and meet in shared levels in the order of time.

Where only windows were recorded, what an access finds that is its window's first to a line depends on accesses that nobody
saw. Such accesses are ``unknown``: ``misses_…`` and ``miss_ratio_…`` leave them out, and are lower bounds; with all of them as misses,
``miss_ratio_high_…`` is the upper one. Of the others, the line's last use lies in the same window: the first level is exact, and lower
ones as good as what the model remembers of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from ..errors import UsageError
from ..registry import AnalysisDescriptor, Option
from ._chosen_accesses import NOT_CHOSEN, chosen_accesses, with_all_code
from ._locality_view import caches_view, with_curve
from ._machines import MACHINES as MACHINES
from ._machines import Level as Level
from ._machines import named_machine

if TYPE_CHECKING:
    import pyarrow as pa

    from ..capture.model.access_pass import TaskPool, TimeGroup
    from ..capture.model.locality import ThreadAccesses
    from ..capture.reader import Capture
    from ..results import Cell, Key, Result
    from ._groups import Dimension, _Pair

MOST_ACCESSES = 200_000_000
MOST_CORES = 64
FUNCTION = ("function", "module")


DEFAULT_LEVELS = (
    Level(32 << 10, 8, name="L1"),
    Level(1 << 20, 16, name="L2"),
    Level(32 << 20, 16, shared=True, name="L3"),
)
"""Where the capture does not know its machine."""
DEFAULT_TLBS = (Level(64 * 4096, 4, name="TLB1"), Level(2048 * 4096, 8, name="TLB2"))
"""Entries of 4 KiB: the kernel does not say what a machine has."""


def machine_levels(capture: Capture) -> tuple[Level, ...]:
    """The data caches of the machine that the capture was made on."""
    found = [c for c in capture.meta.get("machine", {}).get("caches", []) if c["type"] in ("data", "unified")]
    levels = [
        Level(c["bytes"], c["ways"], shared=c["shared_by_cpus"] > 1, name=f"L{c['level']}")
        for c in sorted(found, key=lambda c: int(c["level"]))
        if c["bytes"]
    ]
    # Two hardware threads of a core share its first levels: for the model they are one core's own.
    last = len(levels) - 1
    made = tuple(Level(v.bytes, v.ways, v.shared and at == last, v.policy, v.name) for at, v in enumerate(levels))
    return made[:4] or DEFAULT_LEVELS


def cache_model(
    capture: Capture,
    *,
    by: Sequence[str] = ("line", "object"),
    machine: str | None = None,
    levels: Sequence[Level] | None = None,
    tlbs: Sequence[Level] | None = None,
    line_bytes: int | None = None,
    page_bytes: int = 4096,
    inclusive: bool | None = None,
    next_line: bool = False,
    stride: bool = False,
    most_accesses: int = MOST_ACCESSES,
    progress: Callable[[int, int], None] | None = None,
    accesses: ThreadAccesses | None = None,
) -> Result:
    """Misses of each level by group, from the accesses in windows.

    Parameters
    ----------
    by
        One or two of program, function, line, object, thread, region: a table for each, and one for the pair. ``line`` adds the
        tables of ``function``.
    machine
        The name of the machine whose caches, TLBs and lines are modelled: `memlens.analyses.caches.MACHINES`. Default: the capture's own.
    levels, tlbs
        The nearest first, instead of the machine's.
    line_bytes
        Default: the machine's, else 64.
    inclusive
        A line that leaves a level leaves the levels above it. Default: as the named machine does, else true.
    next_line, stride
        Prefetchers into the second level.
    most_accesses
        Accesses after these are left out, with a note.
    accesses
        Other accesses than those of the capture: `memlens.capture.model.drawing`.
    """
    from ..capture.model.access_pass import run

    consumer = CachesConsumer(
        capture, by=by, machine=machine, levels=levels, tlbs=tlbs, line_bytes=line_bytes, page_bytes=page_bytes, inclusive=inclusive,
        next_line=next_line, stride=stride, most_accesses=most_accesses, accesses=accesses,
    )  # fmt: skip
    return run(consumer.accesses, consumer, progress=progress)


class CachesConsumer:
    """One model for all threads: they meet in shared levels, in the order of time."""

    order: Literal["time"] = "time"

    def __init__(
        self,
        capture: Capture,
        *,
        by: Sequence[str] = ("line", "object"),
        machine: str | None = None,
        levels: Sequence[Level] | None = None,
        tlbs: Sequence[Level] | None = None,
        line_bytes: int | None = None,
        page_bytes: int = 4096,
        inclusive: bool | None = None,
        next_line: bool = False,
        stride: bool = False,
        most_accesses: int = MOST_ACCESSES,
        accesses: ThreadAccesses | None = None,
        model_cores: int | None = None,
    ) -> None:
        """`model_cores`: of the model, where it has more than the capture needs; they make no difference."""
        from ..capture.model.locality import CacheModel, ThreadAccesses
        from ._groups import _Pair, named_dimension

        if not 1 <= len(by) <= 2 or isinstance(by, str):
            raise UsageError(f"invalid value {by!r} for by; expected one or two columns", hint='by=("line", "object")')
        named = named_machine(machine) if machine is not None else None
        self.capture, self._by, self._machine, self._named = capture, by, machine, named
        self._levels = (
            tuple(levels) if levels is not None else named.levels if named is not None else machine_levels(capture)
        )
        self._tlbs = tuple(tlbs) if tlbs is not None else named.tlbs if named is not None else DEFAULT_TLBS
        self._line_bytes = line_bytes if line_bytes is not None else named.line_bytes if named is not None else 64
        self._page_bytes = page_bytes
        self._inclusive = inclusive if inclusive is not None else named.inclusive if named is not None else True
        self.accesses = ThreadAccesses(with_all_code(capture)) if accesses is None else accesses
        self._choice = chosen_accesses(capture, self.accesses)
        self._dimensions = [named_dimension(self.accesses, name) for name in by]
        if self._choice is not None:
            self._dimensions = [self._choice.dimension(dimension) for dimension in self._dimensions]
        self._pair = _Pair(self._dimensions[0], self._dimensions[1]) if len(by) == 2 else None
        self._cores = min(MOST_CORES, max(1, len(self.accesses.streams)))
        self._model_cores = max(self._cores, model_cores or 0)
        self._whole = self.accesses.is_whole
        self._most, self._done = most_accesses, 0
        try:
            self._model = CacheModel(
                levels=[(v.bytes, v.ways, v.shared, v.policy) for v in self._levels],
                tlbs=[(v.bytes, v.ways, False, v.policy) for v in self._tlbs],
                line_bytes=self._line_bytes, page_bytes=page_bytes, cores=self._model_cores, inclusive=self._inclusive, next_line=next_line,
                stride=stride,
            )  # fmt: skip
        except ValueError as error:
            raise UsageError(f"invalid cache geometry: {error}", hint="bytes = sets × ways × line_bytes") from None

    @property
    def dimensions(self) -> list[Dimension]:
        """What misses are grouped by."""
        return self._dimensions

    @property
    def columns(self) -> frozenset[str]:
        return frozenset().union(*(dimension.columns for dimension in self._dimensions))

    def begin(self, pool: TaskPool) -> None:
        pass

    def continue_from(self, before: CachesConsumer) -> None:
        """Takes over what another one saw of the same capture when it was shorter."""
        if (self._whole, self._model_cores) != (before._whole, before._model_cores):
            raise ValueError("another model is needed now")
        if self._pair is not None and before._pair is not None:
            self._pair.continue_from(before._pair)
        else:
            self._dimensions[0].continue_from(before._dimensions[0])
        self._model, self._done = before._model, before._done

    def add(self, group: TimeGroup) -> None:
        import numpy as np

        if self._done >= self._most:
            return
        parts = [np.concatenate([dimension.numbers(b) for b in group.batches]) for dimension in self._dimensions]
        columns = group.columns
        numbers = (self._pair.of_parts(*parts) if self._pair is not None else parts[0])[group.order]
        self._model.add(
            columns["address"],
            bytes=columns["bytes"],
            is_store=columns["is_store"],
            cores=columns["stream"] % np.uint32(self._cores),
            groups=np.ascontiguousarray(numbers, dtype=np.uint32),
            sites=columns["pc"],
            windows=None if self._whole else np.ascontiguousarray(columns["unit"], dtype=np.uint32),
        )
        self._done += len(group)

    def snapshot(self) -> Result:
        from ..results import Quality, Result

        chosen, model, recorded, done = self._levels, self._model, self.accesses.recorded, self._done
        columns = {name: values.tolist() for name, values in model.columns().items()}
        if self._choice is not None:
            self._leave_out(columns)
        names = [level.name or f"level {at + 1}" for at, level in enumerate(chosen)]
        tables = _tables(self._by, self._dimensions, self._pair, columns, len(chosen), len(self._tlbs))
        sums = {name: sum(values) for name, values in columns.items()}
        machine, inclusive = self._machine, self._inclusive
        notes = [
            f"Misses are those of a model ({f'{machine}: ' if machine else ''}{', '.join(names)}; LRU{', inclusive' if inclusive else ''}), not measured."
        ]
        if not self._whole:
            share = (sums.get("unknown", 0) / sums["accesses"]) if sums.get("accesses") else 0.0
            notes.append(
                f"Whether {share:.0%} of the accesses hit in the modelled caches is unknown: each is the first of its window to a line. Misses are "
                "between those of the other accesses and those with all of these."
            )
        if done < recorded:
            notes.append(f"The cache model saw the first {done:,} of {recorded:,} accesses.")
        figures = self._figures(names, sums)
        tables["levels"] = _levels(figures)
        return Result("caches", figures, tables, self.capture.quality.joined(Quality(exact=False, notes=tuple(notes))))

    def _leave_out(self, columns: dict[str, list[int]]) -> None:
        """Takes what was not chosen out of the sums; a pair of groups is chosen if both are."""
        for number, key in enumerate((self._pair if self._pair is not None else self._dimensions[0]).keys):
            if NOT_CHOSEN in key:
                for values in columns.values():
                    if number < len(values):
                        values[number] = 0

    def _figures(self, names: list[str], sums: dict[str, int]) -> dict[str, Any]:
        totals, accesses = self._model.totals(), sums.get("accesses", 0)
        if self._choice is not None:  # prefetches and write-backs of a level are of all accesses
            totals = [dict.fromkeys(one) for one in totals]
        return {
            "accesses": accesses,
            "unknown": sums.get("unknown", 0),
            "tlb_unknown": sums.get("tlb_unknown", 0),
            "everything_recorded": self._whole,
            "levels": [{"name": n, "bytes": v.bytes, "ways": v.ways, "shared": v.shared,
                        "misses": sums.get(f"misses_{at + 1}", 0), "miss_ratio": _ratio(sums.get(f"misses_{at + 1}", 0), accesses),
                        "miss_ratio_high": _ratio(sums.get(f"misses_{at + 1}", 0) + sums.get("unknown", 0), accesses),
                        **totals[at]}
                       for at, (n, v) in enumerate(zip(names, self._levels, strict=True))],
            "tlbs": [{"name": v.name or f"TLB {at + 1}", "entries": v.bytes // self._page_bytes, "misses": sums.get(f"tlb_misses_{at + 1}", 0)}
                     for at, v in enumerate(self._tlbs)],
            "cores": self._cores,
            "line_bytes": self._line_bytes,
            "machine": self._machine,
            "machine_description": self._named.description if self._named is not None else None,
            "modelled_accesses": self._done if self._choice is None else accesses,
        }  # fmt: skip


def _levels(figures: dict[str, Any]) -> pa.Table:
    """Caches, then TLBs, the nearest first; a report adds the miss curve at the same sizes (`with_curve`)."""
    import pyarrow as pa

    accesses = figures["accesses"]
    rows = [
        {"level": level["name"], "kind": "cache", **{name: level[name] for name in ("bytes", "ways", "shared", "misses", "miss_ratio", "miss_ratio_high")}}
        for level in figures["levels"]
    ] + [
        {"level": tlb["name"], "kind": "TLB", "entries": tlb["entries"], "misses": tlb["misses"], "miss_ratio": _ratio(tlb["misses"], accesses),
         "miss_ratio_high": _ratio(tlb["misses"] + figures["tlb_unknown"], accesses)}
        for tlb in figures["tlbs"]
    ]  # fmt: skip
    schema = [
        ("level", pa.string()), ("kind", pa.string()), ("bytes", pa.uint64()), ("entries", pa.uint32()), ("ways", pa.uint32()), ("shared", pa.bool_()),
        ("misses", pa.uint64()), *((name, pa.float64()) for name in ("miss_ratio", "miss_ratio_high", "curve_miss_ratio_low", "curve_miss_ratio")),
    ]  # fmt: skip
    return pa.Table.from_pylist(rows, schema=pa.schema(schema))


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def _tables(
    by: Sequence[str],
    dimensions: list[Dimension],
    pair: _Pair | None,
    columns: dict[str, list[int]],
    n_levels: int,
    n_tlbs: int,
) -> dict[str, pa.Table]:
    import pyarrow as pa

    counts = ["accesses", "stores", "unknown", "tlb_unknown", *(f"misses_{i + 1}" for i in range(n_levels)),
              *(f"store_misses_{i + 1}" for i in range(n_levels)), *(f"tlb_misses_{i + 1}" for i in range(n_tlbs))]  # fmt: skip
    ratios = [f"miss_ratio{end}_{i + 1}" for end in ("", "_high") for i in range(n_levels)]
    numbered = {"process", "thread", "line"}

    def table(names: tuple[str, ...], keys: list[Key]) -> pa.Table:
        sums: dict[Key, dict[str, int]] = {}
        for at in range(len(columns["accesses"])):
            if not columns["accesses"][at]:
                continue
            row = sums.setdefault(keys[at], dict.fromkeys(counts, 0))
            for name in counts:
                row[name] += columns[name][at]
        rows: list[tuple[int, Mapping[str, Cell]]] = []
        for key, row in sums.items():
            ratio = {
                f"miss_ratio{end}_{i + 1}": (row[f"misses_{i + 1}"] + more) / row["accesses"]
                for end, more in (("", 0), ("_high", row["unknown"]))
                for i in range(n_levels)
            }
            most = sum(row[f"misses_{i + 1}"] + row["unknown"] for i in range(n_levels))
            rows.append((most, {**dict(zip(names, key, strict=True)), **row, **ratio}))
        # A miss of every level counts once more: the worst first, and nobody left out who stays within the last one.
        # Of windows by what they can be at most: the lower bounds of most rows are 0.
        rows.sort(key=lambda one: -one[0])
        schema = [(n, pa.uint32() if n in numbered else pa.string()) for n in names]
        schema += [(n, pa.uint64()) for n in counts] + [(n, pa.float64()) for n in ratios]
        return pa.Table.from_pylist([row for _, row in rows], schema=pa.schema(schema))

    # Which parts of a key make a table, by its name. A line's key begins with its function.
    wanted = {name: dimension.names for name, dimension in zip(by, dimensions, strict=True)}
    parts: list[tuple[str, ...]] = [*((name,) for name in by), *([tuple(by)] if pair is not None else [])]
    if "line" in by and "function" not in by:
        wanted["function"] = FUNCTION
        parts += [tuple("function" if name == "line" else name for name in part) for part in parts if "line" in part]
    all_keys, all_names = (dimensions[0].keys, dimensions[0].names) if pair is None else (pair.keys, pair.names)
    places = {name: at for at, name in enumerate(all_names)}
    tables = {}
    for part in parts:
        names = tuple(name for one in part for name in wanted[one])
        chosen = [places[name] for name in names]
        tables[f"by_{'_and_'.join(part)}"] = table(names, [tuple(key[at] for at in chosen) for key in all_keys])
    return tables


DESCRIPTOR = AnalysisDescriptor(
    name="caches",
    question="Which functions, lines and objects would miss in this machine's caches and TLBs?",
    needs=("window",),
    options=(
        Option("by", "one or two of program, function, line, object, thread, region", "line, object"),
        Option("machine", f"whose caches are modelled: {', '.join(MACHINES)}", "the capture's own"),
        Option("levels", "caches, the nearest first", "those of the machine"),
        Option("most_accesses", "accesses after these are left out", MOST_ACCESSES),
    ),
    run=cache_model,
    consumer=CachesConsumer,
    view=caches_view,
    provide="memlens record --emulate, or memlens cc --memlens=trace and memlens record",
    join=with_curve,
)
