"""What models ask of a capture: a small typed interface, so that they need not know the class that composes them.

`records.RecordStore` gives `RecordSource`; `capture.reader.Capture` gives `TableSource` and the wider ones that models declare for
themselves (a model names the models it builds on).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    import pyarrow as pa

    from ... import _core
    from ...results import Quality
    from .meta import Meta


class TimedPayload(NamedTuple):
    """The records of a chunk, on the way through a capture in time order."""

    name: str
    header: dict[str, int]
    payload: bytes
    arrival: int
    """Place of the chunk among those of these kinds in the capture: the order of records of one moment."""
    next_ns: int | None
    """No later payload has a record before; None: this is the last one."""


class RecordSource(Protocol):
    """Records and facts of a capture."""

    @property
    def path(self) -> Path: ...
    @property
    def meta(self) -> Meta: ...
    @property
    def complete(self) -> bool: ...
    @property
    def quality(self) -> Quality: ...
    @property
    def begin_ns(self) -> int: ...
    @property
    def end_ns(self) -> int: ...
    def payloads(self, name: str) -> Iterator[tuple[dict[str, int], bytes]]: ...
    def headers(self, name: str) -> list[dict[str, int]]: ...
    def payloads_in_time(self, *names: str) -> Iterator[TimedPayload]: ...
    def batches(self, name: str, *, columns: list[str] | None = None) -> Iterator[pa.RecordBatch]: ...
    def strings(self) -> dict[int, str]: ...
    def kinds(self) -> dict[str, int]: ...
    def is_as_written(self, name: str) -> bool: ...


class TableSource(RecordSource, Protocol):
    """Tables too, by name: those beside the records, and those that are made of them."""

    def table(self, name: str) -> pa.Table: ...
    def note_window_uses(self, engine: _core.Replay) -> None:
        """Tells a replay which code and stacks the windows name, and when."""
