"""How long a report takes, and how much memory: python benchmarks/report.py [--before PYTHON] [--output docs/report-speed.md]

Three captures of `big_captures.py`: 50 million accesses in windows, 20 million page faults, 20 million objects. Of each, in processes of their own:

- the first report (`memlens report`, nothing kept), beside the one of another checkout (`--before`, a Python that has an earlier memlens), in turns;
- the second report, and the page after it (`--html`), which take what was kept;
- peak memory; of accesses also how often each window was decoded (a counter in the native code); of objects also `heaptrack_print` on a recording of the same program.

Last, a capture of windows grows by one chunk: what the second snapshot reads, decodes and takes. The least wall time of each counts; CPU time is beside it, because this measures what
it takes on whatever else the machine does.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import big_captures
from _common import BenchmarkError, Verdict, describe_machine, head, row, say, verdict_lines, write_page

GIB = 1 << 30
SECOND_S = 1.0
TIMES_FASTER = 3.0

DECODED = """
import json, sys, memlens
from memlens import _core, analyses
capture = memlens.open(sys.argv[1])
analyses.report(capture)
print(json.dumps({"decoded": _core.windows_decoded(), "windows": int((capture.windows.raw["recorded"] > 0).sum()),
                  "accesses": int(capture.windows.raw["recorded"].sum())}))
"""

GROWN = """
import json, sys, time, memlens
from memlens import _core, analyses
from memlens.capture.store.layouts import layouts
from memlens.capture.store.records import Chunk
path, extra = sys.argv[1:]
from memlens.analyses._growing import GrowingInTime, GrowingLocality
def timed(work):
    begin, cpu, read, decoded = time.monotonic(), time.process_time(), Chunk.bytes_read, _core.windows_decoded()
    accesses = work()
    return {"seconds": time.monotonic() - begin, "cpu_seconds": time.process_time() - cpu, "bytes": Chunk.bytes_read - read,
            "windows": _core.windows_decoded() - decoded, "accesses": accesses}
def everything():
    return analyses.run_all(capture)["locality"].figures["recorded_accesses"]
capture = memlens.open(path)
growing = [GrowingLocality(capture), GrowingInTime(capture, "caches"), GrowingInTime(capture, "sharing")]
def by_name(what):
    names = ("locality", "caches", "sharing")
    return {name: timed(lambda: what(at, name).figures["recorded_accesses" if name == "locality" else "accesses"])
            for at, name in enumerate(names)}
first = timed(everything)
by_name(lambda at, name: growing[at].snapshot())
with open(path + "/records-recorder.mlc", "ab") as file:
    file.write(open(extra, "rb").read())
added = capture.refresh()
second = timed(everything)
print(json.dumps({"first": first, "second": second, "added": added,
                  "continued": by_name(lambda at, name: growing[at].snapshot()),
                  "anew": by_name(lambda at, name: analyses.run(name, capture)),
                  "started_over": [one.started_over for one in growing],
                  "chunk_bytes": capture.chunks_of("window")[-1].header["stored_bytes"]}))
