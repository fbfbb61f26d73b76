"""Builds and runs the fuzz targets of tests/fuzz: `make fuzz`, and a short run of each in `make test` (tests/whole/test_fuzz.py).

    tools/fuzz.py build                          build the targets in build/fuzz
    tools/fuzz.py run [--seconds N] [--jobs N] [TARGET…]
                                                 fuzz each, write build/fuzz/results.json; exit status 1 on a finding
    tools/fuzz.py check TARGET… [--seconds N]    run the kept inputs and then N seconds
    tools/fuzz.py corpus [TARGET…]               take what the runs found into the kept corpus, minimised
    tools/fuzz.py page                           write docs/fuzzing.md from build/fuzz/results.json

A target's kept inputs lie in tests/fuzz/corpus/TARGET, inputs of former findings in tests/fuzz/regressions/TARGET, what a run found
in build/fuzz/corpus/TARGET: the next run begins there.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ROOT / "tests" / "fuzz"
BUILD = ROOT / "build" / "fuzz"
QUICK = ROOT / "build" / "fuzz-quick"
"""Not optimised: compiled in half of the time, for the second that a test fuzzes."""
KEPT, REGRESSIONS, GROWN = SOURCES / "corpus", SOURCES / "regressions", BUILD / "corpus"
RESULTS = BUILD / "results.json"
RSS_MIB, INPUT_SECONDS, STATUS_OF_TIMEOUT = 2048, 10, 70
CORPUS_BYTES_A_TARGET = 40_000
CHECK_RUNS = 6_000
"""Of a check: fast targets are done in a moment, and all together take 20 s."""
# Longest input that is made: programs of operations need little room, ELF files more.
LONGEST = {
    "symbols": 32_768,
    "variables": 32_768,
    "split_dwarf": 32_768,
    "unwind": 100_000,
    "chunks": 16_384,
    "locality": 2_048,
}
PACKAGES = "clang-19 libclang-rt-19-dev llvm-19"
COMPILERS = (("clang-19", "clang++-19"), ("clang", "clang++"), ("clang-14", "clang++-14"))
LEAKS = "detect_leaks=1:allocator_may_return_null=1:detect_stack_use_after_return=0"


class FuzzError(Exception):
    pass


@dataclass(frozen=True)
class Used:
    seconds: float
    cpu_s: float
    """Less than `seconds` on a machine that others use, too: rates are by this."""
    rss_mib: int


def targets() -> list[str]:
    return sorted(path.stem.removeprefix("fuzz_") for path in SOURCES.glob("fuzz_*.c*"))


def compilers() -> tuple[str, str]:
    """A clang that has the fuzzer's runtime and compiles C++20."""
    program = (
        '#include <span>\nextern "C" int LLVMFuzzerTestOneInput(const unsigned char*, unsigned long) { return 0; }\n'
    )
    for c, cxx in COMPILERS:
        if not shutil.which(c) or not shutil.which(cxx):
            continue
        with tempfile.TemporaryDirectory() as folder:
            command = [cxx, "-std=c++20", "-fsanitize=fuzzer,address,undefined", "-x", "c++", "-", "-o", f"{folder}/a"]
            if subprocess.run(command, input=program.encode(), capture_output=True, check=False).returncode == 0:
                return c, cxx
    raise FuzzError(f"no clang with the fuzzer's runtime; type: apt install {PACKAGES}")


def build(chosen: list[str] | None = None, *, quick: bool = False) -> None:
    folder = QUICK if quick else BUILD
    if not (folder / "build.ninja").exists():
        c, cxx = compilers()
        folder.mkdir(parents=True, exist_ok=True)
        configure = ["cmake", "-S", str(SOURCES), "-B", str(folder), "-G", "Ninja", f"-DMEMLENS_FUZZ_QUICK={quick:d}"]
        _logged([*configure, f"-DCMAKE_C_COMPILER={c}", f"-DCMAKE_CXX_COMPILER={cxx}"])
    _logged(["cmake", "--build", str(folder), "--", *(f"fuzz_{name}" for name in chosen or targets())])


def _logged(command: list[str]) -> None:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    if done.returncode != 0:
        raise FuzzError(f"{' '.join(command[:3])} failed:\n{done.stdout.decode(errors='replace')[-4000:]}")


def _environment() -> dict[str, str]:
    symbolizer = (
        shutil.which("llvm-symbolizer-19") or shutil.which("llvm-symbolizer") or shutil.which("llvm-symbolizer-14")
    )
    made = os.environ | {"ASAN_OPTIONS": LEAKS, "UBSAN_OPTIONS": "print_stacktrace=1"}
    return made | {"ASAN_SYMBOLIZER_PATH": symbolizer} if symbolizer else made


def _folders(name: str) -> list[str]:
    return [str(path / name) for path in (KEPT, REGRESSIONS) if (path / name).is_dir()]


