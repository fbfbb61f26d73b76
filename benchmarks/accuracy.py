"""How exact the emulator's counts are: loads, stores and bytes of whole programs beside valgrind's lackey.

Each workload is built statically with a C library that chooses no code by processor (musl), so that both run the same
instructions, and runs once under ``memlens record --emulate=counts`` and once under lackey, whose trace is added up by
instruction address (tests/support/emulate_oracle.py, which also says what lackey shows otherwise than it is). One thread: valgrind
runs one at a time. Counts do not vary from run to run, so there are no rounds.

Every difference is followed to its functions; one above 0.1 % that no entry of :data:`REASONS` explains fails ``--check``.

Exit status: 0, with ``--check`` 1 when a difference is not explained; 2 when nothing could be measured.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from _common import BenchmarkError, describe_machine, first_line, row, say, write_page

REPOSITORY = Path(__file__).resolve().parent.parent
WORKLOADS = REPOSITORY / "workloads"
sys.path.insert(0, str(REPOSITORY / "tests" / "support"))

from emulate_oracle import Accesses, Functions, lackey, total  # noqa: E402

LIMIT_PERCENT = 0.1
BAR_CELLS = 40
QUANTITIES = ("loads", "stores", "bytes read", "bytes written")  # in the order of Accesses.figures
BYTES = ("bytes read", "bytes written")

# Small: lackey's trace is read at about a million accesses a second.
PROGRAMS = {
    **{f"graph_{name}": "--scale 9 --iterations 2" for name in ("bfs", "bc", "cc", "pr", "pr_spmv", "sssp")},
    **{f"graph_{name}": "--scale 8 --iterations 1" for name in ("cc_sv", "tc")},
    "stream": "--mib 1 --threads 1 --iterations 2",
    "stencil": "--mib 2 --threads 1 --iterations 2",
    "matmul": "--mib 1 --threads 1 --iterations 1",
    "hash_map": "--mib 1 --iterations 1",
    "pointer_chase": "--mib 1 --iterations 4",
    "graph_search": "--mib 1 --iterations 1",
    "false_sharing": "--threads 1 --iterations 1",
    "region_counts": "--n 100000",
}
GAPBS = ("bfs", "bc", "cc", "cc_sv", "pr", "pr_spmv", "sssp", "tc")

STACK_CONTENT = "walks over the environment and the auxiliary vector, which valgrind and qemu fill differently"
WAITING = "waits for another thread: how often it looks again depends on time, and valgrind runs one thread at a time"
CHOICE = "chosen by processor at start: valgrind and qemu show different ones"
PROCESSOR = "asks for the processor's caches: valgrind and qemu show different ones"
TIMES = "prints how long something took: other digits"
REASONS = {
    "__init_libc": STACK_CONTENT,
    "__vdsosym": STACK_CONTENT,
    "dl_iterate_phdr": STACK_CONTENT,
    "__malloc_alloc_meta": STACK_CONTENT,
    "__wait": WAITING,
    "__tl_sync": WAITING,
    "__tl_lock": WAITING,
    "__timedwait_cp": WAITING,
    "__pthread_timedjoin_np": WAITING,
    **dict.fromkeys(("getenv", "__tunables_init", "_dl_aux_init", "__libc_start_main"), STACK_CONTENT),
    **dict.fromkeys(("handle_intel", "handle_amd", "get_common_cache_info", "get_common_indices"), PROCESSOR),
    **dict.fromkeys(("__printf_fp_l", "hack_digit", "__mpn_mul", "__mpn_mul_1", "__mpn_rshift", "__mpn_lshift"), TIMES),
    "fmt_fp": "prints a floating-point number: valgrind computes long double in double precision",
}
CHOSEN_AT_START = (
    "_sse2",
    "_ssse3",
    "_sse4",
    "_avx",
    "_evex",
    "_erms",
    "cpu_features",
    "init_cacheinfo",
    "intel_check",
)


# ---- results: plain data, rendered below -----------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Difference:
    """One function that the two count differently."""

    function: str
    counted: tuple[int, ...]
    expected: tuple[int, ...]

    @property
    def reason(self) -> str | None:
        name = self.function.split(".")[0]  # without what compilers add to copies
        if name in REASONS:
            return REASONS[name]
        return CHOICE if any(part in self.function for part in CHOSEN_AT_START) else None


@dataclasses.dataclass(frozen=True)
class Comparison:
    """One program."""

    program: str
    arguments: str
    counted: tuple[int, ...]
    expected: tuple[int, ...]
    differences: list[Difference] | None
    """None: the program is not at fixed addresses, so its functions are not told apart."""

    def error_percent(self, quantity: str) -> float:
        at = QUANTITIES.index(quantity)
        return error_percent(self.counted[at], self.expected[at])

    @property
    def unexplained(self) -> list[str]:
        """Quantities that are off by more than the limit beyond what explained functions account for."""
        found = []
        for at, quantity in enumerate(QUANTITIES):
            known = [d for d in self.differences or () if d.reason is not None]
            rest = self.counted[at] - sum(d.counted[at] - d.expected[at] for d in known)
            if abs(error_percent(rest, self.expected[at])) > LIMIT_PERCENT:
                found.append(quantity)
        return found


def error_percent(counted: int, expected: int) -> float:
    """Of the expected.

    >>> error_percent(1001, 1000), error_percent(0, 0)
    (0.1, 0.0)
    """
    if expected == 0:
        return 0.0 if counted == 0 else float("inf")
    return (counted - expected) * 100 / expected


# ---- measuring ---------------------------------------------------------------------------------------


def build(workload: str, folder: Path) -> Path:
    """Static, at fixed addresses, with musl. C++ workloads use no C++ library, so C's will do."""
    program = folder / workload
    source = next(path for path in (WORKLOADS / f"{workload}.c", WORKLOADS / f"{workload}.cpp") if path.exists())
    language = ["-std=gnu11"] if source.suffix == ".c" else ["-x", "c++", "-fno-exceptions", "-fno-rtti"]
    flags = ["-O2", "-g", "-static", "-no-pie", "-fno-pie"]
    done = subprocess.run(
        ["musl-gcc", *language, *flags, "-o", str(program), str(source)], capture_output=True, text=True
    )
    if done.returncode != 0:
        raise BenchmarkError(f"{workload} does not build with musl-gcc:\n{done.stderr[-500:]}")
    return program


