"""One emulated run for its counts."""

from __future__ import annotations

from pathlib import Path

from ...quiet_run import record_quietly
from ...record_options import Outcome, RecordOptions
from .emulator import EmulateOptions

WINDOW, PERIOD = 100, 5_000
"""Short windows: addresses of many moments say more about shares than long stretches of few."""


def record_emulated(command: list[str], output: Path, *, functions: str = "", cpu: str = "") -> Outcome:
    """Counts with regions and windows, a function's own frame told apart; raises what `memlens record --emulate` would."""
    settings = EmulateOptions(
        window=WINDOW, period=PERIOD, stacks=False, functions=functions, cpu=cpu, split_stack=True, frames=True
    )
    return record_quietly(command, RecordOptions(output=output, settings={"emulate": settings}))
