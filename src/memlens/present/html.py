"""Presenter `html`: one self-contained page.

Owns the page's order, header, findings and quality; key figures are in `_key_figures.py`, the sections of single
analyses in `_sections.py` and `_*_sections.py`, cells and tables in `_markup.py`, charts in `_charts.py`,
style and script in `_html_style.css` and `_html_script.js`. The page loads nothing, is
complete without its script, and holds capture text only escaped (`esc`). Nothing is computed
here beyond scaling: what a number means is decided by the analyses.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from ..registry import PresenterDescriptor
from ._bandwidth_sections import bandwidth_section
from ._cache_sections import caches_section, sharing_section
from ._charts import esc
from ._key_figures import figures_section
from ._locality_sections import locality_section
from ._markup import (
    cell,
    column,
    counted,
    definitions,
    fill_patterns,
    head_cell,
    in_double_quotes,
    number_cell,
    table,
    titled,
    unwinder,
    value_text,
    words,
)
from ._object_sections import objects_section, regions_section
from ._sections import capacity_section, faults_section, first_touch_section, other_section, processes_section
from ._traffic_sections import accesses_section, page_use_section, traffic_section
from ._units import addresses_in_words, counted_in_words, exit_in_words, human_bytes, imported_in_words

if TYPE_CHECKING:
    from ..results import Finding, Quality, Report, Result

CSP = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
WITH_SECTIONS = ("bandwidth", "traffic", "accesses", "page_use", "locality", "caches", "sharing")
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


def _moment(started: Any) -> str:
    try:
        moment = datetime.fromisoformat(str(started))
    except ValueError:
        return esc(started or "unknown time")
    zone = moment.strftime("%Z") if moment.tzinfo else ""
    return f'<time datetime="{esc(started)}">{moment:%Y-%m-%d %H:%M:%S} {esc(zone)}</time>'


def _from_unix(unix_ns: Any) -> str | None:
    try:
        return datetime.fromtimestamp(int(unix_ns) // 1_000_000_000, UTC).isoformat()
    except (TypeError, ValueError, OverflowError, OSError):
        return None


def _ending(meta: dict[str, Any]) -> str:
    if meta.get("state") == "standalone":
        return "written by the program itself, without a recorder: no page faults and no readings of RSS"
    if meta.get("import"):
        return esc(imported_in_words(meta))
    if meta.get("state", "complete") != "complete":
        return '<span class="bad">the recording did not finish; the capture ends where it was cut</span>'
    text = esc(exit_in_words(meta.get("wait_status")))
    return f'<span class="bad">{text}</span>' if meta.get("wait_status") else text


def _collector(name: str, options: Any) -> str:
    if not isinstance(options, dict):
        return name
    said = []
    if "rate_hz" in options:
        said.append(f"{options['rate_hz']:g} readings a second")
    if name == "emulate":
        said.append(f"{options.get('machine')} under qemu {options.get('qemu')}")
        if "window" in options:
            said.append(f"windows of {options['window']:,} in {options['period']:,} accesses")
        elif options.get("full"):
            said.append("every address")
        if options.get("pages"):
            said.append("pages")
    elif name == "count":
        how = str(options.get("sampling", "all"))
        said.append(
            {
                "all": "every execution",
                "every": f"every {options.get('every')}th execution",
                "random": f"one execution in {options.get('every')}, at random",
                "budget": f"as many executions as cost {options.get('budget_ppm', 0) / 10_000:g} %",
            }.get(how, how)
        )
        if options.get("epoch_s"):
            said.append(f"read every {1000 * options['epoch_s']:g} ms")
    elif name == "trace":
        window, period = options.get("window") or 0, options.get("period") or 0
        said.append(f"windows of {window:,} in {period:,} accesses" if period > window else "every access")
    elif "stacks" in options:
        said.append(
            "no call stacks" if options["stacks"] == "none" else f"call stacks by {unwinder(options['stacks'])}"
        )
    if options.get("single"):
        said.append("one event a fault")
    if options.get("budget_share"):
        said.append(f"a budget of {100 * options['budget_share']:.3g} % of the program's time")
    if "sample_bytes" in options:
        said.append(
            f"one in {human_bytes(options['sample_bytes'])} of small objects"
            if options["sample_bytes"]
            else "every object"
        )
        if options["sample_bytes"] and options.get("large_bytes"):
            said.append(f"all of {human_bytes(options['large_bytes'])} and more")
    return f"{name} ({', '.join(said)})" if said else name


# ---- findings ------------------------------------------------------------
def findings_section(findings: Sequence[Finding]) -> str:
    if not findings:
        body = "<p>None: no rule of this version found anything to change in this run.</p>"
    else:
        body = "".join(_finding(finding) for finding in findings)
    return f'<section id="findings"><h2>Findings{f" ({len(findings)})" if findings else ""}</h2>{body}</section>'


def _finding(finding: Finding) -> str:
    evidence = {key: value for key, value in finding.evidence.items() if key != "sql"}
    sql = finding.evidence.get("sql")
    shown = (
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
        f"<code>{esc(finding.name)}</code></h3><p>{esc(finding.claim)}</p>"
        f'<p class="remedy">{esc(finding.remedy)}</p>{shown}{notes}{query}</article>'
    )


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
    how = _how_recorded(meta, report.results["traffic"].figures if "traffic" in report.results else None)
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


def _how_recorded(meta: dict[str, Any], traffic: dict[str, Any] | None) -> str:
    session = meta.get("session") or {}
    collectors = meta.get("collectors") or {}
    parts = []
    if traffic is not None:
        parts.append(f"Accesses of the emulated program: {counted_in_words(traffic)}; {addresses_in_words(traffic)}.")
    if "count" in collectors:
        parts.append("Loads, stores and bytes of code built with memlens cc were counted by the program itself.")
    if "faults" in collectors:
        seen = "in user code and system calls" if session.get("include_kernel") else "in user code only"
        parts.append(f"Page faults were {'sampled' if session.get('sampled_faults') else 'seen'} {seen}.")
        if session.get("stacks"):
            parts.append(f"{session['stacks']:,} call stacks were sampled.")
    rate = (collectors.get("timeline") or {}).get("rate_hz")
    if rate:
        parts.append(f"RSS was read {rate:g} times a second.")
    if "alloc" in collectors:
        options = collectors["alloc"] or {}
        sample, large = options.get("sample_bytes"), options.get("large_bytes")
        if sample:
            all_of = (
                f"Objects of {human_bytes(large)} and more were all recorded, smaller ones" if large else "Objects were"
            )
            parts.append(f"{all_of} sampled, one in {human_bytes(sample)} of allocations.")
        else:
            parts.append("Every object was recorded." if sample == 0 else "Objects were recorded.")
    return " ".join(parts)


# ---- the page ------------------------------------------------------------
def absent(what: str, collector: str, meta: dict[str, Any]) -> str:
    """One line that says why a section is not there."""
    if meta.get("state") == "standalone" and collector not in (meta.get("collectors") or {}):
        why = "the program wrote this capture itself; readings of RSS and page faults need a recorder (memlens record)"
        return f'<p class="muted absent">{esc(what)} not shown: {esc(why)}.</p>'
    if "emulate" in (meta.get("collectors") or {}) and collector not in (meta.get("collectors") or {}):
        return f'<p class="muted absent">{esc(what)} not shown: memlens\'s library did not run inside the emulated program.</p>'
    for entry in meta.get("unsupported") or []:
        if entry.get("collector") == collector:
            why = f"the collector {collector} could not run: {entry.get('reason', 'reason not recorded')}"
            break
    else:
        why = (
            f"the collector {collector} ran but wrote no record"
            if collector in (meta.get("collectors") or {})
            else f"the collector {collector} was not used (memlens record --collectors faults,timeline,alloc)"
        )
    return f'<p class="muted absent">{esc(what)} not shown: {esc(why)}.</p>'


def _is_for_threads_only(result: Result) -> bool:
    """Whether a result is about several threads, and the program had one."""
    if result.name == "page_use":
        return bool(result.figures["page_threads"] < 2)
    return result.name == "sharing" and bool(result.figures["threads"] < 2)


def _processes_by_number(capacity: Result | None) -> dict[int, dict[str, Any]]:
    """pid, name and end of each process, as far as they are known."""
    arrow = capacity.tables.get("by_process") if capacity else None
    rows = arrow.to_pylist() if arrow is not None and arrow.num_columns else []
    return {row["process"]: row for row in rows if row.get("process") is not None}


def navigation(sections: Iterable[tuple[str, str]]) -> str:
    links = "".join(f'<li><a href="#{name}">{esc(label)}</a></li>' for name, label in sections)
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
    results, meta = report.results, report.meta
    names = ("capacity", "objects", "first_touch", "faults", "regions")
    capacity, objects, touch, faults, regions = (results.get(name) for name in names)
    figures = figures_section(report)
    body = [findings_section(report.findings), quality_section(report), figures]
    links = [("findings", "Findings"), ("quality", "Quality")] + ([("figures", "Key figures")] if figures else [])
    emulated = "traffic" in results or "emulate" in (meta.get("collectors") or {})
    for name, label, section in (
        ("bandwidth", "Bandwidth", bandwidth_section),
        ("traffic", "Memory traffic", traffic_section),
        ("accesses", "Accesses by object", accesses_section),
        ("page_use", "Pages", page_use_section),
        ("locality", "Locality", lambda result: locality_section(result, results.get("caches"))),
        ("caches", "Cache model", lambda result: caches_section(result, meta)),
        ("sharing", "Shared lines", sharing_section),
    ):
        if name in results and not _is_for_threads_only(results[name]):
            body.append(section(results[name]))
            links.append((name.replace("_", "-"), label))
    over_time = capacity and column(capacity, "over_time", "time_s")
    if capacity and (over_time or (meta.get("state") != "standalone" and not emulated)):
        body.append(capacity_section(capacity))
        links.append(("capacity", "Memory over time"))
    elif not emulated:
        body.append(absent("Memory over time" + ("" if capacity else " and processes"), "timeline", meta))
    if objects:
        end_s = (capacity.figures.get("duration_s") if capacity else None) or meta.get("wall_s") or 0.0
        body.append(objects_section(objects, meta, _processes_by_number(capacity), end_s=end_s))
        links.append(("objects", "Objects"))
    else:
        body.append(absent("Objects", "alloc", meta))
    if touch:
        body.append(first_touch_section(touch, meta))
        links.append(("first-touch", "First touch"))
    if faults:
        body.append(faults_section(faults))
        links.append(("faults", "Page faults"))
    if not (touch and faults) and not emulated:
        missing = [label for label, there in (("First touch", touch), ("page faults", faults)) if not there]
        text = " and ".join(missing)
        body.append(absent(text[:1].upper() + text[1:], "faults", meta))
    if regions:
        body.append(regions_section(regions, faults_known=faults is not None, objects=objects))
        links.append(("regions", "Regions"))
    for name, result in results.items():
        if name not in (*names, *WITH_SECTIONS):
            body.append(other_section(result))
            links.append((esc(name.replace("_", "-")), name.replace("_", " ").capitalize()))
    if emulated and not (over_time or touch or faults):
        body.append(
            '<p class="muted absent">Memory over time, first touches by page fault and page faults not shown: of an emulated '
            "program they would be the emulator's own.</p>"
        )
    if capacity and (over_time or not emulated or capacity.figures["processes"] > 1):
        body.append(processes_section(capacity))
        links.append(("processes", "Processes"))
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
