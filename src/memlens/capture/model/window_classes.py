"""Classes of accesses for one sweep: what `locality.Classifier` finds, without reading everything beforehand where windows allow it.

Of sampled windows an instruction has a class in each window (`Classifier`, `by_window`), so a window can be classed when it has ended: batches are held until their
last window is complete. Of a whole trace an instruction has one class for the run, which is known at its end: those are read twice, and so is a
capture with a window of more than `MOST_HELD` accesses.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Protocol

from .locality import AccessBatch, AccessClasses, Classifier, ThreadAccesses

if TYPE_CHECKING:
    import numpy as np

    from ...arrays import Bools, Uint8s, Uint32s, Uint64s

MOST_HELD = 4 << 20

Classed = tuple[AccessBatch, "Uint8s"]
"""A batch and the class of each access; a batch without accesses has None."""


class BatchClasses(Protocol):
    """Gives batches their classes, each thread's batches in order."""

    def push(self, batch: AccessBatch) -> Iterator[Classed]: ...
    def rest(self) -> Iterator[Classed]: ...
    @property
    def static_accesses(self) -> int: ...
    @property
    def inferred_accesses(self) -> int: ...


def batch_classes(accesses: ThreadAccesses, site_classes: Mapping[str, Uint8s] | None) -> BatchClasses:
    """For all accesses of `accesses`, in one sweep."""
    whole = accesses.is_whole
    recorded = accesses.unit_recorded
    if whole or not accesses.units_in_order or (len(recorded) and int(recorded.max()) > MOST_HELD):
        return _KnownBefore(Classifier(accesses, site_classes, by_window=not whole))
    return _AtWindowEnds(Classifier(accesses, site_classes, by_window=True, infer=False))


def _no_classes() -> Uint8s:
    import numpy as np

    return np.zeros(0, dtype=np.uint8)


class _KnownBefore:
    def __init__(self, classes: Classifier) -> None:
        self._classes = classes

    def push(self, batch: AccessBatch) -> Iterator[Classed]:
        yield batch, self._classes(batch) if len(batch) else _no_classes()

    def rest(self) -> Iterator[Classed]:
        return iter(())

    @property
    def static_accesses(self) -> int:
        return self._classes.static_accesses

    @property
    def inferred_accesses(self) -> int:
        return self._classes.inferred_accesses


class _Held:
    """A batch whose last window may go on."""

    def __init__(self, batch: AccessBatch, known: tuple[Uint8s, Bools, Uint64s] | None = None) -> None:
        """`known`: what `Classifier.known` has of it; None where the batch has constants only."""
        self.batch, self._known = batch, known

    @property
    def classes(self) -> Uint8s:
        return _no_classes() if self._known is None else self._known[0]

    def columns(self, part: slice) -> tuple[Uint64s, Uint64s, Uint8s, Uint32s]:
        """(keys, addresses, stores, units) of the accesses of a part whose class must be inferred."""
        assert self._known is not None
        _, unknown, keys = self._known
        mine, batch = unknown[part], self.batch
        return keys[part][mine], batch.address[part][mine], batch.is_store[part][mine], batch.unit[part][mine]

    def take(self, part: slice, classes: Uint8s) -> None:
        assert self._known is not None
        known, unknown, _ = self._known
        known[part][unknown[part]] = classes


class _AtWindowEnds:
    def __init__(self, classes: Classifier) -> None:
        self._classes = classes
        self._held: dict[int, list[_Held]] = {}
        """By stream; the last window of the first one has not ended, and all of the others' accesses are of it."""

    @property
    def static_accesses(self) -> int:
        return self._classes.static_accesses

    @property
    def inferred_accesses(self) -> int:
        return self._classes.inferred_accesses

    def push(self, batch: AccessBatch) -> Iterator[Classed]:
        import numpy as np

        held = self._held.setdefault(batch.stream, [])
        if not len(batch):
            if held:
                held.append(_Held(batch))
            else:
                yield batch, _no_classes()
            return
        one = _Held(batch, self._classes.known(batch))
        last_unit = batch.unit[-1]
        open_from = len(batch) - int(np.searchsorted(batch.unit[::-1] != last_unit, True))
        if held:
            unit = next(h.batch.unit[-1] for h in reversed(held) if len(h.batch))
            goes_on = int(np.searchsorted(batch.unit != unit, True)) if batch.unit[0] == unit else 0
            if goes_on == len(batch):
                held.append(one)
                return
            self._class_unit([*held, one], unit, goes_on)
            yield from ((h.batch, h.classes) for h in held)
            held.clear()
            begin = goes_on
        else:
            begin = 0
        self._class(one, slice(begin, open_from))
        held.append(one)

    def rest(self) -> Iterator[Classed]:
        for held in self._held.values():
            whole = [h for h in held if len(h.batch)]
            if whole:
                self._class_unit(held, whole[-1].batch.unit[-1], None)
            yield from ((h.batch, h.classes) for h in held)
        self._held.clear()

    def _class(self, one: _Held, part: slice) -> None:
        """Accesses of windows that lie whole in one batch."""
        import numpy as np

        columns = one.columns(part)
        if len(columns[0]):
            one.take(part, np.asarray(AccessClasses.by_window(2, *columns)))

    def _class_unit(self, held: list[_Held], unit: np.uint32, last_end: int | None) -> None:
        """The window that begins in the first batch and ends in the last, there before `last_end`."""
        import numpy as np

        parts: list[tuple[_Held, slice]] = []
        for at, one in enumerate(held):
            if not len(one.batch):
                continue
            begin = len(one.batch) - int(np.searchsorted(one.batch.unit[::-1] != unit, True)) if at == 0 else 0
            end = last_end if at == len(held) - 1 and last_end is not None else len(one.batch)
            parts.append((one, slice(begin, end)))
        columns = [one.columns(part) for one, part in parts]
        keys, addresses, stores, units = (np.concatenate(column) for column in zip(*columns, strict=True))
        if not len(keys):
            return
        found = np.asarray(AccessClasses.by_window(2, keys, addresses, stores, units))
        edges: list[int] = np.cumsum([0, *(len(column[0]) for column in columns)]).tolist()
        for (one, part), low, high in zip(parts, edges, edges[1:], strict=False):
            one.take(part, found[low:high])
