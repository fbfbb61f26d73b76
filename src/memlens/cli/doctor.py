"""`memlens doctor`: what this machine can measure."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from ..units import human_bytes
from .main import new_parser

if TYPE_CHECKING:
    from rich.console import Console

    from ..collect.facts import Availability, Facts
    from ..registry import CollectorDescriptor

EXAMPLES = """\
  memlens doctor            what works here, why not, and the command that changes that
  memlens doctor --json     the same for a machine, with every fact that was probed
  memlens doctor --check    exit status 1 when a collector of this version cannot run
"""


def gather() -> dict[str, Any]:
    """Facts, and the state of each collector."""
    from .. import registry
    from ..collect import facts as machine_facts
    from ..compile import survey, toolchain
    from ..importing.survey import survey as survey_imports

    facts = machine_facts.gather()
    collectors = []
    for descriptor in registry.all_of("collector").values():
        availability = _probed(descriptor, facts)
        if availability is None:
            continue
        state = "works" if availability.usable else "later" if not descriptor.available else "cannot run"
        if availability.usable and availability.reasons:
            state = "works in part"
        collectors.append(
            {
                "collector": descriptor.name,
                "package": descriptor.package or None,
                "question": descriptor.question,
                "state": state,
                "detail": availability.detail,
                "missing": [{"reason": reason, "remedy": remedy} for reason, remedy in availability.reasons],
            }
        )
    return {
        "facts": facts,
        "collectors": collectors,
        "compilers": survey.survey(),
        "counted_machines": sorted(toolchain.installed().archives),
        "imports": survey_imports(),
        "calibration": calibration_state(),
        "plugins": _plugins(),
    }


def _probed(descriptor: CollectorDescriptor, facts: Facts) -> Availability | None:
    """What a collector says of this machine; None where a plug-in fails to."""
    from .. import registry
    from ..collect.facts import Availability

    if descriptor.probe is None:
        return Availability(True, "")
    try:
        found: Availability = descriptor.probe(facts)
    except Exception as error:
        if not descriptor.package:
            raise
        registry.left_out("collector", descriptor, f"its probe failed: {type(error).__name__}: {error}")
        return None
    return found


def _plugins() -> dict[str, list[dict[str, str]]]:
    """What other packages add to memlens, and what of it was left out."""
    from .. import registry
    from ..collect.arguments import usable_collectors

    usable_collectors()
    return {
        "found": [
            {"kind": kind, "name": one.name, "package": one.package, "question": one.question}
            for kind, one in registry.installed()
        ],
        "left_out": [vars(problem).copy() for problem in registry.problems()],
    }


def calibration_state() -> dict[str, object]:
    """Whether this machine's peaks are known, and how old they are."""
    from datetime import UTC, datetime

    from ..capture.store import calibration

    found = calibration.load(calibration.fingerprint(calibration.identity()))
    state: dict[str, object] = {"path": str(found.path), "exists": found.content is not None, "problem": found.problem}
    if found.content is not None:
        measured = datetime.fromisoformat(found.content["measured"])
        state |= {
            "measured": found.content["measured"],
            "age_days": round(max(0.0, (datetime.now(UTC) - measured).total_seconds() / 86400), 2),
            "warnings": found.content["warnings"],
        }
    return state


def main(arguments: list[str]) -> int:
    parser = new_parser(
        "doctor", description="Reports what this machine can measure with each collector.", examples=EXAMPLES
    )
    parser.add_argument("--json", action="store_true", help="machine-readable")
    parser.add_argument("--check", action="store_true", help="exit with 1 when a collector of this version cannot run")
    options = parser.parse_intermixed_args(arguments)
    state = gather()
    failed = any(entry["state"] == "cannot run" and not entry["package"] for entry in state["collectors"])
    if options.json:
        json.dump(state, sys.stdout, indent=1, default=str)
        sys.stdout.write("\n")
    else:
        _show(state)
    return 1 if options.check and failed else 0


