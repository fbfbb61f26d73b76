"""Runs a program that was built with ``memlens cc --memlens=ptwrite`` under perf with Intel Processor Trace, and imports what it took down."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..capture.store.swept import SweptDirectory
from ..errors import CollectorError, OutputError
from .survey import ptwrite

if TYPE_CHECKING:
    from .target import Outcome

EVENT = "intel_pt/ptw=1,fup_on_ptw=1,branch=0/u"
"""User code only; no branches: addresses are all that is wanted, and the packets behind them name the instruction."""
VARIABLE = "MEMLENS_PTWRITE"
"""Programs execute the instruction only where this is 1 and the CPU has it."""


@dataclass(frozen=True)
class PtwriteRun:
    wait_status: int
    outcome: Outcome


def require() -> None:
    """Raises CollectorError, with what is missing, before anything is started."""
    found = ptwrite("ptwrite")
    if found["missing"]:
        first = found["missing"][0]
        raise CollectorError(
            f"--ptwrite cannot record here: {first['reason']}",
            hint=f"{first['remedy']}; or build with --memlens=trace, which works on every machine",
        )


def record(command: list[str], output: Path, *, force: bool) -> PtwriteRun:
    """The program's own status, and the capture."""
    from .formats import import_trace

    require()
    if output.exists() and not force:
        raise OutputError(f"{output} exists already", hint="give another name with -o, or replace it with --force")
    with SweptDirectory("ptwrite", parent=output.absolute().parent) as scratch:
        data = scratch / "perf.data"
        words = ["perf", "record", "-q", "-e", EVENT, "-o", str(data), "--", *command]
        done = subprocess.run(words, env={**os.environ, VARIABLE: "1"})
        if not data.exists():
            raise CollectorError(
                f"perf recorded nothing: it ended with status {done.returncode}",
                hint="its messages are above; sysctl kernel.perf_event_paranoid=1 lets users record their programs",
            )
        outcome = import_trace([str(data)], output, format_name="ptwrite", force=force)
    code = done.returncode
    return PtwriteRun(-code if code < 0 else code << 8, outcome)