def gapbs_program(name: str, suite: Path, folder: Path) -> Path:
    """From its source, without OpenMP, static; else the program that is there."""
    source = suite / "src" / f"{name}.cc"
    if source.exists():
        program = folder / f"gapbs_{name}"
        flags = ["-std=c++11", "-O2", "-g", "-static", "-no-pie", "-fno-pie"]
        done = subprocess.run(["g++", *flags, "-o", str(program), str(source)], capture_output=True, text=True)
        if done.returncode == 0:
            return program
        say(f"  {name}: does not build ({done.stderr.strip().splitlines()[-1] if done.stderr else 'no reason'})")
    if not (suite / name).is_file():
        raise BenchmarkError(f"--gapbs {suite}: neither src/{name}.cc nor a program {name} is there")
    return suite / name


def is_at_fixed_addresses(program: Path) -> bool:
    with program.open("rb") as file:
        head = file.read(18)
    listing = subprocess.run(["readelf", "-lW", str(program)], capture_output=True, text=True).stdout
    return int.from_bytes(head[16:18], "little") == 2 and "INTERP" not in listing


def count(memlens: list[str], command: list[str], capture: Path) -> tuple[dict[int, Accesses], str]:
    """By instruction address, and what the program printed."""
    record = [*memlens, "record", "-q", "--force", "-o", str(capture), "--emulate=counts", "--", *command]
    done = subprocess.run(record, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BenchmarkError(
            f"{shlex.join(record)}\n  ended with status {done.returncode}: {done.stderr.strip()[-500:]}"
        )
    sums = ", ".join(f"sum({name})::BIGINT {name}" for name in ("loads", "stores", "load_bytes", "store_bytes"))
    query = [*memlens, "query", "--json", str(capture), f"SELECT pc, {sums} FROM code_counts GROUP BY pc"]
    asked = subprocess.run(query, capture_output=True, text=True, check=False)
    if asked.returncode != 0:
        raise BenchmarkError(f"memlens query fails: {asked.stderr.strip()[-500:]}")
    rows = json.loads(asked.stdout)
    counted = {
        int(row["pc"]): Accesses(0, row["loads"], row["stores"], row["load_bytes"], row["store_bytes"]) for row in rows
    }
    return counted, done.stdout


def differences(counted: Mapping[str, Accesses], expected: Mapping[str, Accesses]) -> list[Difference]:
    """Functions whose counts are not the same, most bytes first."""
    found = []
    for name in counted.keys() | expected.keys():
        mine, theirs = counted.get(name, Accesses()).figures, expected.get(name, Accesses()).figures
        if mine != theirs:
            found.append(Difference(name, mine, theirs))
    return sorted(found, key=lambda d: -sum(abs(a - b) for a, b in zip(d.counted[2:], d.expected[2:], strict=True)))


def compare(memlens: list[str], program: Path, arguments: str, folder: Path, *, same_output: bool) -> Comparison:
    command = [str(program), *arguments.split()]
    expected, their_output = lackey(command)
    counted, our_output = count(memlens, command, folder / "run.memlens")
    if same_output and our_output != their_output:
        raise BenchmarkError(f"{program.name} prints {our_output!r} under memlens and {their_output!r} under lackey")
    found = None
    if is_at_fixed_addresses(program):
        functions = Functions(program)
        found = differences(functions.totals(counted), functions.totals(expected))
    result = Comparison(program.name, arguments, total(counted).figures, total(expected).figures, found)
    errors = ", ".join(f"{quantity} {result.error_percent(quantity):+.4f} %" for quantity in QUANTITIES)
    say(f"  {program.name} {arguments}: {errors}")
    return result


# ---- rendering -----------------------------------------------------------------------------------------


def bar(ratio: float) -> str:
    """A bar that is full at 1.

    >>> bar(1.0) == "█" * BAR_CELLS, bar(0.5) == "█" * (BAR_CELLS // 2)
    (True, True)
    """
    return "█" * round(min(ratio, 1.5) * BAR_CELLS)


def bars(comparisons: list[Comparison]) -> list[str]:
    width = max(len(c.program) for c in comparisons)
    lines = [f"{'':{width}}         0{'1':>{BAR_CELLS}}"]
    for c in comparisons:
        for quantity, label in zip(BYTES, ("read ", "write"), strict=True):
            ratio = 1 + c.error_percent(quantity) / 100
            lines.append(
                f"{c.program if label == 'read ' else '':{width}}  {label}  |{bar(ratio):{BAR_CELLS}}| {ratio:.5f}"
            )
    return ["```text", *lines, "```"]


def tables(comparisons: list[Comparison]) -> list[str]:
    lines = [row(["program", "arguments", *(f"{quantity} | error" for quantity in QUANTITIES)])]
    lines.append(row(["---", "---", *(["---:"] * 8)]))
    for c in comparisons:
        cells = []
        for at, quantity in enumerate(QUANTITIES):
            cells += [f"{c.counted[at]:,}", f"{c.error_percent(quantity):+.4f} %"]
        lines.append(row([c.program, f"`{c.arguments}`", *cells]))
    lines += ["", row(["absolute error over the programs", *QUANTITIES]), row(["---"] + ["---:"] * 4)]
    errors = {quantity: [abs(c.error_percent(quantity)) for c in comparisons] for quantity in QUANTITIES}
    lines.append(row(["mean", *(f"{sum(found) / len(found):.5f} %" for found in errors.values())]))
    return [*lines, row(["maximum", *(f"{max(found):.5f} %" for found in errors.values())])]


def explanations(comparisons: list[Comparison]) -> list[str]:
    """One row a function, with the programs in which it differs, most different first."""
    by_function: dict[str, list[tuple[str, Difference]]] = {}
    for c in comparisons:
        for d in c.differences or []:
            by_function.setdefault(d.function, []).append((c.program, d))

    def largest(found: list[tuple[str, Difference]], at: int) -> int:
        return max((d.counted[at] - d.expected[at] for _, d in found), key=abs)

    lines = [row(["function", "largest difference, bytes read", "written", "programs", "why"])]
    lines.append(row(["---", "---:", "---:", "---", "---"]))
    order = sorted(by_function.items(), key=lambda item: -abs(largest(item[1], 2)) - abs(largest(item[1], 3)))
    for function, found in order:
        programs = "all" if len(found) == len(comparisons) else ", ".join(program for program, _ in found)
        cells = [f"{largest(found, 2):+,}", f"{largest(found, 3):+,}", programs]
        lines.append(row([f"`{function}`", *cells, found[0][1].reason or "**not explained**"]))
    return lines


def section(title: str, comparisons: list[Comparison]) -> list[str]:
    lines = [f"## {title}", "", "Counted over lackey's, bytes:", "", *bars(comparisons), "", *tables(comparisons), ""]
    above = [c.program for c in comparisons if any(abs(c.error_percent(q)) > LIMIT_PERCENT for q in QUANTITIES)]
    lines += [
        f"Off by more than {LIMIT_PERCENT} %: {', '.join(above) or 'none'}. "
        "Every function that is not counted alike, to the last access:",
        "",
        *explanations(comparisons),
        "",
    ]
    if any(c.differences is None for c in comparisons):
        lines += ["Programs that are not linked statically at fixed addresses are compared as a whole only.", ""]
    left = {c.program: c.unexplained for c in comparisons if c.unexplained}
    if left:
        lines += [*(f"**Not explained**: {', '.join(names)} of {program}." for program, names in left.items()), ""]
    return lines


def this_machine(memlens: list[str]) -> dict[str, str]:
    return describe_machine(
        memlens=first_line([*memlens, "--version"]),
        emulator=first_line(["qemu-x86_64", "--version"]),
        valgrind=first_line(["valgrind", "--version"]),
        compiler=first_line(["gcc", "--version"]),
    )


HEAD = """\
The figures that [memlens verify](reference/commands.md) and every claim about accesses rest on are the emulator's counts. Here they
are compared with an independent count: valgrind's lackey, which prints every access of a program.

- **What is compared**: loads, stores and bytes of the whole program, start-up included, at one thread. A figure is
  exact when both agree to the last access; a percentage is of lackey's count.
- **The same instructions**: the programs are linked statically with a C library that chooses no code by processor; with glibc valgrind
  and qemu would run different copies of memcpy. The GAP suite, where it is compared, is C++ and has glibc.
- **Five peculiarities of lackey are put right** before comparing: loads that its optimiser drops, a load and a store printed as one, the
  additional load of locked instructions, bit tests of registers that it makes through memory, and elements of repeated string instructions,
  which are merged to accesses of 64 bytes as memlens defines them.
- **What remains** is listed by function with its reason. Closed forms, on four instruction sets and at 1 and 4 threads, are in the tests.

To judge a build or a capture of your own: `memlens verify PLAIN CLAIM`. It compares by region, and says how much of the exact
count is stack, libraries, atomic operations, constant pools and address tables.
"""


def render_page(
    machine: dict[str, str], ours: list[Comparison], suite: list[Comparison], *, arguments: str, scale: int
) -> str:
    lines = ["# Accuracy of counts", "", f"Written by `python benchmarks/accuracy.py{arguments}`.", ""]
    lines += [row(["machine", ""]), row(["---", "---"]), *(row([k, v]) for k, v in machine.items()), "", HEAD]
    if ours:
        lines += section("Workloads", ours)
    if suite:
        lines += section(f"GAP benchmark suite, `-g {scale} -n 1`", suite)
    return "\n".join(lines)


# ---- command line ------------------------------------------------------------------------------------------


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", action="append", choices=PROGRAMS, help="only this workload; may be repeated")
    parser.add_argument("--gapbs", type=Path, metavar="DIR", help="also the GAP benchmark suite in this folder")
    parser.add_argument("--scale", type=int, default=8, help="2^N vertices for the GAP benchmark suite (default: 8)")
    parser.add_argument("--memlens", default="memlens", help="the memlens command (default: from PATH)")
    parser.add_argument("--output", type=Path, help="write the page there (default: stdout)")
    parser.add_argument("--json", type=Path, help="write every figure there")
    parser.add_argument("--from", dest="earlier", type=Path, metavar="FILE", help="render what an earlier --json wrote")
    parser.add_argument("--check", action="store_true", help="exit 1 when a difference is not explained")
    return parser.parse_args(arguments)


def require_tools(memlens: list[str]) -> None:
    if shutil.which(memlens[0]) is None:
        raise BenchmarkError(f"no command {memlens[0]}: give it with --memlens, or run make bench-accuracy")
    if platform.machine() != "x86_64":
        raise BenchmarkError(f"lackey is the oracle for x86-64; this machine is {platform.machine()}")
    packages = {"musl-gcc": "musl-tools", "valgrind": "valgrind", "qemu-x86_64": "qemu-user", "readelf": "binutils"}
    missing = [package for tool, package in packages.items() if shutil.which(tool) is None]
    if missing:
        raise BenchmarkError(f"{len(missing)} tools are missing: sudo apt-get install {' '.join(missing)}")


def measure(memlens: list[str], options: argparse.Namespace) -> tuple[list[Comparison], list[Comparison]]:
    """Our workloads, and those of the suite."""
    with tempfile.TemporaryDirectory(prefix="memlens-accuracy-") as name:
        folder = Path(name)
        ours = [
            compare(memlens, build(workload, folder), PROGRAMS[workload], folder, same_output=True)
            for workload in options.only or PROGRAMS
        ]
        suite = []
        for kernel in GAPBS if options.gapbs else ():
            program = gapbs_program(kernel, options.gapbs, folder)
            suite.append(compare(memlens, program, f"-g {options.scale} -n 1", folder, same_output=False))
    return ours, suite


def read_earlier(path: Path) -> tuple[dict[str, str], str, list[Comparison], list[Comparison]]:
    """Machine, arguments and comparisons of an earlier run."""

    def comparison(entry: dict[str, Any]) -> Comparison:
        found = entry.pop("differences")
        differences = None if found is None else [
            Difference(d["function"], tuple(d["counted"]), tuple(d["expected"])) for d in found
        ]  # fmt: skip
        return Comparison(
            entry["program"], entry["arguments"], tuple(entry["counted"]), tuple(entry["expected"]), differences
        )

    try:
        document = json.loads(path.read_text())
        kinds = ([comparison(entry) for entry in document[kind]] for kind in ("workloads", "suite"))
        return document["machine"], document["arguments"], *kinds
    except (OSError, ValueError, KeyError) as error:
        raise BenchmarkError(f"--from {path}: {type(error).__name__}: {error}") from error


def main(arguments: list[str] | None = None) -> int:
    options = parse_arguments(arguments)
    memlens = shlex.split(options.memlens)
    os.environ["LC_ALL"] = "C"
    given = "".join(f" --only {workload}" for workload in options.only or ())
    given += f" --gapbs DIR --scale {options.scale}" if options.gapbs else ""
    try:
        if options.earlier:
            machine, given, ours, suite = read_earlier(options.earlier)
        else:
            require_tools(memlens)
            machine = this_machine(memlens)
            ours, suite = measure(memlens, options)
    except BenchmarkError as error:
        say(f"error: {error}")
        return 2
    page = render_page(machine, ours, suite, arguments=given, scale=options.scale)
    write_page(page, options.output)
    if options.json:
        document = {
            "machine": machine,
            "arguments": given,
            "workloads": [dataclasses.asdict(c) for c in ours],
            "suite": [dataclasses.asdict(c) for c in suite],
        }
        options.json.write_text(json.dumps(document, indent=1) + "\n")
    failed = [c.program for c in (*ours, *suite) if c.unexplained]
    for program in failed:
        say(f"FAILS: {program} differs by more than {LIMIT_PERCENT} % without an explanation")
    return 1 if options.check and failed else 0


if __name__ == "__main__":
    sys.exit(main())
