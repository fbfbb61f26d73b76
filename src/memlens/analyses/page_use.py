"""Analysis `page_use`: which thread touched a page first, and which threads use it, counted exactly."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..registry import AnalysisDescriptor
from ._traffic_view import page_use_view

if TYPE_CHECKING:
    import pyarrow as pa

    from ..arrays import Bools, Columns, Ints
    from ..capture.reader import Capture
    from ..results import Result

PAGE_BYTES = 4096
PROBES = 8
"""Addresses of a page that are looked up: the object at most of them has the page."""
LATER_NS = (1_000_000, 30_000_000, 1_000_000_000)
"""An allocator writes to a page before the object in it exists: then look again, so much later, and at the end."""


def page_use(capture: Capture) -> Result:
    """Pages by first-touching and using thread, in all and by object.

    A page belongs to the thread whose first access to it came first, again after each time it was unmapped.
    An access that was made in parts counts once for each part here. A page has one object: the one at most
    of eight addresses in it when it was first touched; where none lay there yet, the first found later.
    """
    import numpy as np
    import pyarrow as pa

    from ..results import Quality, Result
    from ._object_groups import ObjectGroups
    from ._selected import selected
    from .traffic import CodeNames

    table = capture.whole.table("page_counts")
    columns = {name: table.column(name).to_numpy() for name in table.column_names if name != "code"}
    accesses = columns["loads"] + columns["stores"]
    # Rows of one page and generation together, its first touch first.
    order = np.lexsort((columns["order"], columns["generation"], columns["page"], columns["process"]))
    is_first = np.ones(len(order), dtype=bool)
    is_first[1:] = np.any([np.diff(columns[n][order]) != 0 for n in ("process", "page", "generation")], axis=0)
    page_of_row = np.empty(len(order), dtype=np.int64)
    page_of_row[order] = np.cumsum(is_first) - 1
    pages = int(is_first.sum())
    first_row = order[is_first]
    owner = columns["thread"][first_row]
    first_thread = owner[page_of_row]
    threads_of_page = np.bincount(page_of_row, minlength=pages)
    by_others = (columns["thread"] != first_thread) & (accesses > 0)
    used_by_others = np.zeros(pages, dtype=bool)
    groups = ObjectGroups(capture)
    first = {name: values[first_row] for name, values in columns.items()}
    object_of_page = _objects_of_pages(capture, first)
    group_of_page = groups.of_object[object_of_page]
    code_names = CodeNames(capture)
    code_of_page = code_names.of(table)[first_row]
    part = selected(capture)
    if part is not None:  # who touched a page first is known from all rows
        chosen = part.objects_chosen[object_of_page][page_of_row] if part.selection.object else None
        kept = part.rows(
            table.num_rows, "accesses by page", process=columns["process"], thread=columns["thread"], object_mask=chosen
        )
        columns = {name: values[kept] for name, values in columns.items()}
        accesses, by_others, first_thread = accesses[kept], by_others[kept], first_thread[kept]
        there, page_of_row = np.unique(page_of_row[kept], return_inverse=True)
        page_of_row = page_of_row.reshape(-1)
        pages, owner, used_by_others = len(there), owner[there], used_by_others[there]
        threads_of_page, group_of_page, code_of_page = threads_of_page[there], group_of_page[there], code_of_page[there]
    used_by_others[page_of_row[by_others]] = True

    names = {(row["process"], row["thread"]): row["name"] for row in capture.table("threads").to_pylist()}
    matrix: dict[tuple[int, int, int], list[int]] = {}
    for process, first, thread, loads, stores in zip(
        columns["process"].tolist(), first_thread.tolist(), columns["thread"].tolist(), columns["loads"].tolist(),
        columns["stores"].tolist(), strict=True,
    ):  # fmt: skip
        entry = matrix.setdefault((process, first, thread), [0, 0, 0])
        entry[0] += 1
        entry[1] += loads
        entry[2] += stores
    matrix_rows = [
        {"process": p, "first_thread": f, "first_name": names.get((p, f)), "thread": t, "name": names.get((p, t)),
         "pages": n, "loads": loads, "stores": stores}
        for (p, f, t), (n, loads, stores) in sorted(matrix.items())
    ]  # fmt: skip

    by_object = []
    other_accesses = np.where(by_others, accesses, np.uint64(0))
    for group in np.unique(group_of_page).tolist():
        mine = group_of_page == group
        rows = mine[page_of_row]
        owners, counts = np.unique(owner[mine], return_counts=True)
        codes, of_code = np.unique(code_of_page[mine], return_counts=True)
        code = int(codes[of_code.argmax()])
        by_object.append(
            {
                **groups.rows[group], "pages": int(mine.sum()), "bytes": int(mine.sum()) * PAGE_BYTES,
                "pages_used_by_others": int((mine & used_by_others).sum()),
                "bytes_used_by_others": int((mine & used_by_others).sum()) * PAGE_BYTES,
                "accesses": int(accesses[rows].sum()), "accesses_by_others": int(other_accesses[rows].sum()),
                "first_touch_threads": len(owners), "main_first_thread": int(owners[counts.argmax()]),
                "main_first_pages": int(counts.max()),
                "using_threads": len(np.unique(columns["thread"][rows & (accesses > 0)])),
                "first_touch_function": code_names.function[code], "first_touch_file": code_names.file[code],
                "first_touch_line": code_names.line[code] or None,
            }
        )  # fmt: skip
    by_object.sort(key=lambda row: (-row["accesses_by_others"], -row["accesses"]))
    total = int(accesses.sum())
    figures = {
        "pages": pages,
        "shared_pages": int((threads_of_page > 1).sum()),
        "pages_used_by_others": int(used_by_others.sum()),
        "page_accesses": total,
        "accesses_by_others": int(other_accesses.sum()),
        "others_share": float(other_accesses.sum()) / total if total else None,
        "page_threads": len(matrix_rows and {(row["process"], row["thread"]) for row in matrix_rows}),
    }
    return Result(
        "page_use",
        figures,
        {
            "matrix": pa.Table.from_pylist(matrix_rows, schema=_matrix_schema()),
            "by_object": pa.Table.from_pylist(by_object, schema=_object_schema()),
        },
        capture.quality.joined(Quality()),
    )


def _objects_of_pages(capture: Capture, first: Columns) -> Ints:
    """The object of each page, 0 = none: heap objects, variables and stacks before the area that they lie in."""
    import numpy as np

    engine = capture.objects.everything
    count = len(first["page"])
    found = np.zeros(count, dtype=np.int64)
    end_ns = max(capture.end_ns, int(first["time_ns"].max()) if count else 0)
    begun = first["time_ns"].astype(np.uint64)
    moments = [begun, *(begun + np.uint64(later) for later in LATER_NS), np.full(count, end_ns, dtype=np.uint64)]
    offsets = (np.arange(PROBES, dtype=np.uint64) * np.uint64(PAGE_BYTES // PROBES)) + np.uint64(
        PAGE_BYTES // PROBES // 2
    )
    area = engine.is_kind("brk", "mmap", "file", "reserved")
    fallback = np.zeros(count, dtype=np.int64)
    for moment in moments:
        open_rows = np.flatnonzero(found == 0)
        if len(open_rows) == 0:
            break
        asked = (first["page"][open_rows].astype(np.uint64)[:, None] + offsets[None, :]).reshape(-1)
        processes = np.repeat(first["process"][open_rows], PROBES)
        times = np.repeat(moment[open_rows], PROBES)
        tags = engine.find(asked, times, process=processes, layer="tag").astype(np.int64)
        ids = np.where(tags != 0, tags, engine.find(asked, times, process=processes).astype(np.int64))
        best = _most_frequent(ids.reshape(-1, PROBES), area)
        plain = (best != 0) & ~area[np.maximum(best, 1) - 1] if len(area) else best != 0
        found[open_rows[plain]] = best[plain]
        here = fallback[open_rows]
        fallback[open_rows] = np.where(here == 0, best, here)
    return np.where(found != 0, found, fallback)


def _most_frequent(ids: Ints, area: Bools) -> Ints:
    """The id that most probes of each row gave; one in an area that holds objects only when there is no other."""
    import numpy as np

    best = np.zeros(len(ids), dtype=np.int64)
    score = np.zeros(len(ids), dtype=np.int64)
    for probe in range(ids.shape[1]):
        one = ids[:, probe]
        is_area = area[np.maximum(one, 1) - 1] if len(area) else np.zeros(len(one), dtype=bool)
        votes = (ids == one[:, None]).sum(axis=1) + np.where(is_area, 0, 100)
        votes = np.where(one == 0, 0, votes)
        better = votes > score
        best, score = np.where(better, one, best), np.where(better, votes, score)
    return best


def _matrix_schema() -> pa.Schema:
    import pyarrow as pa

    return pa.schema(
        [
            ("process", pa.uint32()), ("first_thread", pa.uint32()), ("first_name", pa.string()), ("thread", pa.uint32()),
            ("name", pa.string()), ("pages", pa.uint64()), ("loads", pa.uint64()), ("stores", pa.uint64()),
        ]
    )  # fmt: skip


def _object_schema() -> pa.Schema:
    import pyarrow as pa

    return pa.schema(
        [
            ("object", pa.string()), ("kind", pa.string()), ("function", pa.string()), ("module", pa.string()),
            ("file", pa.string()), ("line", pa.uint32()), ("process", pa.uint32()), ("thread", pa.uint32()),
            ("pages", pa.uint64()), ("bytes", pa.uint64()), ("pages_used_by_others", pa.uint64()),
            ("bytes_used_by_others", pa.uint64()), ("accesses", pa.uint64()), ("accesses_by_others", pa.uint64()),
            ("first_touch_threads", pa.uint32()), ("main_first_thread", pa.uint32()), ("main_first_pages", pa.uint64()),
            ("using_threads", pa.uint32()), ("first_touch_function", pa.string()), ("first_touch_file", pa.string()),
            ("first_touch_line", pa.uint32()),
        ]
    )  # fmt: skip


DESCRIPTOR = AnalysisDescriptor(
    name="page_use",
    question="Which thread touched each page first, and which other threads use it?",
    needs=("page_count",),
    run=page_use,
    view=page_use_view,
    provide="memlens record --emulate=pages",
)
