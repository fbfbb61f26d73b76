"""Sites of traced code: what the numbers in streams of sites mean.

Every address that traced code records has a code of its own, behind those of instruction pointers: rows of table ``sites``, and of
table ``trace_sites`` with what the compiler knows of it. Numbers in streams belong to a program image, which puts its modules
one after the other (``traced_module`` records); a window names its image.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

from ...errors import CaptureError
from ..store.arena_layouts import constants
from ..store.layouts import enum_value
from ..store.source import TableSource
from .count_tables import KINDS, NONE
from .counting import ATOMIC, COPY, FILL, STORE, refuse_beyond

if TYPE_CHECKING:
    import pyarrow as pa

    from ...arrays import Array, Bools, Columns, Ints, Uint8s, Uint32s
    from .replay import Replay


MOST_SITES = 1 << 24
"""Of all program images together, as far as tables do not tell more: 17 bytes of memory each."""
FIRST_SITE = constants()["ML_TRACE_FIRST_SITE"]
"""Smaller numbers were written by functions that had none yet."""
LOAD_OPERATION, STORE_OPERATION, ATOMIC_OPERATION = (
    enum_value("access_operation", name) for name in ("load", "store", "atomic")
)
IMAGE = "image "


@dataclass(frozen=True)
class SiteRanges:
    """Flat columns over the sites of all images, and where each image's lie in them."""

    code: Uint32s
    bytes: Uint32s
    operation: Uint8s
    first: Uint32s
    end: Uint32s
    of_image: dict[int, int]
    """Number of a program image → its range."""


@dataclass(frozen=True)
class SiteConstants:
    """Constants by the recorded site that stands for them, for each row of `SiteRanges`."""

    first: Ints
    count: Ints
    code: Uint32s
    """Codes of constants; those of a row from `first` on."""
    is_scalar: Bools
    """Recorded, and a constant itself."""
    own_code: Uint32s
    store_codes: Uint32s

    @property
    def any(self) -> bool:
        return bool(self.is_scalar.any() or self.count.any())

    def is_store_code(self, codes: Uint32s) -> Bools:
        import numpy as np

        return np.isin(codes, self.store_codes)


class TraceSource(TableSource, Protocol):
    """What sites of traced code are joined with."""

    @property
    def replay(self) -> Replay: ...


