"""Windows of accesses of a selection: which records, what they stand for, and their payloads.

A record of a window belongs to the time at which it begins, and to its process, thread and region, whole: so its accesses stay next to
each other. Weights stay what they are in the whole run, for they say what a thread executed from one window to the next; so what is
estimated for parts adds up to what is estimated for the whole. The selected executions are the population of errors.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from ..capture.model.accesses import NO_UNIT, Units, Windows
from ..capture.model.window_records import ChosenChunk, chosen_chunks

if TYPE_CHECKING:
    from ..arrays import Bools, Columns, Ints
    from ._selected import SelectedCapture


class SelectedWindows(Windows):
    """Window records of a selection; row numbers are its own."""

    def __init__(self, capture: SelectedCapture) -> None:
        super().__init__(capture)
        self.part = capture
        self._whole = capture.whole.windows

    @cached_property
    def is_chosen(self) -> Bools:
        """Which records of the capture are selected."""
        import numpy as np

        raw = self._whole.raw
        selection = self.part.selection
        region = None
        if selection.region and not self.part.region_spans:
            strings = self.part.strings()
            region = [strings.get(int(number)) for number in raw["region"]]
        chosen = self.part.rows(
            self._whole.count, "windows", process=raw["process"], thread=raw["thread"], time_ns=raw["begin_ns"], region=region,
        )  # fmt: skip
        return np.asarray(chosen, dtype=bool)

    @cached_property
    def rows(self) -> Ints:
        """Their row numbers in the capture."""
        import numpy as np

        return np.flatnonzero(self.is_chosen)

    @cached_property
    def raw(self) -> Columns:
        return {name: values[self.rows] for name, values in self._whole.raw.items()}

    @cached_property
    def units(self) -> Units:
        """Parts of the capture's units: records that follow each other in one unit, and are all selected."""
        import numpy as np

        whole, columns = self._whole.units, self._whole.columns
        everything = np.lexsort((columns["first_executed"], columns["begin_ns"], columns["thread"], columns["process"]))
        order = everything[whole.of_window[everything] != NO_UNIT]
        taken = self.is_chosen[order]
        unit = whole.of_window[order].astype(np.int64)
        goes_on = np.zeros(len(order), dtype=bool)
        goes_on[1:] = (unit[1:] == unit[:-1]) & taken[:-1]
        number = np.cumsum(taken & ~goes_on) - 1
        of_window = np.full(self._whole.count, NO_UNIT, dtype=np.uint32)
        of_window[order[taken]] = number[taken]
        count = int(number[-1]) + 1 if len(order) and taken.any() else 0
        covered = np.zeros(count, dtype=np.uint64)
        np.add.at(covered, number[taken], self._whole.covered[order[taken]].astype(np.uint64))
        parent = np.zeros(count, dtype=np.int64)
        parent[number[taken]] = unit[taken]
        is_whole = covered == whole.covered[parent]
        share = np.rint(whole.weight[parent] * covered).astype(np.uint64) if count else covered
        executed = np.where(is_whole, whole.executed[parent], share) if count else covered
        parts = np.bincount(number[taken], minlength=count).astype(np.uint32)
        return Units(of_window[self.rows], executed, covered, parts)


def selected_chunks(part: SelectedCapture) -> list[ChosenChunk]:
    """Chunks of window records of which only the selected ones are left; those without any are never decoded."""
    windows = part.windows
    assert isinstance(windows, SelectedWindows)
    return chosen_chunks(part.whole, windows.is_chosen)
