"""`memlens diff`: what changed between two captures, with thresholds for CI."""

from __future__ import annotations

import json
import re
import sys
from typing import Any

from ..errors import THRESHOLD_EXCEEDED, UsageError
from .main import new_parser

EXAMPLES = """\
  memlens diff before.memlens after.memlens
  memlens diff base.memlens new.memlens --fail-if 'peak_rss_bytes > +5%'
  memlens diff base.memlens new.memlens --fail-if 'faults > +10000' --fail-if 'peak_rss_bytes > 2GiB'

conditions: FIGURE > LIMIT or FIGURE < LIMIT. A limit with a sign is a change against the
first capture (+5%, -10%, +64MiB, +1000), one without is a value of the second (2GiB).
"""
UNITS = {"": 1, "k": 1000, "m": 10**6, "g": 10**9, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "s": 1}
BYTE_UNITS = {**UNITS, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "kb": 1000, "mb": 10**6, "gb": 10**9}
"""Of figures in bytes, as in --sample-bytes and the reports: K, M and G are binary."""
CONDITION = re.compile(r"^\s*(\w+)\s*([<>])\s*([+-])?\s*([0-9.]+)\s*(%|[A-Za-z]*)\s*$")


def parse_condition(text: str, names: list[str]) -> dict[str, Any]:
    """One --fail-if.

    >>> parse_condition("peak_rss_bytes > +5%", ["peak_rss_bytes"])["percent"]
    True
    >>> parse_condition("peak_rss_bytes > 2M", ["peak_rss_bytes"])["limit"], parse_condition("faults > 2M", ["faults"])["limit"]
    (2097152.0, 2000000.0)
    """
    match = CONDITION.match(text)
    if match is None:
        raise UsageError(f"--fail-if {text!r} is no condition", hint="write it as 'peak_rss_bytes > +5%'")
    name, relation, sign, number, unit = match.groups()
    if name not in names:
        import difflib

        close = difflib.get_close_matches(name, names, n=1)
        raise UsageError(
            f"there is no figure {name!r} in these captures",
            hint=f"did you mean {close[0]}?" if close else f"figures: {', '.join(names)}",
        )
    percent = unit == "%"
    if percent and sign is None:
        raise UsageError(
            f"--fail-if {text!r}: a percentage is a change and needs a sign", hint=f"'{name} {relation} +{number}%'"
        )
    units = BYTE_UNITS if name.endswith("_bytes") else UNITS
    if not percent and unit.lower() not in units:
        raise UsageError(f"--fail-if {text!r}: unknown unit {unit!r}", hint="units: KiB, MiB, GiB, k, M, G, %")
    try:
        value = float(number) * (1 if percent else units[unit.lower()])
    except ValueError as error:
        raise UsageError(f"--fail-if {text!r}: {number!r} is no number") from error
    return {
        "text": text, "figure": name, "relation": relation, "change": sign is not None,
        "percent": percent, "limit": -value if sign == "-" else value,
    }  # fmt: skip


def holds(condition: dict[str, Any], before: float | None, after: float | None) -> bool:
    """Whether a condition is met.

    >>> condition = parse_condition("x > +5%", ["x"])
    >>> holds(condition, 100, 105), holds(condition, 100, 106)
    (False, True)
    """
    if after is None or (condition["change"] and before is None):
        return False
    measured = after
    if condition["change"]:
        assert before is not None
        measured = after - before
        if condition["percent"]:
            if before == 0:
                return bool(after > 0) if condition["relation"] == ">" else False
            measured = measured / before * 100
    return bool(measured > condition["limit"] if condition["relation"] == ">" else measured < condition["limit"])


def figures_of(report: Any) -> dict[str, float]:
    """Every numeric figure of a report; one name means one thing across analyses."""
    figures: dict[str, float] = {}
    for result in report.results.values():
        for name, value in result.figures.items():
            if isinstance(value, (int, float)) and not isinstance(value, bool) and name not in figures:
                figures[name] = value
    return figures


def compare(before: Any, after: Any) -> list[dict[str, Any]]:
    """Figures side by side, largest relative change first."""
    old, new = figures_of(before), figures_of(after)
    rows = []
    for name in dict.fromkeys([*old, *new]):
        a, b = old.get(name), new.get(name)
        change = None if a is None or b is None else b - a
        ratio = change / a if change is not None and a else None
        rows.append({"figure": name, "before": a, "after": b, "change": change, "relative": ratio})
    rows.sort(key=lambda row: -abs(float(row["relative"])) if row["relative"] is not None else 0.0)
    return rows


def compare_functions(before: Any, after: Any) -> list[dict[str, Any]]:
    """First-touched bytes by function, largest change first."""
    if "first_touch" not in before.results or "first_touch" not in after.results:
        return []

    def bytes_by_function(report: Any) -> dict[str, int]:
        table = report.results["first_touch"].tables["by_function"]
        sums: dict[str, int] = {}
        for row in table.select(["function", "bytes"]).to_pylist():
            name = row["function"] or "(unnamed)"
            sums[name] = sums.get(name, 0) + row["bytes"]
        return sums

    old, new = bytes_by_function(before), bytes_by_function(after)
    rows = [
        {
            "function": name,
            "before_bytes": old.get(name, 0),
            "after_bytes": new.get(name, 0),
            "change_bytes": new.get(name, 0) - old.get(name, 0),
        }
        for name in dict.fromkeys([*old, *new])
    ]
    return sorted((row for row in rows if row["change_bytes"]), key=lambda row: -abs(int(row["change_bytes"])))


def main(arguments: list[str]) -> int:
    parser = new_parser("diff", description="Tells what changed from one capture to another.", examples=EXAMPLES)
    parser.add_argument("before", help="capture to compare with")
    parser.add_argument("after", help="capture to judge")
    parser.add_argument(
        "--fail-if", action="append", default=[], metavar="CONDITION", help="exit with 1 when it holds; repeatable"
    )
    parser.add_argument("--json", action="store_true", help="machine-readable")
    options = parser.parse_intermixed_args(arguments)
    from .. import analyses
    from ..capture.reader import open_capture
    from .progress import spinning

    with spinning("comparing"):
        before, after = (analyses.report(open_capture(path)) for path in (options.before, options.after))
        rows = compare(before, after)
        functions = compare_functions(before, after)
    names = [row["figure"] for row in rows]
    by_name = {row["figure"]: row for row in rows}
    broken = []
    for text in options.fail_if:
        condition = parse_condition(text, names)
        row = by_name[condition["figure"]]
        if holds(condition, row["before"], row["after"]):
            broken.append({"condition": text, "before": row["before"], "after": row["after"]})
    old_findings = {(f.name) for f in before.findings}
    new_findings = [f for f in after.findings if f.name not in old_findings]
    gone = sorted(old_findings - {f.name for f in after.findings})
    if options.json:
        content = {
            "figures": rows, "functions": functions, "failed": broken,
            "new_findings": [f.to_json() for f in new_findings], "gone_findings": gone,
            "quality": before.quality.joined(after.quality).to_json(),
        }  # fmt: skip
        json.dump(content, sys.stdout, indent=1)
        sys.stdout.write("\n")
    else:
        from ..present import _rich

        _rich.show_diff(
            rows, functions[:10], new_findings, gone, broken, before.quality.joined(after.quality), file=sys.stdout
        )
        sys.stdout.write(f"next: memlens report {options.after}\n")
    return THRESHOLD_EXCEEDED if broken else 0
