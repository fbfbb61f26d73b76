"""Analysis `numa`: which accesses of windows are local and remote, by line, object, thread and region, and the access matrix."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...registry import AnalysisDescriptor, Option
from ._pass import BY, NumaPass
from ._view import knows_nodes, numa_view

if TYPE_CHECKING:
    import pyarrow as pa

    from ...capture.reader import Capture
    from ...results import Cell, Note, Result

MOST_ROWS = 2000


def numa(capture: Capture, *, stack: bool = False) -> Result:
    """Local, remote and unpinned accesses, as the NUMAPROF paper defines them.

    Where a thread runs is known from its affinity, where a page lies from the kernel's answers (`capture/model/places.py` has the definitions).
    Accesses are those of windows: of a sampled trace each stands for its weight, and shares have the standard error between windows.

    Parameters
    ----------
    stack
        Accesses to stacks are classed like others. They are nearly always local, and are counted apart otherwise.
    """
    from ...capture.model.access_pass import run

    consumer = NumaConsumer(capture, stack=stack)
    result: Result = run(consumer.accesses, consumer)
    return result


class NumaConsumer(NumaPass):
    """What a report reads the accesses with."""

    def snapshot(self) -> Result:
        from ...results import Quality, Result
        from ._rows import distance_rows, figures_of, group_rows, matrix_rows, object_thread_rows

        figures = figures_of(self)
        tables: dict[str, pa.Table] = {}
        for name in BY:
            tables[f"by_{name}"] = group_rows(self, name, self.dimensions[name], MOST_ROWS)
        tables["matrix"] = matrix_rows(self)
        tables["distances"] = distance_rows(self)
        tables["object_threads"] = object_thread_rows(self, MOST_ROWS)
        quality = self.capture.quality.joined(
            Quality(
                exact=self.whole and not figures["unknown"] and not figures["undecided"],
                notes=tuple(self._notes(figures)),
            )
        )
        return Result("numa", figures, tables, quality)

    def _notes(self, figures: dict[str, Cell]) -> list[Note]:
        from ...results import Note

        notes: list[Note] = []
        total = float(figures["accesses"] or 0)
        if not self.whole and total:
            notes.append(
                Note("numa.sampled", "Accesses are estimated from windows; ± is two standard errors between windows.")
            )
        unknown = float(figures["unknown"] or 0)
        if unknown > 0.001 * total:
            notes.append(
                Note(
                    "numa.unknown",
                    f"Of {unknown / total:.1%} of the accesses the page's node or the thread's affinity was not recorded: they are in no other class. "
                    "Nodes are asked for pages that fault or that windows touch: memlens record with the default collectors.",
                    share=unknown / total,
                )
            )
        if self.not_known_binding > 0.001 * total:
            notes.append(
                Note(
                    "numa.binding_unknown",
                    f"Of {self.not_known_binding / total:.1%} of the accesses it is not known who placed the page: they are local or remote by its node, "
                    "and unpinned pages among them are not distinguished. Record page faults too.",
                    share=self.not_known_binding / total,
                )
            )
        return notes


DESCRIPTOR = AnalysisDescriptor(
    name="numa",
    question="Which accesses are remote, which threads and pages are not bound, and which lines and objects cause it?",
    needs=("window",),
    options=(Option("stack", "class accesses to stacks like others", False),),
    run=numa,
    consumer=NumaConsumer,
    view=numa_view,
    applies=knows_nodes,
    provide="memlens cc --memlens=trace and memlens record",
)