class TraceSites:
    """All sites of traced code in a capture. Use `Capture.trace_sites`."""

    def __init__(self, capture: TraceSource) -> None:
        self.capture = capture

    @cached_property
    def _static(self) -> pa.Table:
        return self.capture.table("count_traced")

    @property
    def count(self) -> int:
        return int(self._static.num_rows)

    @cached_property
    def first_code(self) -> int:
        """Code of the first site."""
        return len(self.capture.replay.codes["path"])

    @cached_property
    def _sites(self) -> Columns:
        """The row of `count_sites` of each traced one."""
        import numpy as np

        sites = self.capture.table("count_sites")
        modules = sites.column("module").to_pylist()
        first: dict[str, int] = {}
        for row, module in enumerate(modules):
            first.setdefault(module, row)
        base = np.array([first.get(module, 0) for module in self._static.column("module").to_pylist()], dtype=np.int64)
        rows = base + self._static.column("site").fill_null(0).to_numpy().astype(np.int64)
        refuse_beyond(rows, len(modules), "the column site of count_traced")
        kinds = np.array(
            [KINDS.index(kind) if kind in KINDS else len(KINDS) for kind in sites.column("kind").to_pylist()]
        )
        return {"row": rows, "kind": kinds[rows] if len(rows) else np.zeros(0, dtype=np.int64)}

    @cached_property
    def operation(self) -> Uint8s:
        """1 load, 2 store, 3 atomic; of a copy what this address is for."""
        import numpy as np

        kind = self._sites["kind"]
        written = self._static.column("is_written").to_numpy(zero_copy_only=False).astype(bool)
        stores = np.isin(kind, (STORE, FILL)) | ((kind == COPY) & written)
        return np.where(kind == ATOMIC, ATOMIC_OPERATION, np.where(stores, STORE_OPERATION, LOAD_OPERATION)).astype(
            np.uint8
        )

    @cached_property
    def table(self) -> pa.Table:
        """The table ``trace_sites``."""
        import numpy as np
        import pyarrow as pa
        import pyarrow.compute as pc

        static, sites = self._static, self.capture.table("count_sites")
        take = pa.array(self._sites["row"])
        columns: dict[str, Array | pa.Array] = {
            "code": np.arange(self.count, dtype=np.uint32) + np.uint32(self.first_code)
        }
        columns["module"] = self._paths()
        columns["build_id"] = static.column("module")
        columns["number"] = static.column("number")
        for name, source in (("function", "name"), ("inlined_into", "inlined_into"), ("file", "file"), ("line", "line"),
                             ("column", "column"), ("site", "site")):  # fmt: skip
            columns[name] = sites.column(source).take(take)
        names = pa.array(["load", "store", "atomic"])
        columns["operation"] = pa.DictionaryArray.from_arrays(pa.array(self.operation.astype(np.int8) - 1), names)
        for name in ("bytes", "class", "kind", "stride_bytes"):
            columns[name] = static.column(name)
        # Some are recorded, to stand for others or because threads may share them: no accesses of the tables either.
        columns["implied"] = pc.equal(static.column("class"), "constant")
        columns["stand_in"] = self._stand_in_codes()
        return pa.table({**columns, **self._loops()})

    @cached_property
    def _row_of_number(self) -> dict[tuple[str, int], int]:
        numbers, modules = self._static.column("number").to_pylist(), self._static.column("module").to_pylist()
        return {
            (module, number): row
            for row, (module, number) in enumerate(zip(modules, numbers, strict=True))
            if number is not None
        }

    @cached_property
    def _stand_in_rows(self) -> Ints:
        """Row of the recorded site that is executed with an implied constant, -1 = none is known."""
        import numpy as np

        if "stand_in" not in self._static.column_names:
            return np.full(self.count, -1, dtype=np.int64)
        modules, numbers = self._static.column("module").to_pylist(), self._static.column("stand_in").to_pylist()
        rows = (-1 if n is None else self._row_of_number.get((m, n), -1) for m, n in zip(modules, numbers, strict=True))
        return np.fromiter(rows, dtype=np.int64, count=self.count)

    def _stand_in_codes(self) -> pa.Array:
        import pyarrow as pa

        rows = self._stand_in_rows
        return pa.array((rows + self.first_code) % 2**32, pa.uint32(), mask=rows < 0)

    @cached_property
    def constants(self) -> SiteConstants:
        """Which constants recorded sites stand for, or are."""
        import numpy as np

        ranges = self.ranges
        rows, stand_in = np.arange(self.count), self._stand_in_rows
        order = np.argsort(stand_in, kind="stable")
        order = order[stand_in[order] >= 0]
        first = np.searchsorted(stand_in[order], rows)
        count = np.searchsorted(stand_in[order], rows, side="right") - first
        names = self._static.column("class").to_pylist()
        # Recorded constants of older tables stand for nothing: there are none.
        scalar = np.array([name == "constant" for name in names], dtype=bool) & np.array(
            [number is not None for number in self._static.column("number").to_pylist()], dtype=bool
        )
        known = ranges.code != NONE
        row = np.where(known, ranges.code.astype(np.int64) - self.first_code, 0)
        if not self.count:
            nothing = np.zeros(len(row), dtype=np.int64)
            empty = np.zeros(0, dtype=np.uint32)
            return SiteConstants(nothing, nothing, empty, nothing.astype(bool), ranges.code, empty)
        stores = np.flatnonzero(self.operation == STORE_OPERATION) + self.first_code
        return SiteConstants(
            first=first[row],
            count=np.where(known, count[row], 0),
            code=(order + self.first_code).astype(np.uint32),
            is_scalar=known & scalar[row],
            own_code=ranges.code,
            store_codes=stores.astype(np.uint32),
        )

    def _loops(self) -> dict[str, pa.Array]:
        """The innermost loop around each, as far as its module tells loops."""
        import pyarrow as pa

        from .source_loops import loops_of_sites

        known = loops_of_sites(self.capture)
        keys = zip(self._static.column("module").to_pylist(), self._static.column("site").to_pylist(), strict=True)
        found = [known.get(key) for key in keys]
        return {
            "loop": pa.array([loop and loop.name for loop in found], pa.string()),
            "loop_function": pa.array([loop and loop.function for loop in found], pa.string()),
            "loop_depth": pa.array([loop and loop.depth for loop in found], pa.uint32()),
            "loop_parent": pa.array([loop and loop.parent for loop in found], pa.string()),
        }

    def _paths(self) -> pa.Array:
        import pyarrow as pa

        modules = self.capture.table("counted_modules")
        paths = dict(zip(modules.column("module").to_pylist(), modules.column("path").to_pylist(), strict=True))
        whose = self._static.column("module").to_pylist()
        return pa.array([paths.get(module, module) for module in whose], pa.string())

    def site_rows(self) -> pa.Table:
        """The same as rows of table ``sites``."""
        import pyarrow as pa

        from .symbols import site_schema

        table, schema = self.table, site_schema()
        own = {"id": "code", "module": "module", "function": "function", "file": "file", "line": "line", "column": "column",
               "inlined_into": "inlined_into", "kind": "operation", "bytes": "bytes", "class": "class",
               "stride_bytes": "stride_bytes", "loop": "loop"}  # fmt: skip
        arrays = []
        for field in schema:
            if field.name in own:
                column = table.column(own[field.name])
                if field.name == "bytes":
                    column = column.cast(pa.float64()).cast(field.type, safe=False)
                arrays.append(column.cast(field.type))
            else:
                arrays.append(pa.nulls(self.count, field.type))
        return pa.Table.from_arrays(arrays, schema=schema)

    def behind(self, sites: pa.Table) -> pa.Table:
        """Table ``sites``: what it has for instruction pointers, then these."""
        import pyarrow as pa

        if not self.count:
            return sites
        own = self.site_rows()
        return pa.concat_tables([sites.select(own.column_names).cast(own.schema), own])

    @cached_property
    def ranges(self) -> SiteRanges:
        """What site numbers mean in each program image. Sites of a module whose tables are missing have code `NONE`."""
        import numpy as np

        numbers = self._static.column("number").to_pylist()
        modules = self._static.column("module").to_pylist()
        rows: dict[str, dict[int, int]] = {}
        for row, (module, number) in enumerate(zip(modules, numbers, strict=True)):
            if number is not None:
                rows.setdefault(module, {})[number] = row
        widths = self._static.column("bytes").to_numpy().astype(np.uint64)
        images: dict[int, list[tuple[int, int, str]]] = {}
        table = self.capture.table("traced_modules")
        for image, first, count, module in zip(
            *(table.column(name).to_pylist() for name in ("image", "first_site", "sites", "module")), strict=True
        ):
            images.setdefault(image, []).append((first, count, module))
        parts: list[Ints] = []
        known: dict[tuple[tuple[int, int, str], ...], int] = {}
        firsts: list[int] = []
        ends: list[int] = []
        of_image: dict[int, int] = {}
        total = 0
        for image, own in images.items():
            key = tuple(sorted(set(own)))
            if key not in known:
                last = max((first + count for first, count, _ in key), default=FIRST_SITE)
                # Modules lie one after the other: no image has more sites than its modules together.
                if total + last - FIRST_SITE > max(MOST_SITES, 4 * self.count):
                    raise CaptureError(
                        f"{self.capture.path}: traced_module records claim {total + last - FIRST_SITE:,} sites, and the tables of their "
                        f"modules describe {self.count:,}",
                        hint="the capture was damaged or changed: restore it from a copy, or record again",
                    )
                row_of = np.full(max(last - FIRST_SITE, 0), -1, dtype=np.int64)
                for first, count, module in key:
                    for number, row in rows.get(module, {}).items():
                        if number < count and 0 <= first + number - FIRST_SITE < len(row_of):
                            row_of[first + number - FIRST_SITE] = row
                known[key] = len(firsts)
                firsts.append(total)
                total += len(row_of)
                ends.append(total)
                parts.append(row_of)
            of_image[image] = known[key]
        row_of = np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)
        there = row_of >= 0
        picked = np.where(there, row_of, 0)
        if not self.count:
            picked = np.zeros(0, dtype=np.int64)
            row_of = there = picked
        return SiteRanges(
            code=np.where(there, row_of + self.first_code, NONE).astype(np.uint32),
            bytes=np.where(there, np.minimum(widths, 2**32 - 1)[picked], 0).astype(np.uint32),
            operation=np.where(there, self.operation[picked], LOAD_OPERATION).astype(np.uint8),
            first=np.array(firsts, dtype=np.uint32),
            end=np.array(ends if self.count else [0] * len(firsts), dtype=np.uint32),
            of_image=of_image,
        )

    def range_of_windows(self, processes: Uint32s, modules: Uint32s) -> Uint32s:
        """The range of each window, by its process and the string that names its image; `NONE` where it is not known."""
        import numpy as np

        status = self.capture.table("count_status")
        image_of = {
            (process, born): image
            for process, born, image in zip(
                *(status.column(name).to_pylist() for name in ("process", "born_ns", "image")), strict=True
            )
        }
        by_birth = {born: image for (_, born), image in image_of.items()}
        strings, ranges = self.capture.strings(), self.ranges.of_image
        keys, inverse = np.unique(processes.astype(np.uint64) << np.uint64(32) | modules, return_inverse=True)
        found = []
        for key in keys.tolist():
            text = strings.get(key & 0xFFFFFFFF, "")
            born = int(text[len(IMAGE) :]) if text.startswith(IMAGE) and text[len(IMAGE) :].isdigit() else -1
            image = image_of.get((key >> 32, born), by_birth.get(born, -1))
            found.append(ranges.get(image, NONE))
        return np.array(found, dtype=np.uint32)[inverse.reshape(-1)] if found else np.zeros(0, dtype=np.uint32)
