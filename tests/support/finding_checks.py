"""What every finding must carry besides its words."""

from __future__ import annotations

import itertools

from memlens.results import Finding, Report

WITHOUT_SHARE = {
    "unseen_library": "how much of the traffic is in a library without counters is what nobody counted",
}
"""Findings that cannot say what share of the run they affect, and why."""
SHARES_OF = {"CPU time", "accesses", "bytes", "faults", "peak memory"}


def assert_refers(finding: Finding, report: Report) -> None:
    """The finding names what it is about, rows that prove it, and how much of the run it affects."""
    assert finding.references, finding.name
    assert all(one.name and one.name != "None" for one in finding.references), finding.references
    assert finding.group, finding.name
    analysis, _, table = finding.view.partition(".")
    assert analysis in report.results, (finding.name, finding.view)
    rows = report.results[analysis].tables[table]
    assert rows.num_rows, finding.view
    assert table in {one.source for one in report.views[analysis].tables} | {
        series.table for chart in report.views[analysis].charts for series in chart.series
    }, f"{finding.view} is in no table and no chart of its section"
    if finding.name in WITHOUT_SHARE:
        assert finding.affected_share is None
    else:
        assert finding.affected_share is not None, finding.name
        assert 0 <= finding.affected_share <= 1
        assert finding.affected_of in SHARES_OF
    if finding.time_s is not None:
        first, last = finding.time_s
        assert 0 <= first <= last <= report.duration_s + 0.5
    codes = [note for note in finding.quality.notes if note not in report.results[analysis].quality.notes]
    for note in codes:  # of what it rests on, and nothing else
        assert any(note in result.quality.notes for result in report.results.values())


def assert_stated_once(findings: list[Finding]) -> None:
    """No two findings of a group refer to the same things."""
    for one, other in itertools.combinations(findings, 2):
        first, second = ({(r.kind, r.name) for r in finding.references} for finding in (one, other))
        same = one.group == other.group and one.name != other.name and (first <= second or second <= first)
        assert not same, (one.name, other.name)
