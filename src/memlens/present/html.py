"""Presenter `html`: one self-contained page.

Owns the page's order, header, findings and quality. Sections are rendered from views in `_page_sections.py`, drawings in `_drawings.py`,
cells and tables in `_markup.py`, shapes in `_charts.py`, style and script in `_html_style.css` and `_html_script.js`. The page loads nothing,
is complete without its script, and holds capture text only escaped (`esc`). Nothing is computed here beyond scaling, and no analysis is
known by name.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from .. import registry
from ..registry import PresenterDescriptor
from ..units import human_bytes
from ..view import guessed
from ._charts import esc
from ._markup import (
    cell,
    counted,
    definitions,
    fill_patterns,
    head_cell,
    in_double_quotes,
    number_cell,
    table,
    titled,
    value_text,
    words,
)
from ._page_sections import section
from ._units import exit_in_words, imported_in_words
from .quality import quality_lines
from .values import plain

if TYPE_CHECKING:
    from ..results import Finding, Quality, Report

CSP = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
SEVERITY_MARKS = {"high": "▲", "medium": "◆", "low": "●"}


# ---- header ------------------------------------------------------------
def header(report: Report) -> str:
    meta = report.meta
    machine = meta.get("machine") or {}
    command = meta.get("command") or []
    standalone = meta.get("state") == "standalone"
    if command:
        line = f"<code>{esc(shlex.join(str(word) for word in command))}</code>"
    elif standalone or meta.get("import"):
        line = "not recorded"
    else:
        line = f"<code>process {esc(meta.get('pid', '?'))} (attached)</code>"
    nodes = len(machine.get("numa_nodes") or []) or 1
    computer = [str(machine.get("cpu") or "unknown CPU")]
    if machine.get("cpus"):
        computer.append(counted(int(machine["cpus"]), "CPU"))
    computer.append(counted(nodes, "NUMA node"))
    if machine.get("memory_bytes"):
        computer.append(f"{human_bytes(machine['memory_bytes'])} memory")
    computer.append(
        " ".join(str(part) for part in ("Linux", machine.get("kernel"), machine.get("architecture")) if part)
    )
    if machine.get("host"):
        computer.append(f"host {machine['host']}")
    facts = [
        ("Command", line),
        (
            "Machine",
            "not recorded"
            if (standalone or meta.get("import")) and not machine.get("cpu")
            else esc(", ".join(computer)),
        ),
        (
            "Recorded",
            _moment(meta.get("started") or _from_unix(meta.get("started_unix_ns")))
            + (f" in <code>{esc(meta['working_directory'])}</code>" if meta.get("working_directory") else ""),
        ),
        (
            "Run",
            f"{esc(value_text('wall_s', meta.get('wall_s')))}, {_ending(meta)}"
            if meta.get("wall_s") is not None or not (standalone or meta.get("import"))
            else _ending(meta),
        ),
        (
            "Collectors",
            esc(
                ", ".join(_collector(name, options) for name, options in (meta.get("collectors") or {}).items())
                or "none"
            ),
        ),
    ]
    if meta.get("redacted"):
        facts.append(("Redacted", "paths, arguments and host name were left out when recording"))
    listed = "".join(f"<dt>{name}</dt><dd>{value}</dd>" for name, value in facts)
    return (
        f'<header><p class="product"><b>memlens</b> {esc(meta.get("memlens_version") or "")} report</p>'
        f'<h1>{esc(report.title)}</h1><dl class="facts">{listed}</dl></header>'
    )


def _moment(started: object) -> str:
    try:
        moment = datetime.fromisoformat(str(started))
    except ValueError:
        return esc(started or "unknown time")
    zone = moment.strftime("%Z") if moment.tzinfo else ""
    return f'<time datetime="{esc(started)}">{moment:%Y-%m-%d %H:%M:%S} {esc(zone)}</time>'


def _from_unix(unix_ns: object) -> str | None:
    if not isinstance(unix_ns, int | float | str):
        return None
    try:
        return datetime.fromtimestamp(int(unix_ns) // 1_000_000_000, UTC).isoformat()
    except (TypeError, ValueError, OverflowError, OSError):
        return None


def _ending(meta: Mapping[str, object]) -> str:
    if meta.get("state") == "standalone":
        return "written by the program itself, without a recorder: no page faults and no readings of RSS"
    if meta.get("import"):
        return esc(imported_in_words(meta))
    if meta.get("state", "complete") != "complete":
        return '<span class="bad">the recording did not finish; the capture ends where it was cut</span>'
    status = meta.get("wait_status")
    text = esc(exit_in_words(status if isinstance(status, int) else None))
    return f'<span class="bad">{text}</span>' if status else text


def _collector(name: str, options: object) -> str:
    said = registry.words_of(name, options)
    return f"{name} ({', '.join(said)})" if said else name


# ---- findings ------------------------------------------------------------
def findings_section(findings: Sequence[Finding], shown: Collection[str] = ()) -> str:
    """`shown`: the results that have a section."""
    if not findings:
        body = "<p>None: no finding of this version applies to this run.</p>"
    else:
        body = "".join(_finding(finding, shown) for finding in findings)
    return f'<section id="findings"><h2>Findings{f" ({len(findings)})" if findings else ""}</h2>{body}</section>'


def _finding(finding: Finding, shown: Collection[str]) -> str:
    evidence = {key: value for key, value in finding.evidence.items() if key != "sql"}
    sql = finding.evidence.get("sql")
    listed = (
        definitions("evidence", ((esc(words(key)), titled(key, value)) for key, value in evidence.items()))
        if evidence
        else ""
    )
    query = ""
    if sql:
        query = (
            "<details><summary>Query that shows the evidence</summary>"
            f"<pre>memlens query CAPTURE {esc(in_double_quotes(str(sql)))}</pre></details>"
        )
    notes = "".join(f'<p class="remark">{esc(note)}</p>' for note in finding.quality.notes)
    mark = SEVERITY_MARKS.get(finding.severity, "●")
    return (
        f'<article class="finding {esc(finding.severity)}"><h3>'
        f'<span class="severity">{mark} {esc(finding.severity)}</span> '
        f"<code>{esc(finding.name)}</code>{_affected(finding, shown)}</h3><p>{esc(finding.claim)}</p>"
        f'<p class="remedy">{esc(finding.remedy)}</p>{listed}{notes}{query}</article>'
    )


def _affected(finding: Finding, shown: Collection[str]) -> str:
    """What it affects, and a link to the section with its evidence."""
    said = []
    if finding.affected_share is not None:
        of = f"{plain('share', finding.affected_share)} of {finding.affected_of}"
        said.append(f' <span class="muted">{esc(of)}</span>')
    name = finding.view.partition(".")[0]
    if name in shown:
        said.append(f' <a href="#{esc(name.replace("_", "-"))}">evidence</a>')
    return "".join(said)


# ---- quality ------------------------------------------------------------
def _exact_in_words(quality: Quality) -> str:
    return f"exact for {quality.exact_for}" if quality.exact_for else "exact"


def _all_exact(report: Report) -> str:
    limited = [
        f"{name.replace('_', ' ')} for {result.quality.exact_for}"
        for name, result in report.results.items()
        if result.quality.exact_for
    ]
    return f"All results are exact, {esc(', '.join(limited))}." if limited else "All results are exact."


def quality_section(report: Report) -> str:
    joined: Quality = report.quality
    for result in report.results.values():
        joined = joined.joined(result.quality)
    meta = report.meta
    rows = [
        [
            head_cell(esc(name.replace("_", " ")), ""),
            cell(_exact_in_words(result.quality) if result.quality.exact else "sampled, estimated or incomplete"),
            number_cell("dropped", result.quality.dropped_records),
            cell("yes" if result.quality.truncated else "no"),
        ]
        for name, result in report.results.items()
    ]
    lead = []
    lead.append(
        _all_exact(report) if joined.exact else "Part of what follows is sampled or estimated; the table says which."
    )
    lead.append(
        f'<span class="bad">{counted(joined.dropped_records, "record")} dropped.</span>'
        if joined.dropped_records
        else "No record was dropped."
    )
    if joined.truncated:
        lead.append('<span class="bad">The capture is truncated: its end is missing.</span>')
    said = quality_lines(report)
    how = said.summary[:1].upper() + said.summary[1:] + "." if said.summary else ""
    notes = "".join(f"<li>{esc(note)}</li>" for note in joined.notes)
    missing = "".join(
        f"<li>Collector <b>{esc(entry.get('collector', '?'))}</b> "
        + ("was limited: " if entry.get("collector") in (meta.get("collectors") or {}) else "could not run: ")
        + esc(entry.get("reason", "reason not recorded"))
        + (f". To change that: <code>{esc(entry['remedy'])}</code>" if entry.get("remedy") else "")
        + "</li>"
        for entry in meta.get("unsupported") or []
    )
    heads = [("Result", ""), ("Numbers", ""), ("Dropped", "number"), ("Truncated", "")]
    return (
        '<section id="quality"><h2>Quality of the data</h2><div class="quality">'
        f'<div class="said"><p>{" ".join(lead)} {esc(how)}</p>'
        + (f"<ul>{notes}{missing}</ul></div>" if notes or missing else "</div>")
        + (
            table('<span class="muted">By result</span>', heads, rows)
            if rows
            else "<p>The report holds no results.</p>"
        )
        + "</div></section>"
    )


# ---- the page ------------------------------------------------------------
def absences_section(report: Report) -> str:
    """Questions that this capture has no data for, and the command that records it."""
    rows = [
        [head_cell(esc(one.question), ""), cell(esc(one.reason)), cell(f"<code>{esc(one.provide)}</code>")]
        for one in report.absences
    ]
    if not rows:
        return ""
    made = table(
        '<span class="muted">What this capture cannot answer</span>',
        [("Question", ""), ("Why", ""), ("Record with", "")],
        rows,
    )
    return f'<section id="absent"><h2>Not recorded</h2>{made}</section>'


def navigation(sections: Iterable[tuple[str, str]]) -> str:
    links = "".join(f'<li><a href="#{esc(name)}">{esc(label)}</a></li>' for name, label in sections)
    return f'<nav aria-label="Sections"><ul>{links}</ul></nav>'


def resource(name: str) -> str:
    from importlib.resources import files

    return files("memlens.present").joinpath(name).read_text(encoding="utf-8")


def render(report: Report) -> str:
    """The page, complete, as one string.

    >>> from memlens.results import Quality, Report
    >>> render(Report("a.out", {}, {}, [], Quality()))[:15]
    '<!doctype html>'
    """
    views = {name: report.views.get(name) or guessed(result) for name, result in report.results.items()}
    shown = [name for name in sorted(views, key=lambda name: views[name].order) if not views[name].silent]
    body = [findings_section(report.findings, shown), quality_section(report)]
    links = [("findings", "Findings"), ("quality", "Quality")]
    for name in shown:
        body.append(section(report.results[name], views[name], report.scope_line(name)))
        links.append((name.replace("_", "-"), views[name].title))
    if report.absences:
        body.append(absences_section(report))
        links.append(("absent", "Not recorded"))
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{CSP}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{esc(report.title)} – memlens</title>\n"
        f"<style>\n{resource('_html_style.css')}</style>\n</head>\n<body>\n"
        + fill_patterns()
        + header(report)
        + navigation(links)
        + "\n<main>\n"
        + "\n".join(part for part in body if part)
        + "\n</main>\n<footer>CAPTURE stands for this capture's directory. "
        "All tables and every record: <code>memlens query CAPTURE --tables</code>.</footer>\n"
        f"<script>\n{resource('_html_script.js')}</script>\n</body>\n</html>\n"
    )


DESCRIPTOR = PresenterDescriptor(
    name="html",
    question="One self-contained page to open in a browser or send to a colleague",
    suffix=".html",
    render=render,
)
