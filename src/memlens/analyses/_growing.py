"""Locality of a capture that is still recorded: each snapshot reads on where the last one ended.

Engines of sampled windows go on: a window is taken when its thread's next one has begun (`capture/model/settled.py`). What starts over, and why:

- a trace that has every access: the class of an instruction is known at its end only;
- a group that has another identity than before, such as code that was named since;
- the caches and the sharing of lines (`caches`, `sharing`): a new chunk may hold accesses that are earlier than those of another thread, and these
  engines need the order of time;
- `accesses` and `patterns`: codes and objects get their numbers from a replay of the records, which a longer capture numbers anew.

The accesses themselves are never read or decoded again. There is no heat map: its columns are shares of the whole run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .data_locality import LocalityConsumer

if TYPE_CHECKING:
    from ..capture.reader import Capture
    from ..results import Result


class _Goes(LocalityConsumer):
    """One that can go on after a snapshot."""

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
        """Snapshots that could not go on."""

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
