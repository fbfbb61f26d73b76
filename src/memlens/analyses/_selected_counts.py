"""Compiled-in counts of a selection: places by process, thread and region, epochs by time, sites and blocks by code."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from ..capture.model.counting import Counts, Executed, Places
from ..capture.model.joins import factorized
from ._matching import CodeMatcher
from ._selected import NotSelectable

if TYPE_CHECKING:
    from ..arrays import Bools, Columns, Ints, Uint32s, Uint64s
    from ._selected import SelectedCapture


def epochs_chosen(part: SelectedCapture) -> set[int] | None:
    """Epochs whose middle lies in the selected time; None: all."""
    if part.time_ns is None:
        return None
    first, last = part.time_ns
    rows = part.table("count_epochs").to_pylist()
    if not rows:
        raise NotSelectable("counters were read once, at the end: record with --count=epoch=100ms for counts over time")
    return {row["epoch"] for row in rows if first <= (row["begin_ns"] + row["end_ns"]) // 2 < last}


class SelectedCounts(Counts):
    """Counts of a selection; places are merged over the epochs that are selected."""

    def __init__(self, capture: SelectedCapture) -> None:
        if capture.selection.object:
            raise NotSelectable("counters have no addresses")
        super().__init__(capture)
        self.part = capture
        self._whole = capture.whole.counts
        self._epochs = epochs_chosen(capture)

    def is_place_chosen(
        self, image: Uint32s, node: Uint32s, process: Uint32s, thread: Uint32s, epoch: Uint32s
    ) -> Bools:
        import numpy as np

        selection = self.part.selection
        chosen = np.ones(len(image), dtype=bool)
        if selection.processes:
            chosen &= np.isin(process, np.array(selection.processes))
        if selection.threads:
            chosen &= np.isin(thread, np.array(selection.threads))
        if selection.region:
            chosen &= np.array(
                [selection.region in self._whole.path_of(int(i), int(n)) for i, n in zip(image, node, strict=True)],
                dtype=bool,
            )
        if self._epochs is not None:
            chosen &= np.isin(epoch, np.array(sorted(self._epochs)))
        return chosen

    def _joined(self, *, epochs: bool) -> tuple[Places, Executed, Columns, Uint64s]:
        import numpy as np

        by_epoch = epochs or self._epochs is not None
        places, executed, counted, adds = self._whole._join(epochs=by_epoch)
        chosen = self.is_place_chosen(places.image, places.node, places.process, places.thread, places.epoch)
        epoch = places.epoch if epochs else np.zeros(len(places), dtype=np.uint32)
        kept = np.flatnonzero(chosen)
        number, first = factorized(places.image[kept], places.node[kept], places.thread[kept], epoch[kept])
        of_place = np.full(len(places), -1, dtype=np.int64)
        of_place[kept] = number
        rows = kept[first]
        made = Places(places.process[rows], places.image[rows], places.node[rows], places.thread[rows], epoch[rows])
        new_adds = np.zeros(len(made), dtype=np.uint64)
        np.add.at(new_adds, of_place[kept], adds[kept])
        mine = of_place[executed.place] >= 0
        runs = Executed(
            *(column[mine] for column in (of_place[executed.place], executed.what, executed.executions, executed.bytes))
        )
        its = of_place[counted["place"]] >= 0
        left = {name: values[its] for name, values in counted.items()}
        left["place"] = of_place[counted["place"]][its]
        return made, _merged(runs), left, new_adds

    # ---- code ------------------------------------------------------------
    @cached_property
    def site_group(self) -> Ints:
        import numpy as np

        found = self._whole.site_group
        if not self.part.selection.code:
            return found
        table = self.part.table("count_sites")
        chosen = CodeMatcher(self.part.selection.code).mask(
            *(table.column(name).to_pylist() for name in ("name", "file", "line"))
        )
        return np.where(chosen, found, -1)

    @cached_property
    def block_group(self) -> Ints:
        import numpy as np

        found = self._whole.block_group
        if not self.part.selection.code:
            return found
        functions = self.functions
        name, file = (functions.column(n).to_pylist() for n in ("name", "file"))
        owner = self.blocks["function"].tolist()
        chosen = CodeMatcher(self.part.selection.code).mask(
            [name[at] for at in owner], [file[at] for at in owner], self.blocks["line"].tolist()
        )
        return np.where(chosen, found, -1)


def _merged(runs: Executed) -> Executed:
    """One row for each place and group."""
    import numpy as np

    if not len(runs.place):
        return runs
    number, first = factorized(runs.place, runs.what)
    executions = np.zeros(len(first), dtype=np.int64)
    np.add.at(executions, number, runs.executions)
    return Executed(runs.place[first], runs.what[first], executions, np.zeros(len(first), dtype=np.int64))
