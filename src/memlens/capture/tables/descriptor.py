"""What a table of a capture is: its schema, what its columns mean and how it is made.

`query`, `export`, the reference page and `Capture.table` read descriptors; a new table is an entry in the module of its subject and
needs no other file. Makers get a `Models`, the capture as models give it; they must not know the class that composes them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from ..model.call_stacks import StackSource

if TYPE_CHECKING:
    import pyarrow as pa

    from ..model.accesses import Windows
    from ..model.counting import Counts
    from ..model.tracing import TraceSites

PROCESS = "process number in this capture, from 1; 0 = the whole capture"
THREAD = "kernel thread id"
MODULE = "build-id of the module, its path when it has none; joins `counted_modules.module`"
REGION = "path of regions, outermost first, joined by ` / `; null = outside any"
IMAGE = "program image: a process from exec or fork on; joins `count_status.image`"
CODE = "code location of `pc`, null when it is not known; joins `sites.id`"


class Models(StackSource, Protocol):
    """A capture as makers of tables see it."""

    @property
    def windows(self) -> Windows: ...
    @property
    def counts(self) -> Counts: ...
    @property
    def trace_sites(self) -> TraceSites: ...
    def empty_batch(self, kind: str) -> pa.RecordBatch: ...


@dataclass(frozen=True, kw_only=True)
class TableDescriptor:
    """One table that `Capture.table`, `memlens query` and `memlens export` offer."""

    name: str
    text: str
    """What a row is, in a sentence or two."""
    make: Callable[..., pa.Table]
    """Models → the whole table, derived from records."""
    columns: Mapping[str, str] = field(default_factory=dict)
    """The meaning of each column."""
    schema: Callable[[], pa.Schema] | None = None
    """Side tables: the columns that a kept file must have to be taken for this table."""
    finish: Callable[[Models, pa.Table], pa.Table] | None = None
    """Side tables: what is added to the table of a file as well as to a derived one."""
    stream: Callable[[Models], pa.RecordBatchReader] | None = None
    """For tables that may not fit in memory."""
    count_rows: Callable[[Models], int] | None = None
    """The number of rows without making the table."""
    record: str = ""
    """The record kind whose records the table holds as they were recorded."""
