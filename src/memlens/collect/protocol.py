"""What a collector is: one module with a `CollectorDescriptor` and a subclass of `Collector`.

The descriptor says what the collector is before anything is recorded: its options, what it needs, whether it works here. The class
is the collector in one recording. The recorder calls its methods in the order in which they stand here, and knows nothing else of
it; every method has an empty default. All run in the recorder, one after the other, except `finish` and `tables`: they run in the
process that finishes the capture (`finishing.py`), and see what the recorder had when the program ended.

A collector of memlens that raises while the program runs ends the recording; one of another package is left out, with a note. The
program runs on in both cases.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, Protocol, TypeVar

from ..registry import Asked, CollectorDescriptor, Option
from .facts import Availability

if TYPE_CHECKING:
    import pyarrow as pa

    from .. import _recorder
    from ..capture.reader import Capture
    from ..capture.store.writer import CaptureWriter
    from .facts import Facts
    from .record_options import RecordOptions

__all__ = [
    "Asked", "Availability", "Batch", "ChannelPlan", "Collector", "CollectorDescriptor", "Launch", "Option", "Part", "Recording", "SessionPlan",
]  # fmt: skip

S = TypeVar("S")
P = TypeVar("P", bound="Part")
NEVER_S = float("inf")


@dataclass
class SessionPlan:
    """What the native session does for the collectors; each adds what it wants."""

    faults: bool = False
    fault_before: bool = True
    stack_mode: int = 0
    timeline_hz: float = 0.0
    emulated: bool = False


@dataclass
class ChannelPlan:
    """The memory that the program's processes write records to; made when a collector uses it."""

    budget_share: float
    users: list[str] = field(default_factory=list)
    alloc: bool = False
    """Objects and mappings are recorded."""
    sample_bytes: int = 512 << 10
    large_bytes: int = 64 << 10
    wait_ms: int = 200
    """How long a thread of the program waits for a recorder that makes no progress."""
    ring_bytes: int = 0
    slot_max: int = 0
    windows: bool = False

    def wait_at_least(self, ms: int) -> None:
        self.wait_ms = max(self.wait_ms, ms)

    def arguments(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "users"}


class Batch(Protocol):
    """Records of one kind and process."""

    @property
    def kind(self) -> int: ...
    @property
    def process(self) -> int: ...
    @property
    def payload(self) -> bytes:
        """Copied at each call."""


@dataclass(frozen=True)
class Launch:
    """What runs the program."""

    command: list[str]
    environment: list[str]
    """``NAME=VALUE``, beside the recorder's own."""


class Recording(Protocol):
    """The recording that a collector is part of."""

    @property
    def options(self) -> RecordOptions: ...
    @property
    def facts(self) -> Facts:
        """What this machine allows (`facts.py`)."""

    @property
    def session(self) -> _recorder.Session: ...
    @property
    def session_plan(self) -> SessionPlan:
        """What the session does."""

    @property
    def channel(self) -> _recorder.Channel | None: ...
    @property
    def channel_users(self) -> Sequence[str]:
        """Names of the collectors that the channel was made for."""

    @property
    def writer(self) -> CaptureWriter: ...
    @property
    def notes(self) -> list[str]:
        """Sentences for the quality of all results."""

    @property
    def failure(self) -> str | None:
        """Why recording stopped early, if it did."""

    def is_asked(self, name: str) -> bool:
        """A person named this collector, or gave its main option."""

    def is_chosen(self, name: str) -> bool:
        """This collector records."""

    def leave_out(self, name: str, reason: str, remedy: str) -> None:
        """A collector cannot record. Raises CollectorError where it is the only one that was asked for."""

    def unsupported(self, name: str, reason: str, remedy: str) -> None:
        """A collector records, but not everything."""

    def was_not_used(self, name: str) -> None:
        """A collector found nothing to record: the capture does not list it."""

    def string(self, text: str) -> int:
        """The id of a text, for records; its own record is in the file when this returns. Not in `finish`."""

    def pids(self) -> dict[int, int]:
        """pid → process number of what runs now."""

    def ledger(self, name: str, values: Mapping[str, object]) -> None:
        """Counts for meta.json, under this name."""

    def write_table(self, collector: Part, name: str, table: pa.Table) -> None:
        """A side table of a collector, in `tables`: COLLECTOR_NAME, at most 64 MiB; `Capture.side_table` and queries read it. Raises
        ValueError for a name that is taken and a table that is too large."""

    def resolve_nodes(self) -> None:
        """The NUMA nodes of pages are asked for while the program runs."""

    def shared(self, kind: Callable[[Any], P]) -> P:
        """The one object of a class that several collectors of this recording use; made at the first call."""


class Part:
    """What takes part in a recording: a collector, or something that several of them share."""

    package: str = ""
    """The installed package that it comes from; empty: memlens itself."""
    holds_records: bool = False
    """`finish` writes records that nobody can make later."""

    def prepare(self, program: str) -> None:
        """Before the program starts: its file. May leave itself out. Not called for a process that runs already."""

    def environment(self) -> list[str]:
        """``NAME=VALUE`` for the program."""
        return []

    def due_s(self) -> float:
        """When it wants the next `tick` at the latest, from now; the recorder ticks ten times a second in any case."""
        return NEVER_S

    def tick(self) -> None:
        """While the program runs."""

    def finish(self) -> list[str]:
        """After the program's end, in another process: records of what lies in memory only; returns notes."""
        return []

    def tables(self, capture: Capture) -> None:
        """In the same process: side tables beside the records (`self.recording.writer`)."""


class Collector(Part, Generic[S]):
    """A collector in one recording; `S`: its settings."""

    processes: ClassVar[Literal["events", "own", "none"]] = "none"
    """How it learns of processes: by events of each, of those that it records by itself, or not at all."""

    descriptor: CollectorDescriptor

    def __init__(self, settings: S, recording: Recording) -> None:
        self.settings = settings
        self.recording = recording

    @property
    def name(self) -> str:
        return self.descriptor.name

    # ---- before the program starts ----------------------------------------------------------
    def plan_channel(self, plan: ChannelPlan) -> None:
        """What it wants of the channel; who appends its name to `plan.users` gets one."""

    def launch(self, program: str, command: list[str]) -> Launch | None:
        """What runs the program, when `descriptor.wraps`. The channel is there."""
        return None

    def plan_session(self, plan: SessionPlan) -> None:
        """What it wants of the session."""

    def refused(self, error: OSError) -> tuple[str, str] | None:
        """(reason, remedy) when the session could not be attached because of it: it is left out, and attaching tried again."""
        return None

    def describe(self) -> dict[str, Any]:
        """Its settings, as meta.json keeps them."""
        return {}

    def begin_meta(self) -> dict[str, object]:
        """Other fields of meta.json, of the moment before the program starts."""
        return {}

    # ---- while it runs ------------------------------------------------------------------------
    def attach(self, pid: int) -> None:
        """The session watches the process and the capture is open. The program does not run yet, but with --pid."""

    def quality(self) -> dict[str, Any]:
        """Fields of ``quality`` in meta.json."""
        return {}

    def batch(self, batch: Batch) -> None:
        """A batch of records on its way to the capture."""

    # ---- after its end --------------------------------------------------------------------------
    def end(self, counts: Mapping[str, int], status: int | None) -> list[str]:
        """The program has ended: fields of meta.json; returns notes. `counts`: the session's; `status`: as waitpid gave it."""
        return []


def takes_batches(collector: Collector[object]) -> bool:
    return type(collector).batch is not Collector.batch
