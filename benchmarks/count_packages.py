"""How exact compiled-in counts are on programs of others: functions of Debian source packages beside the emulator's count of a plain build.

Each package is fetched with ``apt-get source`` (deb-src must be enabled) or taken from ``--sources DIR``, built twice by one clang at -O2, plain and with
``memlens cc``, and run on the same input: natively, counting for itself, and under the emulator. Bytes outside the stack are compared function by
function, what is inlined into a function included. Work of the C library is a function of its own under the emulator: copies and comparisons that the
program counts at the call are left out of both sides.

Writes docs/accuracy-count-packages.md with ``--write``. Exit status: 0; 2 when nothing could be measured.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

from _common import BenchmarkError, say

REPOSITORY = Path(__file__).resolve().parent.parent
PAGE = REPOSITORY / "docs" / "accuracy-count-packages.md"
MIN_SHARE = 0.005
"""Of the program's bytes: functions below are summed up."""
LUA = """local t = {} for i = 1, 20000 do t[i] = (i * 7919) % 10007 end table.sort(t)
local s = {} for i = 1, 2000 do s[#s + 1] = string.format('%d:%s', t[i], tostring(i)) end
local joined = table.concat(s, ',') local n = 0 for word in joined:gmatch('%d+') do n = n + tonumber(word) end print(n)
"""

PACKAGES: dict[str, tuple[list[str], list[str], list[str]]] = {
    # package → (sources, flags, arguments); INPUT is a file of 200,000 bytes of its own source, SCRIPT the program above
    "zlib": (["*.c", "test/minigzip.c"], ["-DHAVE_UNISTD_H", "-I."], ["INPUT"]),
    "lua5.4": (["src/l*.c", "!src/luac.c", "!src/ltests.c"], ["-DLUA_USE_LINUX", "-DLUA_COMPAT_5_3", "-Isrc", "-lm", "-ldl", "-Wl,-E"], ["SCRIPT"]),
}  # fmt: skip


def run(command: list[str], folder: Path) -> str:
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, timeout=1800)
    if done.returncode:
        raise BenchmarkError(f"{' '.join(command[:6])} …: {done.stderr.strip().splitlines()[-1:] or done.returncode}")
    return done.stdout


def sources_of(package: str, folder: Path, given: Path | None) -> Path:
    place = given or folder
    if not list(place.glob(f"{package}-*/")):
        run(["apt-get", "source", "-qq", package], place)
    found = sorted(path for path in place.glob(f"{package}-*") if path.is_dir())
    if not found:
        raise BenchmarkError(f"no source of {package}: enable deb-src")
    return found[-1]


def bytes_by_function(memlens: list[str], capture: Path, sql: str) -> Counter[str]:
    rows = json.loads(run([*memlens, "query", "--json", str(capture), sql], capture.parent))
    found: Counter[str] = Counter()
    for row in rows:
        found[row["f"].split("(")[0].strip()] += int(row["b"])
    return found


def measure(memlens: list[str], package: str, folder: Path, given: Path | None) -> tuple[Counter[str], Counter[str]]:
    sources, flags, arguments = PACKAGES[package]
    root = sources_of(package, folder, given)
    left_out = {path for pattern in sources if pattern.startswith("!") for path in root.glob(pattern[1:])}
    files = sorted({p for pattern in sources if not pattern.startswith("!") for p in root.glob(pattern)} - left_out)
    out: list[Counter[str]] = []
    for name, options, how in (
        ("plain", ["--memlens=none"], ["--emulate=counts,stack"]),
        ("counted", [], ["--collectors", "count"]),
    ):
        program, capture = folder / f"{package}-{name}", folder / f"{package}-{name}.memlens"
        (folder / "lua5.4-deb-multiarch.h").write_text(
            '#define DEB_HOST_MULTIARCH "linux-gnu"\n'
        )  # which Debian's own build makes
        run(
            [*memlens, "cc", *options, "-O2", "-g", "-w", f"-I{folder}", *map(str, files), *flags, "-o", str(program)],
            root,
        )
        (folder / "INPUT").write_bytes(b"".join(path.read_bytes() for path in files)[:200_000])
        (folder / "SCRIPT").write_text(LUA)
        (folder / "INPUT.gz").unlink(missing_ok=True)
        run([*memlens, "record", "-q", "--force", "-o", str(capture), *how, "--", str(program), *arguments], folder)
        function = "coalesce(inlined_into[-1], function)"
        out.append(
            bytes_by_function(
                memlens, capture,
                f"SELECT {function} AS f, sum(load_bytes + store_bytes - stack_load_bytes - stack_store_bytes)::BIGINT AS b FROM code_counts c JOIN sites s "
                "ON c.code = s.id WHERE function IS NOT NULL GROUP BY ALL"
                if name == "plain"
                else f"SELECT {function} AS f, sum(read_bytes + written_bytes - stack_read_bytes - stack_written_bytes)::BIGINT AS b FROM site_counts "
                "WHERE kind IN ('load', 'store', 'atomic') GROUP BY ALL",
            )
        )  # fmt: skip
    return out[0], out[1]


def lines_of(package: str, exact: Counter[str], counted: Counter[str]) -> list[str]:
    both = {name for name in counted if exact.get(name)}
    total = sum(exact[name] for name in both)
    lines = []
    for name in sorted(both, key=lambda name: -exact[name]):
        if exact[name] >= MIN_SHARE * total:
            lines.append(
                f"| {package} | `{name}` | {exact[name]:,} | {counted[name]:,} | {(counted[name] - exact[name]) * 100 / exact[name]:+.2f} % |"
            )
    sums = sum(counted[name] for name in both)
    lines.append(
        f"| {package} | all {len(both)} functions | {total:,} | {sums:,} | {(sums - total) * 100 / total:+.2f} % |"
    )
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("packages", nargs="*", default=list(PACKAGES), help=f"of {', '.join(PACKAGES)}")
    parser.add_argument("--sources", type=Path, help="directory with unpacked source packages")
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.relative_to(REPOSITORY)}")
    arguments = parser.parse_args()
    memlens = [sys.executable, "-m", "memlens"]
    lines: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        for package in arguments.packages:
            try:
                exact, counted = measure(memlens, package, Path(folder), arguments.sources)
            except (BenchmarkError, subprocess.TimeoutExpired) as error:
                say(f"{package}: {error}")
                continue
            lines += lines_of(package, exact, counted)
    if not lines:
        return 2
    print("\n".join(lines))
    if arguments.write:
        PAGE.write_text(
            "# Accuracy of compiled-in counts: Debian packages\n\n<!-- written by benchmarks/count_packages.py --write; do not edit -->\n\n"
            "Bytes that functions read and write outside the stack, at -O2: counted by the program itself (`memlens cc`), beside the emulator's exact count of a\n"
            "plain build by the same compiler. Counts are IR-exact ([bandwidth.md](bandwidth.md)); what is left is what instruction selection does beyond that.\n"
            "Copies, fills and comparisons of the C library are left out of both sides: under the emulator they are functions of their own. Functions with less than\n"
            f"{MIN_SHARE:.1%} of the bytes are in the sum only.\n\n"
            f"Measured {datetime.date.today()} on {platform.machine()}.\n\n"
            "| package | function | exact bytes | counted bytes | error |\n|---|---|---:|---:|---:|\n"
            + "\n".join(lines)
            + "\n"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
