"""Finding: the peak comes near the cgroup's, the machine's or a NUMA node's memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...registry import FindingDescriptor

if TYPE_CHECKING:
    from ...capture.reader import Capture
    from ...results import Finding, Result

NEAR = 0.85
EVIDENCE = """
SELECT metric, max(value) AS bytes FROM timeline
WHERE metric IN ('cgroup_bytes', 'cgroup_limit_bytes', 'rss_bytes', 'node_bytes') GROUP BY metric
""".strip()


def check(capture: Capture, results: dict[str, Result]) -> list[Finding]:
    from ...results import Finding
    from ...units import human_bytes
    from ._where import node, process, share_of

    capacity = results["capacity"]
    figures = capacity.figures
    found = []
    largest = tuple(process(row["process"]) for row in capacity.tables["by_process"].slice(0, 1).to_pylist())

    def add(what: str, used: int, limit: int, remedy: str, of_node: int | None = None) -> None:
        if limit > 0 and used >= NEAR * limit:
            found.append(
                Finding(
                    name=DESCRIPTOR.name,
                    severity="high" if used >= 0.95 * limit else "medium",
                    claim=f"The peak of {human_bytes(used)} is {used / limit:.0%} of {what} ({human_bytes(limit)}).",
                    evidence={"used_bytes": used, "limit_bytes": limit, "limit": what, "sql": EVIDENCE},
                    remedy=remedy,
                    quality=capacity.quality,
                    references=(node(of_node),) if of_node is not None else largest,
                    view="capacity.by_process" if of_node is None else "capacity.by_node",
                    affected_share=share_of(used, max(peak, used)),
                    affected_of="peak memory",
                    group=DESCRIPTOR.name if of_node is None else f"{DESCRIPTOR.name} of a node",
                )
            )

    kernel_peak = figures["kernel_peak_rss_bytes"] or 0
    peak = max(figures["peak_rss_bytes"] or 0, kernel_peak)
    if figures["limit_kind"] == "cgroup":
        used = max(peak, figures["peak_cgroup_bytes"] or 0)
        add(
            "the cgroup's memory limit",
            min(used, figures["limit_bytes"]),
            figures["limit_bytes"],
            "Raise the limit (memory.max, docker --memory), or lower the peak: near it the kernel reclaims, then kills.",
        )
    else:
        add(
            "the machine's memory",
            figures["peak_pss_bytes"] or peak,
            figures["limit_bytes"],
            "Lower the peak or use a larger machine: near it the kernel swaps or kills.",
        )
    nodes = {node["node"]: node["bytes"] for node in capture.meta.get("machine", {}).get("numa_nodes", [])}
    if len(nodes) > 1:
        for row in capacity.tables["by_node"].to_pylist():
            add(
                f"the memory of NUMA node {row['node']}",
                row["peak_bytes"],
                nodes.get(row["node"], 0),
                "Beyond it pages go to other nodes: interleave (numactl --interleave=all) or spread the first touches.",
                row["node"],
            )
    return found


DESCRIPTOR = FindingDescriptor(
    name="near_limit",
    question="Does the peak come near a memory limit?",
    analyses=("capacity",),
    evidence_sql=EVIDENCE,
    check=check,
    bad_workload="near_limit --mib 256 in a cgroup of 280 MiB",
    good_workload="near_limit --mib 64 in a cgroup of 280 MiB",
)
