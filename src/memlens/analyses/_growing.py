"""Analyses of accesses of a capture that is still recorded: each snapshot reads on where the last one ended.

Engines of sampled windows continue: a window is taken when its thread's next one has begun (`capture/model/settled.py`). So do `caches` and
`sharing`, which need the order of time: they get the accesses below a horizon, the least time up to which the windows of every live thread are complete. The
rest waits, packed, for the next snapshot. What starts over, and why:

- a trace that has every access (`locality`): the class of an instruction is known at its end only;
- a group that has another identity than before, such as code that was named since, or an object whose allocation was read after accesses to it;
- `caches` and `sharing`, when a record arrives below the horizon: the first window of a thread that was not seen before; when a process starts its second
  thread (`sharing`), and when the modelled cores have to be doubled (`caches`);
- `accesses` and `patterns`: they join all accesses with codes and objects at once, by numbers from a replay of the records, and a record that
  arrives later may be the first of them in time. Numbers by process, module and offset, or by allocation, would not help: an object that is inserted, or
  a mapping that is known later, changes which code or object an access had, and sums over accesses do not say whose they were.

The accesses themselves are never read or decoded again. There is no heat map: its columns are shares of the whole run.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .caches import MOST_CORES, CachesConsumer
from .data_locality import LocalityConsumer
from .sharing import SharingConsumer

if TYPE_CHECKING:
    from ..capture.model.settled import SettledInTime
    from ..capture.reader import Capture
    from ..results import Result
    from ._groups import Dimension


class _Goes(LocalityConsumer):
    """One that can continue after a snapshot."""

    def continue_from(self, before: _Goes) -> None:
        if self.whole or before.whole:
            raise ValueError("classes are known at the end of a whole trace only")
        for name, dimension in self._dimensions.items():
            dimension.continue_from(before._dimensions[name])
        self.streams[: len(before.streams)] = before.streams
        self.classed = before.classed
        self._took = before._took

    classed = (0, 0)
    """Accesses before this snapshot whose class was inferred, and known beforehand."""

    def _merged(self) -> Any:
        if not self.streams:
            return None
        merged = self._engine()
        for stream in self.streams:
            merged.merge(stream)
        return merged

    def _class_counts(self) -> tuple[int, int]:
        found = super()._class_counts()
        self.classed = (self.classed[0] + found[0], self.classed[1] + found[1])
        return self.classed


class GrowingLocality:
    """`snapshot` after each `Capture.refresh`.

    >>> growing = GrowingLocality(capture, by="function")          # doctest: +SKIP
    >>> while capture.refresh(): growing.snapshot().figures        # doctest: +SKIP
    """

    def __init__(self, capture: Capture, **options: Any) -> None:
        import numpy as np

        self.capture, self._options = capture, {**options, "heat_columns": 0}
        self._before: _Goes | None = None
        self._taken = np.zeros(0, dtype=bool)
        self.started_over = 0
        """Snapshots that could not continue."""

    def snapshot(self) -> Result:
        """Of all windows that cannot change any more."""
        from ..capture.model.access_pass import sweep
        from ..capture.model.settled import SettledAccesses

        consumer = _Goes(self.capture, accesses=SettledAccesses(self.capture, self._taken), **self._options)
        if self._before is not None:
            try:
                consumer.continue_from(self._before)
            except ValueError:
                self.started_over += 1
                everything = SettledAccesses(self.capture, self._taken[:0])
                consumer = _Goes(self.capture, accesses=everything, **self._options)
        self._before = None  # its engines are the new one's
        failures = sweep(consumer.accesses, [consumer])
        if failures:
            raise next(iter(failures.values()))
        result = consumer.snapshot()
        self._before = consumer
        accesses = consumer.accesses
        assert isinstance(accesses, SettledAccesses)
        self._taken = accesses.settled
        return result


# ---- in the order of time ------------------------------------------------------------------------------------------
_SPACE_KINDS = ("mapping", "process_event", "traced_module")
"""Records that say which code lies where."""
_OBJECT_COLUMNS = ("process", "kind", "base", "bytes", "born_ns")


@dataclass(frozen=True)
class _Attributed:
    """What the groups of accesses below a horizon depend on: which code and objects there were, and in which group."""

    horizon_ns: int
    spaces: Sequence[Any]
    """Chunks of `_SPACE_KINDS`."""
    code: dict[Any, Any] = field(default_factory=dict)
    """(process, module, offset) → groups."""
    objects: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, accesses: SettledInTime, dimensions: Iterable[Dimension]) -> _Attributed:
        import numpy as np

        capture: Any = accesses.capture
        spaces = [chunk for name in _SPACE_KINDS for chunk in capture.chunks_of(name)]
        code: dict[Any, Any] = {}
        objects: dict[str, Any] = {}
        for number, dimension in enumerate(dimensions):
            if "codes" in dimension.columns:
                rows = capture.table("sites").select(["process", "module", "file_offset"]).to_pylist()
                groups: list[int] = np.asarray(dimension._of_code).tolist()  # type: ignore[attr-defined]
                for row, group in zip(rows, groups, strict=False):
                    code.setdefault((number, *row.values()), set()).add(group)
            if "objects" in dimension.columns:
                columns = capture.objects.everything.columns
                objects = {name: np.array(columns[name]) for name in (*_OBJECT_COLUMNS, "died_ns")}
                objects["group"] = np.array(dimension._of_object)[1 : len(objects["base"]) + 1]  # type: ignore[attr-defined]
        return cls(accesses.horizon_ns, spaces, code, objects)

    def holds(self, now: _Attributed) -> bool:
        """Whether accesses below the horizon are still in the groups that they were in."""
        known = {id(chunk) for chunk in self.spaces}
        new = [chunk.header["begin_ns"] for chunk in now.spaces if id(chunk) not in known]
        if any(begin < self.horizon_ns for begin in new):  # also of records without a time, whose begin is 0
            return False
        if any(now.code.get(key) != groups for key, groups in self.code.items()):
            return False
        return not self.objects or self._objects_hold(now.objects)

    def _objects_hold(self, now: dict[str, Any]) -> bool:
        import numpy as np

        before, count = self.objects, len(self.objects["base"])
        if len(now["base"]) < count or bool((now["born_ns"][count:] < np.uint64(self.horizon_ns)).any()):
            return False
        if any(not np.array_equal(before[name], now[name][:count]) for name in (*_OBJECT_COLUMNS, "group")):
            return False
        ended, ends = before["died_ns"], now["died_ns"][:count]
        later = (ended == 0) & (ends >= np.uint64(self.horizon_ns))
        return bool(((ended == ends) | later).all())


class GrowingInTime:
    """`snapshot` after each `Capture.refresh`, of an analysis that needs the order of time: ``caches`` or ``sharing``."""

    def __init__(self, capture: Capture, name: str, **options: Any) -> None:
        self.capture, self._name, self._options = capture, name, options
        self._before: CachesConsumer | SharingConsumer | None = None
        self._attributed: _Attributed | None = None
        self.started_over = 0
        """Snapshots that could not continue."""

    @property
    def horizon_ns(self) -> int:
        """Accesses before it are in the last snapshot."""
        return 0 if self._attributed is None else self._attributed.horizon_ns

    def snapshot(self) -> Result:
        """Of all accesses below the horizon."""
        from ..capture.model.access_pass import sweep
        from ..capture.model.settled import SettledInTime

        consumer, attributed = self._continued() or (None, None)
        if consumer is None:
            self.started_over += self._before is not None
            consumer, attributed = self._consumer(None)
        self._before = self._attributed = None  # its engines are the new one's
        failures = sweep(consumer.accesses, [consumer])
        if failures:
            raise next(iter(failures.values()))
        result = consumer.snapshot()
        assert isinstance(consumer.accesses, SettledInTime)
        self._before, self._attributed = consumer, attributed
        return result

    def _consumer(
        self, before: CachesConsumer | SharingConsumer | None
    ) -> tuple[CachesConsumer | SharingConsumer, _Attributed]:
        """One that has the engines of `before`; ValueError where it cannot."""
        import numpy as np

        from ..capture.model.settled import SettledInTime

        none = np.zeros(0, dtype=bool)
        if before is None:
            accesses = SettledInTime(self.capture, none)
        else:
            last = before.accesses
            assert isinstance(last, SettledInTime)
            accesses = SettledInTime(self.capture, last.settled, since_ns=last.horizon_ns, given=last.given)
            if not accesses.follows:
                raise ValueError("a record came below the horizon")
        consumer: CachesConsumer | SharingConsumer
        if self._name == "caches":
            # More cores than threads, so that a new thread needs no other model.
            cores = min(MOST_CORES, 1 << max(1, len(accesses.streams) - 1).bit_length())
            consumer = CachesConsumer(self.capture, accesses=accesses, model_cores=cores, **self._options)
            if before is not None:
                assert isinstance(before, CachesConsumer)
                consumer.continue_from(before)
        else:
            consumer = SharingConsumer(self.capture, accesses=accesses, **self._options)
            if before is not None:
                assert isinstance(before, SharingConsumer)
                consumer.continue_from(before)
        dimensions = consumer.dimensions if isinstance(consumer, CachesConsumer) else ()
        return consumer, _Attributed.of(accesses, dimensions)

    def _continued(self) -> tuple[CachesConsumer | SharingConsumer, _Attributed] | None:
        if self._before is None or self._attributed is None:
            return None
        try:
            consumer, attributed = self._consumer(self._before)
        except ValueError:
            return None
        # Lines are shared by threads, whatever their code and objects are.
        return (consumer, attributed) if self._name == "sharing" or self._attributed.holds(attributed) else None