def _show(state: dict[str, Any]) -> None:
    from rich.markup import escape

    from ..capture.store import machine
    from ..plain_text import plain_console, trusted

    stream = trusted(sys.stdout) if sys.stdout.isatty() else sys.stdout
    console = plain_console(stream, highlight=False, soft_wrap=not sys.stdout.isatty())
    described = machine.describe()
    console.print(
        f"{escape(described['cpu'])}, {described['cpus']} CPUs, {max(1, len(described['numa_nodes']))} NUMA node(s), "
        f"{human_bytes(described['memory_bytes'])}, Linux {described['kernel']}"
    )
    order = {"works": 0, "works in part": 1, "cannot run": 2, "later": 3}
    styles = {"works": "green", "works in part": "yellow", "cannot run": "red", "later": "dim"}
    for entry in sorted(state["collectors"], key=lambda entry: order[entry["state"]]):
        style = styles[entry["state"]]
        console.print(f"\n[bold]{entry['collector']}[/]  [{style}]{entry['state']}[/]  {escape(entry['detail'])}")
        console.print(f"  [dim]{escape(entry['question'])}[/]")
        for missing in entry["missing"]:
            console.print(f"  • {escape(missing['reason'])}")
            console.print(f"    → {escape(missing['remedy'])}", style="cyan")
    _show_compilers(state, console)
    _show_imports(state, console)
    _show_calibration(state["calibration"], console)
    _show_plugins(state["plugins"], console)
    facts = state["facts"]
    console.print(
        f"\nperf_event_paranoid {facts['perf_event_paranoid']}, mlock limit {_limit(facts['memlock_limit_bytes'])}, "
        f"seccomp {'filtered' if facts['seccomp_mode'] == 2 else 'off'}, PMU {'yes' if facts['has_pmu'] else 'no'}, "
        f"LLVM {', '.join(facts['clang']) or 'no'}, qemu-user {'yes' if facts['qemu_user'] else 'no'}",
        style="dim",
    )
    console.print("next: memlens record -- ./program")


def _show_calibration(state: dict[str, Any], console: Console) -> None:
    from rich.markup import escape

    if not state["exists"]:
        console.print(f"\n[bold]peaks of this machine[/]  [yellow]not known[/]  {escape(state['problem'])}")
        console.print("    → memlens calibrate", style="cyan")
        return
    days = state["age_days"]
    age = f"{days:.0f} days old" if days >= 2 else f"{24 * days:.0f} hours old" if days >= 1 / 12 else "just measured"
    console.print(f"\n[bold]peaks of this machine[/]  [green]known[/]  {age}  [dim]{escape(state['path'])}[/]")
    for warning in state["warnings"]:
        console.print(f"    • {escape(warning)}")


def _show_plugins(state: dict[str, Any], console: Console) -> None:
    """Nothing, where no other package adds to memlens."""
    from rich.markup import escape

    if not state["found"] and not state["left_out"]:
        return
    console.print("\n[bold]plug-ins of other packages[/]")
    for entry in state["found"]:
        console.print(f"  {entry['kind']} {entry['name']}  [green]found[/]  [dim]{escape(entry['package'])}[/]")
    for entry in state["left_out"]:
        console.print(
            f"  {entry['kind']} {escape(entry['name'])}  [red]left out[/]  [dim]{escape(entry['package'])}[/]"
        )
        console.print(f"    • {escape(entry['reason'])}")
        console.print(f"      → {escape(entry['remedy'])}", style="cyan")


def _show_compilers(state: dict[str, Any], console: Console) -> None:
    from rich.markup import escape

    from ..compile.toolchain import REBUILD, packages

    machines = ", ".join(state["counted_machines"]) or "no machine"
    console.print(f"\n[bold]compilers for memlens cc and c++[/]  [dim]counting for {escape(machines)}[/]")
    styles = {"counts": "green", "counts in part": "yellow", "cannot count": "red"}
    for entry in state["compilers"]:
        style = styles[entry["state"]]
        console.print(f"  clang {entry['version']}  [{style}]{entry['state']}[/]  {escape(entry['detail'])}")
        for missing in entry["missing"]:
            console.print(f"    • {escape(missing['reason'])}")
            console.print(f"      → {escape(missing['remedy'])}", style="cyan")
    if not any(entry["state"] != "cannot count" for entry in state["compilers"]):
        console.print("  • no clang here can count")
        console.print(f"    → sudo apt-get install {packages(19)}; then {REBUILD}", style="cyan")


def _show_imports(state: dict[str, Any], console: Console) -> None:
    from rich.markup import escape

    console.print("\n[bold]traces for memlens import[/]  [dim]read everywhere; recorded where their tools are[/]")
    for entry in state["imports"]:
        if entry["records_here"] is None:
            console.print(f"  {entry['format']}  [dim]read by the package {escape(entry['package'])}[/]")
            continue
        if entry["records_here"]:
            console.print(f"  {entry['format']}  [green]recordable here[/]  {escape(entry['detail'])}")
            continue
        reasons = "; ".join(missing["reason"] for missing in entry["missing"])
        console.print(f"  {entry['format']}  [dim]not recordable here[/]  {escape(reasons)}")


def _limit(value: int) -> str:
    return "unlimited" if value < 0 else human_bytes(value)