"""


@dataclass
class Run:
    """The least time of several runs of one command, and the greatest memory."""

    wall_s: float = float("inf")
    cpu_s: float = float("inf")
    peak_bytes: int = 0

    def take(self, other: Run) -> None:
        self.wall_s, self.cpu_s = min(self.wall_s, other.wall_s), min(self.cpu_s, other.cpu_s)
        self.peak_bytes = max(self.peak_bytes, other.peak_bytes)

    @property
    def cells(self) -> list[str]:
        return [f"{self.wall_s:.1f} s", f"{self.cpu_s:.1f} s", f"{self.peak_bytes / 2**20:,.0f} MiB"]


def timed(command: list[str], *, variables: dict[str, str]) -> Run:
    """One run of a command, with its own peak."""
    import time

    begin = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=os.environ | variables)
    _, status, usage = os.wait4(process.pid, 0)
    wall_s = time.monotonic() - begin
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.stderr is not None
    said = process.stderr.read().decode(errors="replace")
    process.stderr.close()
    if process.returncode != 0:
        raise BenchmarkError(f"{' '.join(command)} failed with {process.returncode}: {said[-1000:]}")
    return Run(wall_s, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024)


@dataclass
class Measured:
    kind: str
    count: int
    disk_bytes: int
    before: Run | None = None
    first: Run = field(default_factory=Run)
    second: Run = field(default_factory=Run)
    page: Run = field(default_factory=Run)
    peer: Run | None = None

    @property
    def rows(self) -> list[str]:
        what = f"{self.count / 1e6:.0f} million {self.kind} ({self.disk_bytes / 2**20:,.0f} MiB)"
        made = [("before", self.before), ("now", self.first), ("second report", self.second),
                ("page after it", self.page), ("`heaptrack_print`", self.peer)]  # fmt: skip
        return [row([what, name, *run.cells]) for name, run in made if run is not None]


class Session:
    def __init__(self, folder: Path, python: str, before: str | None, rounds: int) -> None:
        self.folder, self.python, self.before, self.rounds = folder, python, before, rounds
        self.variables = {
            "XDG_STATE_HOME": str(folder / "state"),
            "XDG_CACHE_HOME": str(folder / "cache"),
            "DEBUGINFOD_URLS": "",
        }

    def report(self, python: str, path: Path, *options: str) -> Run:
        return timed([python, "-m", "memlens", "report", str(path), *options], variables=self.variables)

    def measure(self, kind: str, path: Path, count: int) -> Measured:
        for entry in path.glob("derived-*"):
            entry.unlink()
        found = Measured(kind, count, sum(file.stat().st_size for file in path.iterdir()))
        for number in range(self.rounds):
            if self.before is not None:
                found.before = found.before or Run()
                found.before.take(self.report(self.before, path))
                say(f"{kind}: before {found.before.cells}")
            found.first.take(self.report(self.python, path, "--no-cache"))
            say(f"{kind}: now {found.first.cells}, round {number + 1}")
        self.report(self.python, path)
        for _ in range(max(2, self.rounds)):
            found.second.take(self.report(self.python, path))
            found.page.take(self.report(self.python, path, "--html", str(self.folder / "page.html")))
        say(f"{kind}: second {found.second.cells}, page {found.page.cells}")
        return found

    def ask(self, program: str, *arguments: str) -> dict[str, Any]:
        done = subprocess.run([self.python, "-c", program, *arguments], capture_output=True, text=True, env=os.environ | self.variables,
                              check=False)  # fmt: skip
        if done.returncode != 0:
            raise BenchmarkError(done.stderr[-2000:])
        return dict(json.loads(done.stdout.splitlines()[-1]))

    def heaptrack(self, program: Path, count: int) -> Run | None:
        """`heaptrack_print` on the program's own recording."""
        if shutil.which("heaptrack") is None or shutil.which("heaptrack_print") is None:
            return None
        target = self.folder / "heaptrack"
        recorded = [*self.folder.glob("heaptrack.*")]
        if not recorded:
            subprocess.run(["heaptrack", "-o", str(target), str(program), str(count)], check=True, capture_output=True)
            recorded = [*self.folder.glob("heaptrack.*")]
        found = Run()
        for _ in range(self.rounds):
            found.take(timed(["heaptrack_print", "-f", str(recorded[0])], variables={}))
        say(f"heaptrack_print: {found.cells}")
        return found

    def grown(self, source: Path) -> dict[str, Any]:
        """A capture of windows that grows by one chunk: all chunks but the last first, as a recorder that is still writing leaves them."""
        from memlens.capture.reader import open_capture

        path = self.folder / "growing.memlens"
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir()
        meta = json.loads((source / "meta.json").read_text())
        content = {key: value for key, value in meta.items() if key not in ("files", "sha256")}
        (path / "meta.json").write_text(json.dumps({**content, "state": "recording"}))
        # The last chunk of the file is one of windows.
        last = open_capture(source).chunks_of("window")[-1]
        records = (source / "records-recorder.mlc").read_bytes()
        at = len(records) - CHUNK_HEADER_BYTES - (last.header["stored_bytes"] + 7) // 8 * 8
        if int.from_bytes(records[at + 12 : at + 16], "little") != last.header["stored_bytes"]:
            raise BenchmarkError("the file does not end with a chunk of windows")
        (path / "records-recorder.mlc").write_bytes(records[:at])
        (self.folder / "chunk").write_bytes(records[at:])
        return self.ask(GROWN, str(path), str(self.folder / "chunk"))


CHUNK_HEADER_BYTES = 80


