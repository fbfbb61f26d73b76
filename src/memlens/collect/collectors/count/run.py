"""One run of a program that counts for itself."""

from __future__ import annotations

from pathlib import Path

from ....capture.store.counted_modules import first_counted
from ...compiled.arena import CountOptions
from ...program import find_program
from ...quiet_run import record_quietly
from ...record_options import Outcome, RecordOptions


def counts_for_itself(program: str) -> bool:
    """Whether a program, or a library that it needs, was built with memlens cc."""
    return first_counted(find_program(program)) is not None


def record_counted(command: list[str], output: Path) -> Outcome:
    """Counts of the program's own counters, with nothing else recorded."""
    options = RecordOptions(output=output, collectors=("count",), settings={"count": CountOptions(events=())})
    return record_quietly(command, options)
