"""What the analysis `numa` shows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...view import Chart, Column, Figure, Table, View, detail, key, measure

if TYPE_CHECKING:
    from ...capture.reader import Capture
    from ...results import Result


def on_several_nodes(capture: Capture) -> bool:
    """Whether a report has NUMA sections: on one node nothing is remote."""
    return len(capture.meta.get("machine", {}).get("numa_nodes") or ()) > 1


def knows_nodes(capture: Capture) -> bool:
    """Whether the kernel was asked where pages lie; under emulation it is not."""
    return on_several_nodes(capture) and bool(capture.kinds().get("placement"))


LABELS = {
    "local": ("local", "By a thread bound to a node, to a bound page on the same node."),
    "remote": ("remote", "By a thread bound to a node, to a bound page on another node."),
    "unpinned_page": ("unpinned page", "By a thread bound to a node, to a page that a thread without a node placed."),
    "unpinned_thread": ("unpinned thread", "By a thread that may run on several nodes, to a bound page."),
    "unpinned_both": (
        "unpinned both",
        "By a thread that may run on several nodes, to a page that such a thread placed.",
    ),
    "memory_only_local": ("memory-only local", "To a node without CPUs that is nearest to the thread's node."),
    "memory_only_remote": ("memory-only remote", "To a node without CPUs that is not nearest to the thread's node."),
    "first_touch": ("first touches", "Placed a page, by a thread with a node or a one-node memory policy."),
    "unpinned_first_touch": ("unpinned first touches", "Placed a page, by a thread that may run on several nodes."),
    "undecided": ("undecided", "To a page that moved at about this time."),
    "unknown": ("not known", "The thread's affinity or the page's node was not recorded."),
}


def _classes(role: str) -> tuple[Column, ...]:
    make = detail if role == "detail" else measure
    return tuple(
        make(
            name,
            label,
            "count",
            show="nonzero",
            better="lower" if name in ("remote", "memory_only_remote") else "neither",
        )
        for name, (label, _) in LABELS.items()
    )


def _measures(role: str = "detail") -> tuple[Column, ...]:
    return (
        measure("accesses", "accesses", "count", of="figures.accesses"),
        measure("remote_share", "remote", "share", error="remote_share_error", better="lower", null="–",
                help="Of the accesses whose thread and page are both bound to nodes, those on different ones."),
        measure("remote_bytes", "remote bytes", "moved", show="nonzero", better="lower"),
        *_classes(role),
        detail("bytes", "bytes", "moved"),
    )  # fmt: skip


def numa_view(result: Result) -> View:
    figures = result.figures
    one_node = (figures["nodes"] or 1) <= 1
    headline = (
        "one NUMA node: nothing is remote"
        if one_node
        else "{remote_share} of the accesses are remote[, {remote_bytes}][; {worst_share} of those go to {worst_object}][, placed by thread {worst_thread}][ at {worst_place}]"
        "[; {unpinned_share} by unpinned threads or to their pages]"
    )
    return View(
        title="NUMA accesses",
        order=315,
        silent=one_node,
        headline=headline,
        figures=(
            Figure(name="nodes", label="nodes", kind="count"),
            Figure(name="memory_only_nodes", label="nodes without CPUs", kind="count", show="nonzero"),
            Figure(name="accesses", label="accesses", kind="count", help="Without those to stacks, which are counted apart."),
            Figure(name="remote_share", label="remote", kind="share", error="remote_share_error", better="lower", show="always",
                   help="Of the accesses whose thread and page are both bound to nodes, those on different ones."),
            Figure(name="remote_bytes", label="remote bytes", kind="moved", better="lower"),
            Figure(name="unpinned_share", label="unpinned", kind="share", better="lower",
                   help="Accesses by threads that may run on several nodes, or to pages that such threads placed."),
            *(Figure(name=name, label=label, kind="count", help=text, show="nonzero",
                     better="lower" if "remote" in name else "neither") for name, (label, text) in LABELS.items()),
            Figure(name="worst_object", label="most remote object", kind="object"),
            Figure(name="worst_share", label="its share of the remote accesses", kind="share"),
            Figure(name="worst_thread", label="first touched by thread", kind="thread"),
            Figure(name="worst_place", label="first touched at", kind="text"),
            Figure(name="mean_distance", label="mean distance", kind="number", better="lower",
                   help="As the firmware states it, 10 is local; of accesses by threads with a node."),
            Figure(name="bytes", label="bytes", kind="moved"),
            Figure(name="stack_accesses", label="accesses to stacks", kind="count"),
            Figure(name="threads", label="threads", kind="count"),
            Figure(name="bound_threads", label="threads with a node", kind="count"),
            Figure(name="unpinned_threads", label="unpinned threads", kind="count", better="lower"),
            Figure(name="recorded_accesses", label="recorded accesses", kind="count"),
            Figure(name="binding_unknown", label="of pages placed by an unknown thread", kind="count", show="nonzero"),
        ),
        charts=(
            Chart(name="matrix", title="Accesses by thread and page node", kind="matrix", table="matrix", y_kind="count",
                  columns=(("row", "thread"), ("row_name", "home"), ("column", "page_node"), ("value", "accesses")),
                  x_label="node of the page", y_label="thread"),
        ),
        tables=(
            Table(name="by_object", title="By object", sort="-remote_bytes", fold="share", columns=(
                key("object", "object", "object", beside=("kind",)), *_measures(), detail("kind", "kind", "text"))),
            Table(name="by_line", title="By line", sort="-remote_bytes", fold="share", columns=(
                key("function", "code", "code"), detail("module", "module", "module"), detail("file", "file", "file"), detail("line", "line", "number"),
                *_measures())),
            Table(name="by_function", title="By function", role="detail", sort="-remote_bytes", fold="share", columns=(
                key("function", "function", "function"), key("module", "module", "module"), *_measures())),
            Table(name="by_thread", title="By thread", sort="thread", columns=(
                key("process", "process", "process"), key("thread", "thread", "thread", beside=("thread_name",)), measure("home", "bound to", "text"),
                *_measures("measure"))),
            Table(name="by_region", title="By region", least_rows=2, sort="-remote_bytes", columns=(
                key("region", "region", "region"), *_measures())),
            Table(name="matrix", title="By thread and page node", role="detail", columns=(
                key("process", "process", "process"), key("thread", "thread", "thread", beside=("name",)), key("home", "bound to", "text"),
                key("page_node", "page on node", "node"), measure("accesses", "accesses", "count"), measure("bytes", "bytes", "moved"),
                detail("distance", "distance", "number"))),
            Table(name="distances", title="By distance", columns=(
                key("distance", "distance", "number", null="unpinned"), measure("accesses", "accesses", "count"), measure("share", "share", "share"))),
            Table(name="object_threads", title="Threads of each object", role="detail", columns=(
                key("object", "object", "object"), key("thread", "thread", "thread", beside=("name",)), measure("begin", "from", "address"),
                measure("end", "to", "address"), measure("accesses", "accesses", "count"), measure("share", "share", "share"))),
        ),
        remarks=("Shares of remote accesses are of those by threads with a node to bound pages; the classes are those of the NUMAPROF paper.",),
    )  # fmt: skip
