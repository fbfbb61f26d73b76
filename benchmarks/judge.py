"""The standing judge: Debian's programs under memlens, each figure beside an oracle that memlens has no part in.

``make judge`` runs everything, about an hour, and writes docs/judge.md; ``--quick`` is the part that ``make test`` runs.
``--parts counts,estimates --update`` judges these parts anew and keeps the page's other figures.
``--programs DIR`` adds built programs of another suite (DIR/judge.json: [{"name": …, "command": […]}]).

Exit status: 0; 1 when a figure is off by more than its tolerance without a known reason; 2 when nothing could be judged.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from _common import describe_machine, first_line, say, write_page
from judging import accesses, compiled, findings, heap, kernel, outputs, page, programs
from judging.model import Missing, Row, fails
from judging.running import RunError

PARTS = ("kernel", "heap", "accesses", "misses", "counts", "estimates", "findings", "outputs")


def judge(
    memlens: list[str], python: str, parts: tuple[str, ...], chosen: list[programs.Program], root: Path, *, quick: bool
) -> Iterator[Row | Missing]:
    checks: dict[str, Callable[[], Iterator[Row | Missing]]] = {
        "kernel": lambda: kernel.judge(memlens, chosen, root),
        "heap": lambda: heap.judge(memlens, chosen, root, slow=not quick),
        "accesses": lambda: accesses.judge(memlens, chosen, root),
        "misses": lambda: accesses.judge_misses(memlens, python, root),
        "counts": lambda: compiled.judge_counts(memlens, root, quick=quick),
        "estimates": lambda: compiled.judge_estimates(memlens, root, quick=quick),
        "findings": lambda: findings.judge(memlens, chosen, root, quick=quick),
        "outputs": lambda: outputs.judge(memlens, python, chosen, root),
    }
    for part in parts:
        begin = time.monotonic()
        rows = checks[part]()
        while True:
            try:
                row = next(rows)
            except StopIteration:
                break
            except (RunError, OSError, ValueError) as error:
                yield Missing("-", part, f"the check itself failed: {error}")
                break
            yield row
        say(f"{part}: {time.monotonic() - begin:.0f} s")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--memlens", default=str(Path(sys.executable).parent / "memlens"), help="the command to judge")
    parser.add_argument("--quick", action="store_true", help="a minute: few programs, no valgrind beyond one each")
    parser.add_argument("--parts", default=",".join(PARTS), help=f"which checks, of {', '.join(PARTS)}")
    parser.add_argument("--only", help="which programs, joined by commas")
    parser.add_argument("--programs", type=Path, help="a folder with built programs and their judge.json")
    parser.add_argument("--output", type=Path, help="page to write; standard output without")
    parser.add_argument(
        "--update", action="store_true", help="keep the page's figures of the parts that are not judged now"
    )
    options = parser.parse_args()
    if options.update and (options.output is None or not options.output.exists()):
        parser.error("--update needs --output with a page that exists")
    parts = tuple(options.parts.split(","))
    unknown = set(parts) - set(PARTS)
    if unknown:
        parser.error(f"unknown part {', '.join(sorted(unknown))}; known: {', '.join(PARTS)}")
    chosen = programs.named(options.only, quick=options.quick)
    if options.programs is not None:
        chosen += programs.of_folder(options.programs)
    rows: list[Row | Missing] = []
    with tempfile.TemporaryDirectory(prefix="judge-") as root:
        for row in judge([options.memlens], sys.executable, parts, chosen, Path(root), quick=options.quick):
            rows.append(row)
            if isinstance(row, Missing):
                say(f"  {row.program}: {row.check}: not judged: {row.why}")
            else:
                say(
                    f"  {row.program}: {row.metric}: {page.shown(row.reported, row.unit)}, {row.oracle} {page.ranged(row)}: {row.verdict}"
                )
    if not any(isinstance(row, Row) for row in rows):
        say("nothing could be judged")
        return 2
    machine = describe_machine(
        valgrind=first_line(["valgrind", "--version"]), memlens=first_line([options.memlens, "--version"])
    )
    kept = page.kept_lines(options.output.read_text(), parts) if options.update else None
    write_page(page.render(rows, machine, quick=options.quick, kept=kept), options.output)
    failed = fails(rows)
    say(f"{sum(isinstance(row, Row) for row in rows)} figures judged, {len(failed)} fail")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