def _command(
    name: str, seconds: int, artifacts: Path, *, folder: Path = BUILD, input_seconds: int = INPUT_SECONDS
) -> list[str]:
    command = [
        str(folder / f"fuzz_{name}"), f"-rss_limit_mb={RSS_MIB}", f"-malloc_limit_mb={RSS_MIB}", f"-timeout={input_seconds}",
        f"-max_total_time={seconds}", f"-max_len={LONGEST.get(name, 4096)}", "-print_final_stats=1", "-reload=0", f"-artifact_prefix={artifacts}/",
    ]  # fmt: skip
    dictionary = SOURCES / f"{name}.dict"
    if dictionary.exists():
        command.append(f"-dict={dictionary}")
    return command


def _measured(command: list[str], log: Path) -> tuple[int, Used]:
    begun = time.monotonic()
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=_environment())
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    return process.returncode, Used(time.monotonic() - begun, usage.ru_utime + usage.ru_stime, usage.ru_maxrss >> 10)


def run_one(name: str, seconds: int) -> dict[str, object]:
    """Fuzzes one target; what it found new stays for the next run."""
    grown, artifacts, log = GROWN / name, BUILD / "findings" / name, BUILD / f"{name}.log"
    grown.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(artifacts, ignore_errors=True)
    artifacts.mkdir(parents=True)
    total, executions, edges, all_edges = Used(0, 0, 0), 0, 0, 0
    while True:
        left = max(1, round(seconds - total.seconds))
        status, used = _measured([*_command(name, left, artifacts), str(grown), *_folders(name)], log)
        total = Used(total.seconds + used.seconds, total.cpu_s + used.cpu_s, max(total.rss_mib, used.rss_mib))
        text = log.read_text(errors="replace")
        executed = re.search(r"stat::number_of_executed_units: (\d+)", text)
        executions += int(executed[1]) if executed else 0
        edges = max([edges, *map(int, re.findall(r"\bcov: (\d+)", text))])
        loaded = re.search(r"(\d+) inline 8-bit counters", text)
        all_edges = int(loaded[1]) if loaded else all_edges
        if status == 0 or not _was_only_waiting(name, artifacts) or total.seconds >= seconds:
            break
    found = sorted(str(path.relative_to(ROOT)) for path in artifacts.iterdir())
    said = re.findall(r"^(?:==\d+==\s*ERROR: .*|SUMMARY: .*|.*runtime error: .*|property failed: .*)$", text, re.M)
    findings = len(found) if found or status == STATUS_OF_TIMEOUT else int(status != 0)
    return {
        "target": name, "seconds": round(total.seconds), "cpu_s": round(total.cpu_s), "executions": executions,
        "per_cpu_second": round(executions / max(total.cpu_s, 1e-9)), "rss_mib": total.rss_mib, "edges": edges, "all_edges": all_edges,
        "findings": findings, "files": found, "said": said[:3], "date": datetime.date.today().isoformat(),
    }  # fmt: skip


def _was_only_waiting(name: str, artifacts: Path) -> bool:
    """libFuzzer counts the time of an input by the clock: on a busy machine one that takes half a second may seem to take ten."""
    found = list(artifacts.iterdir())
    if not found or any(not path.name.startswith(("timeout-", "slow-unit-")) for path in found):
        return False
    for path in found:
        command = [str(BUILD / f"fuzz_{name}"), f"-rss_limit_mb={RSS_MIB}", "-timeout=600", str(path)]
        status, used = _measured(command, BUILD / f"{name}.again.log")
        if status != 0 or used.cpu_s >= INPUT_SECONDS:
            return False
        path.unlink()
    return True


def run(chosen: list[str], seconds: int, jobs: int) -> int:
    build(chosen)
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    failed = 0
    print(f"{'target':<16}{'executions':>12}{'a CPU second':>14}{'edges':>8}{'of':>8}{'findings':>10}", flush=True)
    with ThreadPoolExecutor(jobs) as pool:
        for done in as_completed([pool.submit(run_one, name, seconds) for name in chosen]):
            one = done.result()
            name = str(one["target"])
            results[name] = one
            RESULTS.write_text(json.dumps(results, indent=1) + "\n")
            print(
                f"{name:<16}{one['executions']:>12,}{one['per_cpu_second']:>14,}{one['edges']:>8,}{one['all_edges']:>8,}{one['findings']:>10}", flush=True
            )  # fmt: skip
            failed += bool(one["findings"])
            _tell(one)
    return int(failed != 0)


def _tell(one: dict[str, object]) -> None:
    if not one["findings"]:
        return
    for line in one["said"]:  # type: ignore[attr-defined]
        print(f"  {line}")
    for file in one["files"]:  # type: ignore[attr-defined]
        print(f"  again: build/fuzz/fuzz_{one['target']} -rss_limit_mb={RSS_MIB} {file}")
    if not one["files"]:
        print(f"  see build/fuzz/{one['target']}.log")


