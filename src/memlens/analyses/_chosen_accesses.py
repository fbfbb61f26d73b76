"""Accesses of the selected code and objects, for engines that must see every access: what lies between two uses is of all code.

Owns how a choice of accesses goes through dimensions: what was not chosen is group 0, whose key has `NOT_CHOSEN`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ._groups import NO_GROUP, Dimension

if TYPE_CHECKING:
    from ..arrays import Bools, Uint32s
    from ..capture.model.locality import AccessBatch, ThreadAccesses
    from ..capture.reader import Capture
    from ..results import Key
    from ._selected import SelectedCapture

NOT_CHOSEN = "\0not chosen"
"""In the key of a group: its accesses were not chosen."""
NO_CURVE = (
    "The miss curve, cache totals and the heat map are of all accesses together: one function or object has none."
)


def with_all_code(capture: Capture) -> Capture:
    """The capture, or the selected part, without conditions on code and objects."""
    from ._selected import selected

    part = selected(capture)
    return capture if part is None else part.of_all_code()


def chosen_accesses(capture: Capture, accesses: ThreadAccesses) -> ChosenAccesses | None:
    """The choice among `accesses`, which are those of `with_all_code`; None: all of them."""
    from ._selected import selected

    part = selected(capture)
    if part is None:
        return None
    if part.time_ns is not None:
        part.note_bins(part.windows_by_time)
    return ChosenAccesses(part, accesses) if part.selection.by_access else None


LEFT_OUT = 2**32 - 1
"""Group or function of accesses that are in no row of a join (native/core/trace/access_join.h)."""


def chosen_groups(capture: Capture, group_of_object: Uint32s, function_of_code: Uint32s) -> tuple[Uint32s, Uint32s]:
    """Groups and functions for `Windows.join` such that only the selected code and objects have rows."""
    import numpy as np

    from ._matching import codes_selected
    from ._selected import selected

    part = selected(capture)
    if part is None or not part.selection.by_access:
        return group_of_object, function_of_code
    if part.time_ns is not None:
        part.note_bins(part.windows_by_time)
    groups, functions = (np.array(numbers, dtype=np.uint32) for numbers in (group_of_object, function_of_code))
    if part.selection.object:
        groups[~part.objects_chosen] = LEFT_OUT
    if part.selection.code:
        functions[~codes_selected(part.whole, part.selection.code)] = LEFT_OUT
    return groups, functions


class ChosenAccesses:
    """Which accesses of a batch are of the selected code and object."""

    def __init__(self, part: SelectedCapture, accesses: ThreadAccesses) -> None:
        import numpy as np

        from ._groups import named_dimension
        from ._matching import PLACE, codes_selected

        self._accesses = accesses
        selection = part.selection
        self.codes = codes_selected(part.whole, selection.code) if selection.code else None
        """By code, and of code that is not known."""
        self.is_line = bool(PLACE.fullmatch(selection.code))
        """Only a part of a function."""
        self._object = named_dimension(accesses, "object") if selection.object else None
        self.groups: Bools | None = (
            None
            if self._object is None
            else np.array([key[0] == selection.object for key in self._object.keys], dtype=bool)
        )
        """By number of the dimension `object`."""

    @property
    def columns(self) -> frozenset[str]:
        """What it asks of a batch."""
        wanted = (("codes", self.codes), ("objects", self._object))
        return frozenset(name for name, asked in wanted if asked is not None)

    def _of_code(self, batch: AccessBatch) -> Bools:
        import numpy as np

        if self.codes is None:
            return np.ones(len(batch), dtype=bool)
        return self.codes[np.minimum(self._accesses.codes(batch), np.uint32(len(self.codes) - 1))]

    def mask(self, batch: AccessBatch) -> Bools:
        chosen = self._of_code(batch)
        if self._object is not None and self.groups is not None:
            chosen &= self.groups[self._object.numbers(batch)]
        return chosen

    def constants(self, batch: AccessBatch) -> Bools:
        """The same of constants: they have code, but no known address."""
        import numpy as np

        if self._object is not None:
            return np.zeros(len(batch), dtype=bool)
        return self._of_code(batch)

    def dimension(self, inner: Dimension) -> Dimension:
        return _Chosen(inner, self)


class _Chosen(Dimension):
    """A dimension of the chosen accesses."""

    def __init__(self, inner: Dimension, chosen: ChosenAccesses) -> None:
        self._inner, self._chosen = inner, chosen
        self.names = inner.names
        self.columns = inner.columns | chosen.columns
        super().__init__(inner.accesses)

    @property
    def keys(self) -> list[Key]:
        return [(NOT_CHOSEN,) * max(1, len(self.names)), *self._inner.keys]

    @keys.setter
    def keys(self, keys: list[Key]) -> None:
        """The inner dimension has them."""

    def numbers(self, batch: AccessBatch) -> Uint32s:
        import numpy as np

        return np.where(self._chosen.mask(batch), self._inner.numbers(batch) + 1, 0).astype(np.uint32)

    def constant_numbers(self, batch: AccessBatch) -> Uint32s:
        import numpy as np

        inner = self._inner.constant_numbers(batch)
        known = self._chosen.constants(batch) & (inner != NO_GROUP)
        return np.where(known, inner.astype(np.int64) + 1, NO_GROUP).astype(np.uint32)

    @property
    def knows_constants(self) -> bool:
        by_code = self._chosen.codes is None or self.accesses.knows_constants_by_code
        return self._inner.knows_constants and by_code and self._chosen.groups is None

    @property
    def has_constants(self) -> bool:
        return self._inner.has_constants and self._chosen.groups is None