def page_of(
    measured: list[Measured], decoded: dict[str, Any] | None, grown: dict[str, Any] | None, session: Session
) -> tuple[str, bool]:
    verdicts = []
    by_kind = {one.kind: one for one in measured}
    if (one := by_kind.get("accesses")) is not None and one.before is not None:
        times = one.before.wall_s / one.first.wall_s
        verdicts.append(
            Verdict(f"accesses: {TIMES_FASTER:.0f} × faster than before", f"{times:.1f} × (CPU time {one.before.cpu_s / one.first.cpu_s:.1f} ×)",
                    times >= TIMES_FASTER))  # fmt: skip
    if decoded is not None:
        once = decoded["decoded"] == decoded["windows"]
        verdicts.append(
            Verdict("each window decoded once for a report", f"{decoded['decoded']:,} of {decoded['windows']:,}", once)
        )
    for kind, most_s in (("faults", 8.0), ("objects", 12.0)):
        if (one := by_kind.get(kind)) is not None:
            verdicts.append(
                Verdict(f"{kind}: at most {most_s:.0f} s", f"{one.first.wall_s:.1f} s", one.first.wall_s <= most_s)
            )
            verdicts.append(
                Verdict(f"{kind}: at most 1 GiB", f"{one.first.peak_bytes / GIB:.2f} GiB", one.first.peak_bytes <= GIB)
            )
    for one in measured:
        worst = max(one.second.wall_s, one.page.wall_s)
        verdicts.append(Verdict(f"{one.kind}: second report and page at most 1 s", f"{worst:.2f} s", worst <= SECOND_S))
    if grown is not None:
        second = grown["second"]
        verdicts.append(
            Verdict(
                "a chunk more: engines continue",
                f"{sum(grown['started_over'])} started over",
                not any(grown["started_over"]),
            )
        )
        verdicts.append(Verdict("a chunk more: only that chunk's windows are decoded", f"{second['windows']:,}", second["windows"] <= big_captures.WINDOWS_A_CHUNK))  # fmt: skip
    lines = [
        "# Time and memory of reports", "",
        f"Written by `make bench-report`. Least of {session.rounds} rounds, in turns with the earlier memlens; each report is a process of its own. Load when it ended: "
        f"{os.getloadavg()[0]:.1f}.", "",
        *head(["", ""]), *(row(pair) for pair in describe_machine(memory=True).items()), "",
        "## Reports", "", *head(["capture", "", "wall", "CPU", "peak memory"]), *(line for one in measured for line in one.rows), "",
        "`accesses` are in windows of two threads with 64 objects; `faults` are of four threads on distinct pages; `objects` are of a program that is recorded with every "
        "object (`benchmarks/big_captures.py`).", "",
    ]  # fmt: skip
    if grown is not None:
        lines += [
            "## A capture that grows by one chunk",
            "",
            *head(["snapshot", "accesses", "read", "windows decoded", "wall", "CPU"]),
        ]
        lines += [row([name, f"{one['accesses']:,}", f"{one['bytes']:,} bytes", f"{one['windows']:,}", f"{one['seconds']:.1f} s", f"{one['cpu_seconds']:.1f} s"])
                  for name, one in (("first", grown["first"]), ("second", grown["second"]))]  # fmt: skip
        lines += ["", f"The chunk has {grown['chunk_bytes']:,} bytes. What else is read are the records of other kinds: names of code and objects are replayed anew, because a new "
                  "record may lie before the last one in time.", "",
                  *head(["second snapshot", "anew: wall", "CPU", "continued: wall", "CPU", "windows decoded"])]  # fmt: skip
        for name, one in grown["continued"].items():
            anew = grown["anew"][name]
            lines.append(
                row([name, *(f"{value:.2f} s" for value in (anew["seconds"], anew["cpu_seconds"], one["seconds"], one["cpu_seconds"])),
                     f"{one['windows']:,}"])
            )  # fmt: skip
        lines += ["", "Engines of `locality`, `caches` and `sharing` continue (`src/memlens/analyses/_growing.py`): up to the last window of each thread, and of these "
                  "two in the order of time. A report runs all analyses anew, from the accesses that are kept in memory.", ""]  # fmt: skip
    lines += verdict_lines(verdicts)
    return "\n".join(lines), all(verdict.holds for verdict in verdicts)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", metavar="PYTHON", help="a Python with an earlier memlens, measured in turns")
    parser.add_argument(
        "--folder", type=Path, help="keep the captures here (several gigabytes), and use those that are there"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--only", action="append", choices=("accesses", "faults", "objects", "grown"), help="repeatable"
    )
    parser.add_argument("--accesses", type=int, default=big_captures.ACCESSES)
    parser.add_argument("--faults", type=int, default=big_captures.FAULTS)
    parser.add_argument("--objects", type=int, default=big_captures.OBJECTS)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--check", action="store_true", help="fail where a claim does not hold")
    options = parser.parse_args()
    only = options.only or ["accesses", "faults", "objects", "grown"]
    makers: dict[str, tuple[Callable[..., Path], int]] = {
        "accesses": (big_captures.accesses, options.accesses), "faults": (big_captures.faults, options.faults),
        "objects": (big_captures.objects, options.objects),
    }  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="memlens-report-") as scratch:
        folder = options.folder or Path(scratch)
        session = Session(folder, sys.executable, options.before, options.rounds)
        measured, decoded, grown = [], None, None
        try:
            for kind, (make, count) in makers.items():
                if kind in only:
                    path = make(folder / f"{kind}.memlens", count)
                    measured.append(session.measure(kind, path, count))
            if "accesses" in only:
                decoded = session.ask(DECODED, str(folder / "accesses.memlens"))
            if "objects" in only:
                measured[-1].peer = session.heaptrack(folder / "many_objects", options.objects)
            if "grown" in only:
                grown = session.grown(big_captures.accesses(folder / "accesses.memlens", options.accesses))
        except BenchmarkError as error:
            say(f"benchmark: {error}")
            return 1
        page, holds = page_of(measured, decoded, grown, session)
    write_page(page, options.output)
    return 0 if holds or not options.check else 1


if __name__ == "__main__":
    sys.exit(main())