def check(name: str, seconds: int) -> str:
    """The kept inputs, then a short run from them that keeps nothing; what failed, "" for nothing."""
    with tempfile.TemporaryDirectory() as folder:
        scratch, artifacts = Path(folder) / "corpus", QUICK / "findings" / name
        scratch.mkdir()
        artifacts.mkdir(parents=True, exist_ok=True)  # what fails stays there
        kept = _folders(name)
        # By the clock, so generous: the machine may be busy.
        command = [*_command(name, seconds, artifacts, folder=QUICK, input_seconds=60), str(scratch), *kept]
        command.append(f"-runs={CHECK_RUNS if seconds else 0}")
        # By way of a shell that forks: over exec the kernel keeps the peak RSS of the caller, which the target takes for its own.
        command = ["sh", "-c", '"$@"; exit $?', "sh", *command]
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=_environment(), check=False
        )
        text = done.stdout.decode(errors="replace")
        return "" if done.returncode == 0 else text[-6000:]


def keep(chosen: list[str]) -> None:
    """Kept and grown inputs, minimised: small ones first, until a target has as many bytes as it may keep in git."""
    build(chosen)
    for name in chosen:
        with tempfile.TemporaryDirectory() as folder:
            merged = Path(folder) / "merged"
            merged.mkdir()
            grown = [str(GROWN / name)] if (GROWN / name).is_dir() else []
            command = [*_command(name, 0, BUILD), "-merge=1", str(merged), *_folders(name), *grown]
            subprocess.run(
                command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=_environment(), check=False
            )
            seeds = sorted((KEPT / name).glob("seed-*")) if (KEPT / name).is_dir() else []
            room = CORPUS_BYTES_A_TARGET - sum(path.stat().st_size for path in seeds)
            for path in (KEPT / name).glob("found-*"):
                path.unlink()
            (KEPT / name).mkdir(parents=True, exist_ok=True)
            taken = 0
            for path in sorted(merged.iterdir(), key=lambda one: (one.stat().st_size, one.name)):
                if path.stat().st_size > room:
                    break
                room -= path.stat().st_size
                shutil.copyfile(path, KEPT / name / f"found-{path.name[:12]}")
                taken += 1
            print(f"{name}: {len(seeds)} seeds, {taken} of {len(list(merged.iterdir()))} found inputs kept")


def page() -> None:
    results = json.loads(RESULTS.read_text())
    lines = [
        "# Fuzzing", "",
        "Every native decoder of bytes from outside has a libFuzzer target in `tests/fuzz`, built with AddressSanitizer and UBSan, with a bound of "
        f"{RSS_MIB} MiB and {INPUT_SECONDS} s for one input. `make fuzz` runs each for 10 minutes (`FUZZ_SECONDS=`, `FUZZ_TARGETS=`), `make test` runs the kept "
        "inputs and a second more. Written by `tools/fuzz.py page` from the last run of each target, on a machine of two cores that was used otherwise, too.", "",
        "| target | reads | seconds | CPU seconds | executions | a CPU second | edges covered | of | findings | date |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|---|",
    ]  # fmt: skip
    for name in targets():
        one = results.get(name)
        reads = _reads(name)
        if one is None or "cpu_s" not in one:
            lines.append(f"| {name} | {reads} | not run | | | | | | | |")
            continue
        lines.append(
            f"| {name} | {reads} | {one['seconds']} | {one['cpu_s']} | {one['executions']:,} | {one['per_cpu_second']:,} | {one['edges']:,} | {one['all_edges']:,} "
            f"| {one['findings']} | {one['date']} |"
        )
    lines += [
        "", "`of`: edges in what the target links, most of which is no decoder. Findings are those of that run; inputs of former findings are "
        "kept in `tests/fuzz/regressions` and run in `make test`.", "",
    ]  # fmt: skip
    (ROOT / "docs" / "fuzzing.md").write_text("\n".join(lines))


def _reads(name: str) -> str:
    """The first sentence of a target's comment."""
    source = next(SOURCES.glob(f"fuzz_{name}.c*")).read_text()
    words = " ".join(line.lstrip("/* ").rstrip() for line in source.splitlines()[:3])
    return re.split(r"[.:](?:\s|$)", words, maxsplit=1)[0]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("command", choices=("build", "run", "check", "corpus", "page", "list"))
    parser.add_argument("targets", nargs="*")
    parser.add_argument("--seconds", type=int, default=None)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="targets at a time (one a CPU)")
    options = parser.parse_intermixed_args()
    unknown = set(options.targets) - set(targets())
    if unknown:
        parser.error(f"no target {', '.join(sorted(unknown))}; there are {', '.join(targets())}")
    chosen = options.targets or targets()
    try:
        if options.command == "list":
            print("\n".join(targets()))
        elif options.command == "build":
            build(chosen)
        elif options.command == "run":
            return run(chosen, 600 if options.seconds is None else options.seconds, max(1, options.jobs))
        elif options.command == "check":
            build(chosen, quick=True)
            failures = {name: said for name in chosen if (said := check(name, options.seconds or 0))}
            for name, said in failures.items():
                print(f"{name}:\n{said}")
            return int(bool(failures))
        elif options.command == "corpus":
            keep(chosen)
        else:
            page()
    except FuzzError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
