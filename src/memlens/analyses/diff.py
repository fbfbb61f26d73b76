"""Analysis `diff`: what changed from one capture to another.

First whether the two can be compared, then findings that are new or gone, then figures, then rows by function, line, object and
region. Sampled values are compared with their errors; a change within noise is listed as such (`verdict`), not as a difference.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..registry import AnalysisDescriptor
from ..view import Column, Figure, Table, View, detail, key, measure

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa

    from ..capture.reader import Capture
    from ..results import Finding, Report, Result, Row
    from ._comparison import Pair, RowPair

DIFFERENT = frozenset({"better", "worse", "changed"})
ONE_SIDED = frozenset({"only before", "only after"})
ROW_TITLES = (("region", "Regions"), ("function", "Functions"), ("line", "Lines"), ("object", "Objects"))


# ---- can they be compared? ------------------------------------------------------------
def _program(meta: Mapping[str, Any]) -> str:
    command = meta.get("command")
    return str(command[0]).rpartition("/")[2] if command else ""


def _facts(report: Report) -> dict[str, object]:
    """What two captures have to share, as text."""
    meta = report.meta
    machine = meta.get("machine") or {}
    ram = machine.get("memory_bytes")
    collectors = meta.get("collectors") or {}
    command = meta.get("command")
    return {
        "program": _program(meta) or None,
        "arguments": " ".join(str(word) for word in command[1:]) if command else None,
        "processor": machine.get("cpu"),
        "CPUs": machine.get("cpus"),
        "memory": ram,
        "kernel": machine.get("kernel"),
        "collectors": ", ".join(sorted(collectors)) or None,
        "end": meta.get("state"),
        "wait status": meta.get("wait_status"),
        "memlens": meta.get("memlens_version"),
    }


EFFECTS = {
    "program": "figures of different programs are compared",
    "arguments": "the programs had different work",
    "processor": "times and bandwidths are of different machines",
    "CPUs": "times and threads are of different machines",
    "memory": "limits are of different machines",
    "kernel": "faults and huge pages depend on the kernel",
    "collectors": "what one recording lacks is not compared",
    "end": "one recording did not finish",
    "wait status": "one run ended in another way",
    "memlens": "definitions may have changed: see the changelog",
}
GRAVE = frozenset({"program", "end"})


def _comparability(before: Report, after: Report) -> list[Row]:
    """Facts in which the captures differ, and what follows."""
    old, new = _facts(before), _facts(after)
    rows: list[Row] = [
        {"fact": name, "before": _said(old[name]), "after": _said(new[name]), "effect": EFFECTS[name], "grave": name in GRAVE}
        for name in EFFECTS
        if old[name] != new[name]
    ]  # fmt: skip
    settings = [dict(report.meta.get("collectors") or {}) for report in (before, after)]
    for collector in sorted(settings[0].keys() & settings[1].keys()):
        one, other = (dict(of[collector] or {}) for of in settings)
        for option in sorted(one.keys() | other.keys()):
            if one.get(option) != other.get(option):
                rows.append(
                    {
                        "fact": f"{collector}: {option}", "before": _said(one.get(option)), "after": _said(other.get(option)),
                        "effect": "the recordings have different detail or errors", "grave": False,
                    }
                )  # fmt: skip
    lost = [report.quality for report in (before, after)]
    if any(quality.truncated or quality.dropped_records for quality in lost):
        said = [
            f"{quality.dropped_records:,} records lost" + (", cut short" if quality.truncated else "")
            for quality in lost
        ]
        rows.append(
            {"fact": "losses", "before": said[0], "after": said[1], "effect": "counts are lower bounds", "grave": True}
        )
    return rows


def _said(value: object) -> str | None:
    return None if value is None else str(value)


# ---- findings ------------------------------------------------------------
def finding_key(finding: Finding) -> tuple[str, ...]:
    """What makes a finding the same one in another run: its name and the code, object or region that it is about."""
    things = sorted(f"{one.kind} {one.name}" for one in finding.references if one.kind in ("code", "object", "region"))
    return (finding.name, *things)


def compare_findings(before: Report, after: Report) -> list[Row]:
    """Findings of both reports: new, gone or kept."""
    old = {finding_key(finding): finding for finding in before.findings}
    new = {finding_key(finding): finding for finding in after.findings}
    rows: list[Row] = []
    for state, findings, others in (("new", new, old), ("gone", old, new), ("kept", new, old)):
        for identity, finding in findings.items():
            if (identity in others) == (state == "kept"):
                rows.append(
                    {
                        "state": state, "severity": finding.severity, "finding": finding.name, "claim": finding.claim,
                        "remedy": finding.remedy,
                    }
                )  # fmt: skip
    return rows


# ---- result ------------------------------------------------------------
def _figure_row(pair: Pair) -> Row:
    return {
        "figure": pair.name, "label": pair.label, "kind": pair.kind, "better": pair.better, "before": pair.before,
        "after": pair.after, "change": pair.change, "change_error": pair.error or None, "relative": pair.relative,
        "verdict": pair.verdict,
    }  # fmt: skip


def _row_row(pair: RowPair) -> dict[str, object]:
    function, file, line, module = pair.place
    return {
        "group": pair.group, "table": pair.table, "title": pair.title, "what": pair.name, "function": function, "file": file,
        "line": line, "module": module, "measure": pair.label, "kind": pair.kind, "before": pair.before, "after": pair.after,
        "change": pair.change, "change_error": pair.error or None, "before_share": pair.before_share,
        "after_share": pair.after_share, "share_change": pair.weight, "verdict": pair.verdict,
        "differs": pair.verdict in DIFFERENT,
    }  # fmt: skip


def _table(rows: Sequence[Mapping[str, object]], columns: dict[str, str]) -> pa.Table:
    import pyarrow as pa

    types = {"text": pa.string(), "real": pa.float64(), "flag": pa.bool_(), "line": pa.uint32()}
    return pa.Table.from_pylist(rows, schema=pa.schema([(name, types[kind]) for name, kind in columns.items()]))


FACT_COLUMNS = {"fact": "text", "before": "text", "after": "text", "effect": "text", "grave": "flag"}
FINDING_COLUMNS = {"state": "text", "severity": "text", "finding": "text", "claim": "text", "remedy": "text"}
FIGURE_COLUMNS = {
    "figure": "text", "label": "text", "kind": "text", "better": "text", "before": "real", "after": "real", "change": "real",
    "change_error": "real", "relative": "real", "verdict": "text", "differs": "flag",
}  # fmt: skip
ROW_COLUMNS = {
    "group": "text", "table": "text", "title": "text", "what": "text", "function": "text", "file": "text", "line": "line",
    "module": "text", "measure": "text", "kind": "text", "before": "real", "after": "real", "change": "real",
    "change_error": "real", "before_share": "real", "after_share": "real", "share_change": "real", "verdict": "text",
    "differs": "flag",
}  # fmt: skip


def diff(before: Capture, after: Capture) -> Result:
    """What changed from one capture to another: comparability, findings, figures and rows of tables."""
    from . import report

    return of_reports(report(before), report(after))


def of_reports(before: Report, after: Report) -> Result:
    """The same for reports that were made already."""
    from ..results import Result
    from ._comparison import figure_pairs, row_pairs

    facts = _comparability(before, after)
    findings = compare_findings(before, after)
    order = {"worse": 0, "better": 1, "changed": 2}
    pairs = sorted(
        figure_pairs(before, after), key=lambda pair: (order.get(pair.verdict, 3), -abs(pair.relative or 0.0))
    )
    figures = [{**_figure_row(pair), "differs": pair.verdict in DIFFERENT} for pair in pairs]
    changed = row_pairs(before, after)
    rows = [_row_row(pair) for pair in changed]
    rows_that_differ = sum(pair.verdict in DIFFERENT for pair in changed)
    verdicts = [pair.verdict for pair in pairs]
    differences = sum(verdict in DIFFERENT for verdict in verdicts)
    shared = before.results.keys() & after.results.keys()
    values: dict[str, object] = {
        "comparable": "no" if not shared else "with care" if any(row["grave"] for row in facts) else "yes",
        "facts_that_differ": len(facts),
        "new_findings": sum(row["state"] == "new" for row in findings),
        "gone_findings": sum(row["state"] == "gone" for row in findings),
        "figures_compared": sum(verdict not in ONE_SIDED for verdict in verdicts),
        "figures_worse": verdicts.count("worse"),
        "figures_better": verdicts.count("better"),
        "figures_changed": verdicts.count("changed"),
        "figures_within_noise": verdicts.count("noise"),
        "figures_only_before": verdicts.count("only before"),
        "figures_only_after": verdicts.count("only after"),
        "rows_compared": len(rows),
        "rows_that_differ": rows_that_differ,
        "differences": differences,
        "no_difference": not (differences or rows_that_differ),
    }
    tables = {
        "comparability": _table(facts, FACT_COLUMNS),
        "findings": _table(findings, FINDING_COLUMNS),
        "figures": _table(figures, FIGURE_COLUMNS),
        "rows": _table(rows, ROW_COLUMNS),
    }
    return Result("diff", values, tables, before.quality.joined(after.quality))


# ---- view ------------------------------------------------------------
def _values() -> tuple[Column, ...]:
    return (
        measure("before", "before", "number", kind_from="kind"),
        measure("after", "after", "number", kind_from="kind"),
        measure("change", "change", "number", kind_from="kind", error="change_error", signed=True),
    )


def view(result: Result) -> View:
    figures = result.figures
    same = "no difference beyond noise in {figures_compared} figures and {rows_compared} rows; "
    said = "[{figures_worse} figure(s) worse, ][{figures_better} better, ][{figures_changed} changed, ][{rows_that_differ} rows differ, ]"
    row_tables = tuple(
        Table(
            name=f"by_{group}", title=title, table="rows", where=(("group", group), ("differs", True)), sort="-share_change",
            columns=(
                key("what", group, "text"), measure("title", "of", "text"), *_values(),
                measure("before_share", "share before", "share"), measure("after_share", "share after", "share"),
            ),
            help="Ranked by the change of the row's share of the table's total.", role="key" if group in ("function", "object") else "measure",
        )
        for group, title in ROW_TITLES
    )  # fmt: skip
    return View(
        title="Differences",
        order=10,
        headline=(same if figures["no_difference"] else said)
        + "[{new_findings} new finding(s), ][{gone_findings} finding(s) gone, ]comparable: {comparable}",
        figures=(
            Figure(name="comparable", label="comparable", kind="text", help="yes: same program and whole recordings. with care: see the facts that differ. no: no analysis in common."),
            Figure(name="no_difference", label="no difference", kind="flag", help="No figure and no row differs beyond noise."),
            Figure(name="differences", label="figures that differ", kind="count", help="By more than their sampling errors and the variation between runs."),
            Figure(name="figures_compared", label="figures compared", kind="count"),
            Figure(name="figures_worse", label="figures worse", kind="count"),
            Figure(name="figures_better", label="figures better", kind="count"),
            Figure(name="figures_changed", label="figures changed", kind="count", help="Neither direction is better."),
            Figure(name="figures_within_noise", label="figures within noise", kind="count"),
            Figure(name="figures_only_before", label="figures of the first capture only", kind="count", show="nonzero"),
            Figure(name="figures_only_after", label="figures of the second capture only", kind="count", show="nonzero"),
            Figure(name="facts_that_differ", label="facts that differ", kind="count"),
            Figure(name="new_findings", label="new findings", kind="count"),
            Figure(name="gone_findings", label="findings gone", kind="count"),
            Figure(name="rows_compared", label="rows compared", kind="count"),
            Figure(name="rows_that_differ", label="rows that differ", kind="count"),
        ),
        tables=(
            Table(name="comparability", title="What differs between the recordings", role="key", columns=(
                key("fact", "fact"), measure("before", "before", "text"), measure("after", "after", "text"), measure("effect", "effect", "text"),
            )),
            Table(name="new_findings", title="New findings", table="findings", where=(("state", "new"),), role="key", columns=(
                key("finding", "new finding"), measure("severity", "severity", "text"), measure("claim", "claim", "text"), detail("remedy", "remedy", "text"),
            )),
            Table(name="gone_findings", title="Findings gone", table="findings", where=(("state", "gone"),), role="key", columns=(
                key("finding", "finding gone"), measure("severity", "severity", "text"), measure("claim", "claim", "text"),
            )),
            Table(name="figures", title="Figures", where=(("differs", True),), role="key", columns=(
                key("figure", "figure"), *_values(), measure("relative", "relative", "share", signed=True), measure("verdict", "verdict", "text"),
            )),
            *row_tables,
        ),
    )  # fmt: skip


DESCRIPTOR = AnalysisDescriptor(
    name="diff",
    question="What changed from one run to another?",
    captures=2,
    in_report=False,
    run=diff,
    view=view,
)
