"""Attacks memlens from outside for a while: `make attack`.

Modules of benchmarks/attacking with ``attacks(seconds, seed)`` take turns; each attempt ends as documented or is a failure:
exit status 70, a traceback, a signal, a limit of time or memory, a raw control character in text. Prints tried and failed, and how to
see each failure again. Exit status 1 when there is one.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import time
from collections import Counter

from attacking.model import Attempt

AREAS = ("captures", "imports", "programs", "signals", "faults", "names")
"""Modules of benchmarks/attacking; a new one is added here."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=1800, help="time for all areas together (1800)")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of the random choices (the time)")
    parser.add_argument("--only", action="append", choices=AREAS, help="these areas; repeatable")
    options = parser.parse_args()
    areas = options.only or list(AREAS)
    print(f"seed {options.seed}, {options.seconds:.0f} s over {', '.join(areas)}", flush=True)
    tried: Counter[str] = Counter()
    failures: list[Attempt] = []
    seen: Counter[tuple[str, str]] = Counter()
    slowest: dict[str, Attempt] = {}
    largest: dict[str, Attempt] = {}
    for area in areas:
        module = importlib.import_module(f"attacking.{area}")
        for attempt in module.attacks(options.seconds / len(areas), options.seed):
            tried[area] += 1
            for best, figure in ((slowest, "seconds"), (largest, "rss_bytes")):
                if attempt.figures.get(figure, 0) >= (best[area].figures.get(figure, 0) if area in best else 0):
                    best[area] = attempt
            if attempt.failure is None:
                continue
            failures.append(attempt)
            key = (attempt.command[1] if len(attempt.command) > 1 else "", attempt.failure)
            seen[key] += 1
            if seen[key] == 1:
                print(f"FAILED {attempt.what}\n  {attempt.failure}\n  again: {attempt.reproduction}", flush=True)
    for area in areas:
        failed = sum(attempt.area == area for attempt in failures)
        line = f"{area}: {tried[area]:,} tried, {failed:,} failed"
        if area in slowest:
            line += f"; at most {slowest[area].figures.get('seconds', 0):.1f} s, {largest[area].figures.get('rss_bytes', 0) / 2**20:.0f} MiB"
        print(line)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
