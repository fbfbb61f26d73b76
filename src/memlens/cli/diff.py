"""`memlens diff`: what changed between two captures, with thresholds for CI."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from ..errors import THRESHOLD_EXCEEDED, UsageError
from .main import new_parser

if TYPE_CHECKING:
    from ..results import Report, Result

EXAMPLES = """\
  memlens diff before.memlens after.memlens
  memlens diff base.memlens new.memlens --fail-if 'capacity.peak_rss_bytes > +5%'
  memlens diff base.memlens new.memlens --fail-if 'faults.faults >= +10000' --fail-if 'peak_rss_bytes > 2GiB'
  memlens diff base.memlens new.memlens --fail-if 'objects.by_site[make_table].peak_bytes > +10%'
  memlens diff base.memlens new.memlens --fail-on-finding=high

conditions: SUBJECT RELATION LIMIT, with > >= < <=. SUBJECT is ANALYSIS.FIGURE, a figure that only one analysis has,
or ANALYSIS.TABLE[KEY].COLUMN. A LIMIT with a sign is a change against the first capture (+5%, -10%, +64MiB, +1000),
one without is a value of the second (2GiB). A change of a sampled figure counts if it exceeds twice its standard error.
"""
SEVERITIES = ("high", "medium", "low")
ANY = "any"


def chosen_findings(wanted: str, result: Result, names: list[str]) -> list[dict[str, Any]]:
    """New findings of --fail-on-finding: any, of at least a severity, or of a name."""
    if wanted not in (ANY, *SEVERITIES, *names):
        import difflib

        close = difflib.get_close_matches(wanted, names, n=1)
        raise UsageError(
            f"invalid value {wanted!r} for --fail-on-finding",
            hint=f"did you mean {close[0]}?" if close else f"{ANY}, {', '.join(SEVERITIES)}, or the name of a finding",
        )
    rows = [row for row in result.tables["findings"].to_pylist() if row["state"] == "new"]
    if wanted in SEVERITIES:
        grave = SEVERITIES[: SEVERITIES.index(wanted) + 1]
        return [row for row in rows if row["severity"] in grave]
    return rows if wanted == ANY else [row for row in rows if row["finding"] == wanted]


def _broken(options: Any, result: Result, before: Report, after: Report) -> list[dict[str, Any]]:
    """Conditions that hold."""
    from .. import registry
    from ..analyses import _conditions

    broken = []
    for text in options.fail_if:
        condition = _conditions.parse(text)
        measured = _conditions.measured(condition, before, after)
        if _conditions.holds(condition, measured):
            broken.append({"condition": text, "before": measured.before, "after": measured.after})
    for wanted in options.fail_on_finding:
        for row in chosen_findings(wanted, result, list(registry.all_of("finding"))):
            said = f"new finding {row['finding']} ({row['severity']}): {row['claim']}"
            broken.append({"condition": said, "before": None, "after": None})
    return broken


def _measured_text(entry: dict[str, Any]) -> str:
    """What a condition that holds was measured as."""
    from ..present.values import plain
    from ..view import kind_of

    if entry["after"] is None:
        return ""
    kind = kind_of(entry["condition"].split()[0].rpartition(".")[2], entry["after"])
    return f": before {plain(kind, entry['before'])}, after {plain(kind, entry['after'])}"


def main(arguments: list[str]) -> int:
    parser = new_parser("diff", description="Reports what changed from one capture to another.", examples=EXAMPLES)
    parser.add_argument("before", help="capture to compare with")
    parser.add_argument("after", help="capture to judge")
    parser.add_argument(
        "--fail-if", action="append", default=[], metavar="CONDITION", help="exit with 1 when it holds; repeatable"
    )
    parser.add_argument(
        "--fail-on-finding",
        action="append",
        default=[],
        nargs="?",
        const=ANY,
        metavar="any|high|medium|low|NAME",
        help="exit with 1 when the second capture has such a finding that the first has not; repeatable (any)",
    )
    parser.add_argument("--json", action="store_true", help="machine-readable")
    parser.add_argument("--rows", type=int, default=10, metavar="N", help="rows a table (10; in JSON all)")
    # Written without a value it must not take the capture after it.
    arguments = [f"{word}={ANY}" if word == "--fail-on-finding" else word for word in arguments]
    options = parser.parse_intermixed_args(arguments)
    from .. import analyses
    from ..analyses import diff
    from ..capture.reader import open_capture
    from ..results import Report
    from .progress import spinning

    with spinning("comparing"):
        before, after = (analyses.report(open_capture(path)) for path in (options.before, options.after))
        result = diff.of_reports(before, after)
    broken = _broken(options, result, before, after)
    title = f"{options.before} → {options.after}"
    shown = Report(title, after.meta, {"diff": result}, [], result.quality, {"diff": diff.view(result)})
    if options.json:
        json.dump({**shown.to_json(), "failed": broken}, sys.stdout, indent=1, default=str)
        sys.stdout.write("\n")
    else:
        from ..present import terminal

        terminal.show(shown, file=sys.stdout, rows=max(1, options.rows), only=("diff", "quality"))
        for entry in broken:
            sys.stdout.write(f"failed: {entry['condition']}{_measured_text(entry)}\n")
        sys.stdout.write(f"next: memlens report {options.after}\n")
    return THRESHOLD_EXCEEDED if broken else 0
