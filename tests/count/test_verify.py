"""`memlens verify`: exact counts of regions with a closed form, claims that are off by a known percentage, bad input."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from builders import CaptureBuilder
from conftest import run_memlens, workload_path
from emulate_tools import build
from hypothesis import given
from hypothesis import strategies as st
from test_emulate_exact import need_emulation

import memlens
from memlens.capture.model.sections import read_elf
from memlens.capture.store.streams import decode_pc_stream

N_ITEMS, N_ITERATIONS = 3000, 3
STACK_KNOWN, ATOMIC = 1, 8

# Outside the stack, one execution: (bytes of a load, loads of each element), (bytes of a store, stores of each element).
KERNELS = {
    "kernel_copy": ((8, 1), (8, 1)),
    "kernel_sum": ((4, 2), (0, 0)),  # twice: in the regions `sum` and `inner`
    "kernel_fill": ((0, 0), (2, 1)),
    "kernel_lookup": ((6, 2), (0, 0)),  # 4 and 8 bytes
    "kernel_update": ((8, 1), (8, 1)),
    "kernel_outer": ((1, 1), (0, 0)),
}
ANNOTATED = {
    "copy": (8, 8), "sum": (4, 0), "fill": (0, 2), "lookup": (12, 0), "update": (8, 8), "outer": (1, 0), "inner": (4, 0),
}  # fmt: skip
ANNOTATION_BYTES = 512  # of an execution: far more than begin and end access themselves


def verify(*arguments: str | Path, status: int = 0) -> dict[str, Any]:
    done = run_memlens("verify", "--json", *arguments, timeout=300)
    assert done.returncode == status, done.stderr
    return dict(json.loads(done.stdout))


def rows_of(document: dict[str, Any], claim: int = 0) -> dict[tuple[str, str, str], dict[str, Any]]:
    rows = document["claims"][claim]["tables"]["by_region"]
    return {(row["region"], row["scope"], row["quantity"]): row for row in rows}


def hand_made(regions: dict[str, dict[str, int]], *, flags: int = STACK_KNOWN) -> CaptureBuilder:
    builder = CaptureBuilder()
    for number, (name, fields) in enumerate(regions.items()):
        region = builder.string(name) if name else 0
        builder.add("code_count", pc=0x1000 + 8 * number, region=region, thread=100, flags=flags, **fields)
    return builder


EXACT = {
    "copy": {"loads": 1000, "stores": 500, "load_bytes": 8000, "store_bytes": 4000, "stack_loads": 200, "stack_load_bytes": 1600},
    "sum": {"loads": 400, "stores": 0, "load_bytes": 3200, "store_bytes": 0},
}  # fmt: skip


def scaled(fields: dict[str, int], percent: int) -> dict[str, int]:
    return {name: value * (100 + percent) // 100 for name, value in fields.items()}


# ---- closed forms ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_threads", [pytest.param(1, marks=pytest.mark.slow), 4])
def test_functions_as_regions_have_exactly_the_closed_form(n_threads: int, tmp_path: Path) -> None:
    need_emulation("x86_64")
    program = workload_path("region_counts")
    words = ["--n", str(N_ITEMS), "--threads", str(n_threads), "--iterations", str(N_ITERATIONS)]
    options = ["--functions", "^kernel_", "--keep", str(tmp_path / "kept")]
    document = verify(*options, program, program, "--", *words)
    found = rows_of(document)
    n_elements = n_threads * N_ITERATIONS * N_ITEMS
    for kernel, ((load_bytes, n_loads), (store_bytes, n_stores)) in KERNELS.items():
        expected = {
            "loads": n_loads * n_elements, "stores": n_stores * n_elements,
            "read_bytes": load_bytes * n_loads * n_elements, "written_bytes": store_bytes * n_stores * n_elements,
        }  # fmt: skip
        for quantity, value in expected.items():
            row = found[kernel, "heap_and_global", quantity]
            assert (row["exact"], row["claimed"], row["error_percent"]) == (value, value, 0.0), (kernel, quantity)
    assert "it has no counters" in document["claims"][0]["how"]
    assert memlens.open(tmp_path / "kept" / "exact.memlens").complete


@pytest.mark.parametrize("n_threads", [pytest.param(1, marks=pytest.mark.slow), 4])
def test_annotated_regions_have_the_closed_form_and_their_annotations(n_threads: int, tmp_path: Path) -> None:
    need_emulation("x86_64")
    program = workload_path("region_counts")
    words = ["--n", str(N_ITEMS), "--threads", str(n_threads), "--iterations", str(N_ITERATIONS)]
    document = verify(program, program, "--", *words)
    found = rows_of(document)
    n_runs = n_threads * N_ITERATIONS
    assert {region for region, _, _ in found} == set(ANNOTATED)
    for region, (read_bytes, written_bytes) in ANNOTATED.items():
        for quantity, bytes_each in (("read_bytes", read_bytes), ("written_bytes", written_bytes)):
            more = found[region, "heap_and_global", quantity]["exact"] - n_runs * N_ITEMS * bytes_each
            assert 0 <= more <= n_runs * ANNOTATION_BYTES, (region, quantity)
    by_category = {(row["region"], row["category"]): row for row in document["claims"][0]["tables"]["explained"]}
    atomic = by_category["update", "atomic operations"]
    assert (atomic["read_bytes"], atomic["written_bytes"]) == (8 * n_runs * N_ITEMS, 8 * n_runs * N_ITEMS)
    assert by_category["copy", "stack"]["read_bytes"] > 0
    assert any(row["category"] == "library" for row in document["claims"][0]["tables"]["explained"])


def test_constant_pool_loads_are_estimated_near_the_closed_form() -> None:
    need_emulation("x86_64")
    program = workload_path("region_counts")
    n_items = 50_000
    document = verify("--functions", "^kernel_lookup$", program, program, "--", "--n", str(n_items))
    by_category = {(row["region"], row["category"]): row for row in document["claims"][0]["tables"]["explained"]}
    pool = by_category["kernel_lookup", "constant pool"]
    assert pool["estimated"] and pool["standard_error_bytes"] is not None
    # One instruction loads nothing but constants: its share is certain, however few of its loads were recorded.
    assert pool["read_bytes"] == 8 * n_items


def test_without_regions_the_whole_program_is_one(tmp_path: Path) -> None:
    need_emulation("x86_64")
    program = workload_path("pointer_chase")
    document = verify(program, program, "--", "--mib", "1", "--iterations", "1")
    assert document["claims"][0]["figures"]["regions"] == 1
    row = rows_of(document)["(whole program)", "heap_and_global", "read_bytes"]
    # Two runs of one program: what our own library makes the C library do at the start may take another way.
    assert row["exact"] > 8 * 16384 and abs(row["error_percent"]) < 1


# ---- claims that are off -----------------------------------------------------------------------------------


def test_a_claim_that_is_off_has_exactly_that_error(tmp_path: Path) -> None:
    exact = hand_made(EXACT).write(tmp_path / "exact.memlens")
    claim = hand_made({name: scaled(fields, 5) for name, fields in EXACT.items()}).write(tmp_path / "claim.memlens")
    document = verify(exact, claim)
    found = rows_of(document)
    assert all(row["error_percent"] in (5.0, 0.0) for row in found.values())
    row = found["copy", "heap_and_global", "read_bytes"]
    assert (row["exact"], row["claimed"], row["error_percent"]) == (6400, 6720, 5.0)
    assert found["copy", "all", "read_bytes"]["exact"] == 8000
    assert found["sum", "all", "written_bytes"]["error_percent"] == 0.0
    summary = {(row["scope"], row["quantity"]): row for row in document["claims"][0]["tables"]["summary"]}
    assert summary["all", "read_bytes"]["mean_error_percent"] == 5.0
    assert summary["all", "written_bytes"]["mean_error_percent"] == 2.5
    assert summary["all", "written_bytes"]["max_error_percent"] == 5.0
    assert summary["all", "written_bytes"]["worst_region"] == "copy"
    assert summary["all", "loads"]["total_error_percent"] == 5.0


def test_several_claims_are_judged_each_and_shown(tmp_path: Path) -> None:
    exact = hand_made(EXACT).write(tmp_path / "exact.memlens")
    claims = [
        hand_made({name: scaled(fields, percent) for name, fields in EXACT.items()}).write(
            tmp_path / f"{percent}.memlens"
        )
        for percent in (-10, 20)
    ]
    document = verify(exact, *claims)
    assert [rows_of(document, n)["sum", "all", "loads"]["error_percent"] for n in (0, 1)] == [-10.0, 20.0]
    done = run_memlens("verify", exact, *claims)
    assert done.returncode == 0, done.stderr
    assert "-10.00 %" in done.stdout and "+20.00 %" in done.stdout and "bytes written" in done.stdout


def test_fail_above_is_a_status_for_ci(tmp_path: Path) -> None:
    exact = hand_made(EXACT).write(tmp_path / "exact.memlens")
    claim = hand_made({name: scaled(fields, 5) for name, fields in EXACT.items()}).write(tmp_path / "claim.memlens")
    assert verify("--fail-above", "5", exact, claim)["failed"] == []
    document = verify("--fail-above", "4.9%", exact, claim, status=1)
    assert {(row["region"], row["quantity"]) for row in document["failed"]} == {
        ("copy", "read_bytes"), ("copy", "written_bytes"), ("sum", "read_bytes"),
    }  # fmt: skip
    done = run_memlens("verify", "--fail-above", "1", exact, claim)
    assert done.returncode == 1 and "failed" in done.stdout and "limit 1 %" in done.stdout


def test_a_region_of_one_side_only_is_listed_and_fails(tmp_path: Path) -> None:
    exact = hand_made(EXACT).write(tmp_path / "exact.memlens")
    claim = hand_made({"copy": EXACT["copy"], "extra": EXACT["sum"]}).write(tmp_path / "claim.memlens")
    document = verify("--fail-above", "50", exact, claim, status=1)
    figures, found = document["claims"][0]["figures"], rows_of(document)
    assert figures["regions_not_claimed"] == ["sum"] and figures["regions_not_executed"] == ["extra"]
    assert found["sum", "all", "read_bytes"]["error_percent"] == -100.0
    extra = found["extra", "all", "read_bytes"]
    assert extra["error_percent"] is None and extra["unbounded"]
    assert {row["region"] for row in document["failed"]} == {"sum", "extra"}
    text = run_memlens("verify", exact, claim).stdout
    assert "not in the claim" in text and "only in the claim" in text and "unbounded" in text
    assert "without bound in 1 region that" in " ".join(text.split())


def test_what_lies_outside_regions_is_shown_and_not_judged(tmp_path: Path) -> None:
    outside = {"loads": 10, "load_bytes": 80}
    exact = hand_made({**EXACT, "": outside}).write(tmp_path / "exact.memlens")
    claim = hand_made(EXACT).write(tmp_path / "claim.memlens")
    document = verify("--fail-above", "0", exact, claim)
    assert document["claims"][0]["figures"]["outside"]["read_bytes"] == 80


def test_a_claim_that_does_not_know_the_stack_is_judged_by_all_accesses(tmp_path: Path) -> None:
    exact = hand_made(EXACT).write(tmp_path / "exact.memlens")
    claim = hand_made({"copy": {"loads": 1000, "stores": 500, "load_bytes": 8000, "store_bytes": 4000}, "sum": EXACT["sum"]},
                      flags=0).write(tmp_path / "claim.memlens")  # fmt: skip
    document = verify("--fail-above", "0", "--judge", "all", exact, claim)
    found = rows_of(document)
    assert found["copy", "heap_and_global", "loads"]["claimed"] is None
    assert found["copy", "all", "loads"]["error_percent"] == 0.0
    assert any("does not separate the stack" in note["text"] for note in document["claims"][0]["quality"]["notes"])
    verify("--fail-above", "0", exact, claim, status=1)  # what cannot be judged has not passed


def test_atomics_and_what_was_not_seen_are_explained(tmp_path: Path) -> None:
    builder = hand_made({"copy": EXACT["copy"]})
    builder.add("code_count", pc=0x9000, region=builder.string("copy"), loads=7, stores=7, load_bytes=56, store_bytes=56,
                flags=STACK_KNOWN | ATOMIC)  # fmt: skip
    builder.add("code_count", pc=0x9100, region=builder.string("copy"), unseen=11, flags=16)
    builder.add("unseen", executions=2, name=builder.string("/bin/helper"), cause=1)
    exact = builder.write(tmp_path / "exact.memlens")
    rows = verify(exact, exact)["claims"][0]["tables"]["explained"]
    by_category = {(row["region"], row["category"]): row for row in rows}
    assert by_category["copy", "atomic operations"]["read_bytes"] == 56
    assert by_category["copy", "stack"]["read_bytes"] == 1600
    assert by_category["copy", "unseen"]["executions"] == 11
    assert "/bin/helper" in by_category[None, "unseen"]["what"]


# ---- bad input -------------------------------------------------------------------------------------------------


def test_bad_input_is_one_sentence_with_a_remedy(tmp_path: Path) -> None:
    exact = hand_made(EXACT).write(tmp_path / "exact.memlens")
    empty = CaptureBuilder().fault(1, 1).write(tmp_path / "empty.memlens")
    blocks = CaptureBuilder()
    blocks.add("block_count", value=5, module=blocks.string("abcd1234"))
    blocks.write(tmp_path / "blocks.memlens")
    (tmp_path / "plain.txt").write_text("no program")
    cases: list[tuple[list[str | Path], int, str]] = [
        ([], 64, "no program to compare with"),
        ([exact], 64, "no claim"),
        ([exact, tmp_path / "none.memlens"], 65, "there is no capture"),
        ([tmp_path / "no-such-program", exact], 127, "no-such-program"),
        ([tmp_path / "plain.txt", exact], 126, "plain.txt"),
        ([tmp_path, exact], 65, "not a capture"),
        ([exact, empty], 68, "no counts of accesses"),
        ([exact, tmp_path / "blocks.memlens"], 68, "static tables"),
        (["--keep", tmp_path, exact, exact], 73, "captures already"),
        (["--keep", exact / "meta.json" / "x", exact, exact], 73, "cannot make"),
        (["--fail-above", "-3", exact, exact], 64, "percentage"),
        (["--fail-above", "much", exact, exact], 64, "percentage"),
    ]
    for arguments, status, text in cases:
        done = run_memlens("verify", *arguments)
        assert done.returncode == status, (arguments, done.stderr)
        assert text in done.stderr and "Traceback" not in done.stderr and "bug in memlens" not in done.stderr, (
            done.stderr
        )
    assert "abcd1234" in run_memlens("verify", exact, tmp_path / "blocks.memlens").stderr


def test_a_program_that_fails_is_said_to_have_failed() -> None:
    need_emulation("x86_64")
    program = workload_path("region_counts")
    document = verify(program, program, "--", "--n", "0")
    assert "ended with status 1" in document["exact"]["how"]


KILLED = """
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>
static volatile long cells[64];
int main(int n, char **words) {
  int number = atoi(words[n - 1]);
  if (number == SIGXCPU) { struct rlimit limit = {1, 60}; setrlimit(RLIMIT_CPU, &limit); }
  for (long i = 0; i < 1000; i++) cells[i % 64] += i;
  while (number == SIGXCPU) cells[0]++;
  kill(getpid(), number);
  return 0;
}
"""


@pytest.mark.parametrize(
    ("number", "name", "remedy"),
    [
        (signal.SIGXCPU, "SIGXCPU", "ulimit -t"),
        (signal.SIGKILL, "SIGKILL", "limit of memory or of time"),
        (signal.SIGSEGV, "SIGSEGV", "run the program alone"),
    ],
)
def test_a_program_that_is_killed_is_refused_with_its_signal(
    number: int, name: str, remedy: str, tmp_path: Path
) -> None:
    """The counts up to a kill are no claim and no judge: no error is printed, and the exit status says so."""
    need_emulation("x86_64")
    program = build(tmp_path, "killed", KILLED)
    ends = tmp_path / "ends.memlens"
    hand_made(EXACT).open(ends)
    for words in ([program, ends], [ends, program]):
        done = run_memlens("verify", *words, "--", str(int(number)), timeout=300)
        assert done.returncode == 75 and not done.stdout, (done.stdout, done.stderr)
        assert f"killed was ended by signal {int(number)} ({name}) after" in done.stderr and remedy in done.stderr
    assert "killed was" not in run_memlens("verify", program, ends, "--", "0").stderr


def test_a_capture_of_a_killed_program_is_refused_on_either_side(tmp_path: Path) -> None:
    whole, killed = hand_made(EXACT), hand_made(EXACT)
    killed.meta["wait_status"] = int(signal.SIGKILL)
    whole.meta["wait_status"] = 3 << 8  # it said that it failed, at its end
    whole.open(tmp_path / "whole.memlens")
    killed.open(tmp_path / "killed.memlens")
    for sides in (("whole", "killed"), ("killed", "whole")):
        done = run_memlens("verify", *[tmp_path / f"{side}.memlens" for side in sides])
        assert done.returncode == 75 and not done.stdout
        assert "killed.memlens was ended by signal 9 (SIGKILL)" in done.stderr and "record it again" in done.stderr
    assert run_memlens("verify", *[tmp_path / "whole.memlens"] * 2).returncode == 0


# ---- the parts ---------------------------------------------------------------------------------------------------


def encode(accesses: list[tuple[int, int, int, int]]) -> bytes:
    """The stream as FORMAT.md has it, one access at a time."""

    def varint(value: int) -> bytes:
        out = bytearray()
        while value >= 128:
            out.append(value & 127 | 128)
            value >>= 7
        return bytes([*out, value])

    def zigzag(difference: int) -> int:
        signed = (difference + 2**63) % 2**64 - 2**63
        return (signed << 1 ^ signed >> 63) % 2**64

    previous, last, stream = 0, [0] * 1024, b""
    for pc, address, n_bytes, operation in accesses:
        stream += varint(zigzag(pc - previous)) + varint(zigzag(address - last[pc % 1024]))
        stream += varint(n_bytes * 4 + operation)
        previous, last[pc % 1024] = pc, address
    return stream


WORD = st.integers(0, 2**64 - 1)


@given(st.lists(st.tuples(WORD | st.integers(0, 3000), WORD, st.integers(0, 64), st.integers(1, 3)), max_size=40))
def test_streams_decode_to_what_was_encoded(accesses: list[tuple[int, int, int, int]]) -> None:
    columns = decode_pc_stream(encode(accesses), len(accesses))
    assert (
        list(zip(*(columns[name].tolist() for name in ("pc", "address", "bytes", "operation")), strict=True))
        == accesses
    )


@pytest.mark.parametrize("stream", ["80", "8080808080808080808001 00 21", "00 00 20", "00 00 21 00"])
def test_a_damaged_stream_is_refused(stream: str) -> None:
    with pytest.raises(ValueError):
        decode_pc_stream(bytes.fromhex(stream), 1)


def test_sections_are_those_that_readelf_lists() -> None:
    program = workload_path("region_counts")
    file = read_elf(str(program))
    assert file is not None and file.is_program
    listed = subprocess.run(["readelf", "-SW", str(program)], capture_output=True, text=True, check=True).stdout
    for section in file.sections:
        assert section.name in listed and f"{section.address:016x}" in listed
    assert {".rodata", ".data"} <= {section.name for section in file.sections}
    assert read_elf(str(program.parent / "no-such-file")) is None and read_elf(__file__) is None


def test_outlined_parallel_regions_have_one_name_whatever_compiler_named_them(tmp_path: Path) -> None:
    import doctest

    from memlens.analyses import accuracy

    assert doctest.testmod(accuracy).failed == 0
    names = ("sum(double*) [clone ._omp_fn.0]", "sum(double*) (.omp_outlined)")
    captures = []
    for name in names:
        builder = CaptureBuilder()
        builder.code_count(0x401000, loads=10, width=8, region=name)
        captures.append(builder.open(tmp_path / f"{len(captures)}.memlens"))
    exact, claim = captures
    result = accuracy.accuracy(exact, claim=claim)
    regions = {row["region"]: row["status"] for row in result.tables["by_region"].to_pylist()}
    assert list(regions) == ["sum(double*) [clone .omp_outlined]"]
