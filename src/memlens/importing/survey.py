"""Which traces that can be imported could be recorded on this machine. Reading them works everywhere."""

from __future__ import annotations

import os
import shutil
from typing import Any

INTEL_PT = "/sys/bus/event_source/devices/intel_pt"


def survey() -> list[dict[str, object]]:
    """For each format: the tool that records it, whether it is here, and why not."""
    from .. import registry

    found = []
    for one in sorted(registry.all_of("importer").values(), key=lambda one: (one.order, one.package, one.name)):
        state = _unknown(one.name)
        try:
            state = one.survey() if one.survey is not None else state
        except Exception as error:
            if not one.package:
                raise
            registry.left_out("importer", one, f"asking for its tool failed: {type(error).__name__}: {error}")
        found.append({**state, "package": one.package})
    return found


def _unknown(name: str) -> dict[str, object]:
    return {"format": name, "records_here": None, "detail": "", "missing": []}


def tool(name: str, program: str, remedy: str) -> dict[str, object]:
    path = shutil.which(program)
    missing = [] if path else [{"reason": f"{program} is not installed", "remedy": remedy}]
    return {"format": name, "records_here": path is not None, "detail": path or "", "missing": missing}


def ptwrite(name: str) -> dict[str, Any]:
    """Both need a CPU with ptwrite, and perf."""
    missing = []
    if not os.path.isdir(INTEL_PT):
        missing.append({"reason": "this CPU has no Intel Processor Trace, or the kernel hides it",
                        "remedy": "record on a bare-metal Intel machine"})  # fmt: skip
    elif _text(f"{INTEL_PT}/caps/ptwrite") != "1":
        missing.append({"reason": "this CPU has no ptwrite instruction",
                        "remedy": "record on Goldmont, Alder Lake, Sapphire Rapids or newer"})  # fmt: skip
    if not shutil.which("perf"):
        missing.append({"reason": "perf is not installed", "remedy": "sudo apt-get install linux-perf"})
    return {"format": name, "records_here": not missing, "detail": "" if missing else INTEL_PT, "missing": missing}


def _text(path: str) -> str:
    try:
        with open(path) as file:
            return file.read().strip()
    except OSError:
        return ""
