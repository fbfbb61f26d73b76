"""Tables that name code and data: sites, variables, objects, and what imported traces say of their instructions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from .descriptor import PROCESS, Models, TableDescriptor

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from ..model.call_stacks import StackSource


MOST_AT_ONCE = 2_000_000
"""Of more allocations the table `objects` is streamed; its side table is not written."""
ROWS_A_BATCH = 1 << 17
PLACE_COLUMNS = {"function": "string", "file": "string", "line": "uint32"}
"""What `objects` has beside its side table, and its Arrow types."""


def _sites(capture: Models) -> pa.Table:
    return capture.replay.code_sites


def _site_schema() -> pa.Schema:
    from ..model.symbols import site_schema

    return site_schema()


def _with_trace_sites(capture: Models, sites: pa.Table) -> pa.Table:
    return capture.trace_sites.behind(sites)


def _variables(capture: Models) -> pa.Table:
    from ..model.variables import static_objects

    return static_objects(capture)


def _variable_schema() -> pa.Schema:
    from ..model.variables import static_object_schema

    return static_object_schema()


def _objects(capture: Models) -> pa.Table:
    return capture.objects.everything.table()


def _with_places(capture: StackSource, objects: pa.Table) -> pa.Table:
    """With the place that allocated each: the first frame of its stack that is no allocator, library or wrapper."""
    import numpy as np
    import pyarrow as pa

    from ..model.call_stacks import NO_FRAME, call_stacks

    stacks = objects.column("stack").fill_null(0).to_numpy()
    distinct, which = np.unique(stacks, return_inverse=True)
    calls = call_stacks(capture) if distinct.any() else None
    places: list[Mapping[str, object]] = [
        calls.site(int(stack)) if calls is not None and stack else NO_FRAME for stack in distinct
    ]
    for name, kind in PLACE_COLUMNS.items():
        values = pa.array([place[name] for place in places], type=getattr(pa, kind)())
        objects = objects.append_column(name, values.take(pa.array(which)))
    return objects


def _object_stream(capture: Models) -> pa.RecordBatchReader:
    import numpy as np
    import pyarrow as pa

    if capture.kinds().get("allocation", 0) <= MOST_AT_ONCE:
        return capture.table("objects").to_reader()
    objects = capture.objects

    def batches() -> Iterator[pa.RecordBatch]:
        everything = objects.everything
        for first in range(0, everything.count, ROWS_A_BATCH):
            rows = everything.table(np.arange(first, min(first + ROWS_A_BATCH, everything.count)))
            yield from _with_places(capture, rows).to_batches()

    return pa.RecordBatchReader.from_batches(_with_places(capture, _object_schema().empty_table()).schema, batches())


def _object_count(capture: Models) -> int:
    if capture.kinds().get("allocation", 0) <= MOST_AT_ONCE:
        return int(capture.table("objects").num_rows)
    return capture.objects.count


def _object_schema() -> pa.Schema:
    from ..model.object_schema import object_schema

    return object_schema()


def _import_sites_schema() -> pa.Schema:
    import pyarrow as pa

    return pa.schema(
        [
            ("process", pa.uint32()),
            ("pc", pa.uint64()),
            ("module", pa.string()),
            ("function", pa.string()),
            ("file", pa.string()),
            ("line", pa.uint32()),
            ("class", pa.string()),
            ("kind", pa.string()),
            ("stride_bytes", pa.int64()),
            ("implied_constants", pa.uint32()),
        ]
    )


def _no_import_sites(capture: Models) -> pa.Table:
    """The files that came with the trace say it, not its records."""
    return _import_sites_schema().empty_table()


TABLES = (
    TableDescriptor(
        name="sites",
        text="Code locations that other tables point to. The columns from `kind` to `loop` belong to the compiled-in collectors (later) and are null now, but for what an imported trace says (`import_sites`).",
        make=_sites,
        schema=_site_schema,
        finish=_with_trace_sites,
        columns={
    "id": "joins `faults.code`",
    "module": "file of the code",
    "file_offset": "offset in the file, or address for code made at run time",
    "process": "process of code made at run time, else 0",
    "function": "function, demangled",
    "file": "source file",
    "line": "source line, 0 = unknown",
    "column": "source column, 0 = unknown",
    "inlined_into": "the functions it was inlined into, innermost first",
    "kind": "load, store or copy",
    "bytes": "width of the access",
    "class": "constant, strided or irregular",
    "stride_bytes": "stride",
    "loop": "loop that it is in",
    "quality": "why a name is missing or uncertain",
    "nearest": "of code without a function: the last symbol before it and the distance, null where there is none",
},
    ),
    TableDescriptor(
        name="variables",
        text="Static and thread-local variables of at least 1 KiB of the programs and their own libraries (not of those under /lib and /usr/lib), with their addresses.",
        make=_variables,
        schema=_variable_schema,
        columns={
    "process": PROCESS,
    "kind": "static or tls (thread-local, one row a thread)",
    "name": "name with its scope",
    "base": "first byte",
    "bytes": "size",
    "module": "file that defines it",
    "file": "source file",
    "line": "source line",
    "type": "type as declared",
    "element_bytes": "distance of neighbouring elements of an array, else the size of its type; 0 = no type known",
    "padding_bytes": "unused bytes of one element, without those inside its fields",
    "thread": "tls: whose copy; 0 for static",
    "born_ns": "when its module was first seen mapped",
    "died_ns": "when the process changed its program or ended, null = not seen",
},
    ),
    TableDescriptor(
        name="objects",
        text="Objects in memory: heap blocks, mappings, stacks, tags, files. Derived from the records of the collector `alloc`, tags, threads and mappings; a capture of more than two million objects derives it each time.",
        make=_objects,
        stream=_object_stream,
        count_rows=_object_count,
        schema=_object_schema,
        finish=_with_places,
        columns={
    "id": "object id, from 1, in the order of birth",
    "process": PROCESS,
    "kind": "heap, mmap, brk, tag, stack, file, static, tls or memlens (memory of memlens itself)",
    "name": "tag, file or variable; `[heap]` for brk; `stack of thread N`; null for others",
    "base": "first byte",
    "bytes": "length as requested; brk: the largest it had",
    "weight_bytes": "bytes it stands for: its own, or more when objects are sampled",
    "count": "objects it stands for (1 unless sampled)",
    "born_ns": "when it was made",
    "died_ns": "when it was released, null = never; it lives until just before",
    "thread": "thread that made it; stack: whose it is",
    "death_thread": "thread that released it, null = none or not known",
    "stack": "stack id of its making, 0 = none; joins `stacks.id`",
    "operation": "malloc, calloc, realloc, aligned, new, mmap, mremap, brk; null for others",
    "previous": "object that it continues: before realloc or mremap, or before a part was unmapped; null = none",
    "alignment_bytes": "requested alignment, null = default",
    "touched_bytes": "pages, also those at its edges, that were touched while it lived; null = no whole page lies in it, or no faults were recorded",
    "recycled_bytes": "whole pages that were not, but were in use before in the same mapping: its content may have been touched without a fault",
    "never_touched_bytes": "whole pages that were not touched",
    "faults": "page faults in it that brought new pages",
    "first_touch_ns": "first fault in it, or when the kernel filled it; null = none seen",
    "first_touch_thread": "thread of that; null = the kernel, for a system call",
    "first_touch_code": "code of that; joins `sites.id`",
    "touching_threads": "distinct threads with faults in it, at most 255",
    "top_thread_bytes": "bytes of new pages that the thread with the most of them brought",
    "function": "function that allocated it: the first that is no allocator, C library or wrapper; null where no stack is known",
    "file": "source file of that",
    "line": "source line of that, 0 = unknown",
},
    ),
    TableDescriptor(
        name="import_sites",
        text="What the files of an imported trace say about its instructions (`memlens import` of MemGaze: static classes and names). "
        "Also in `sites`, as far as it has columns for it.",
        make=_no_import_sites,
        schema=_import_sites_schema,
        columns={
    "process": PROCESS,
    "pc": "address of the instruction as the trace has it; joins `accesses.pc`",
    "module": "file of the code, null = not said",
    "function": "function, null = not said",
    "file": "source file",
    "line": "source line, 0 = unknown",
    "class": "constant, strided or irregular; null = not classed",
    "kind": "load or store; null = not classed",
    "stride_bytes": "stride, null = not known (MemGaze records that there is one, not its length)",
    "implied_constants": "constant loads that each of its accesses implies, which the trace leaves out",
},
    ),
)  # fmt: skip
