"""Classes inferred from addresses against those that the compiler found, on programs that have both."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from builders import CaptureBuilder
from count_runs import compile_with, needs_clang

from memlens import _core
from memlens.analyses._agreement import Agreement, class_agreement
from memlens.analyses.data_locality import locality
from memlens.capture.model.locality import CLASSES, AccessClasses
from memlens.capture.reader import open_capture
from memlens.capture.store.layouts import Packer
from memlens.errors import NoDataError

WORKLOADS = Path(__file__).resolve().parents[2] / "workloads"


def inferred(addresses: list[int], windows: list[int] | None = None) -> str:
    classes = AccessClasses()
    count = len(addresses)
    pcs, stores = np.full(count, 7, dtype=np.uint64), np.zeros(count, dtype=np.uint8)
    units = None if windows is None else np.array(windows, dtype=np.uint32)
    classes.add(0, pcs, np.array(addresses, dtype=np.uint64), stores, units)
    return CLASSES[int(classes.classify(0, pcs[:1], stores[:1])[0])]


def test_a_walk_through_short_rows_is_strided() -> None:
    """Rows of 3 at random places: two of three steps are equal. Every third element alone has no step that comes again."""
    random = np.random.default_rng(1)
    rows = [int(place) * 4096 for place in random.permutation(1000)]
    assert inferred([row + 4 * i for row in rows for i in range(3)]) == "strided"
    assert inferred([row + 4 * i for row in rows for i in range(2)]) == "strided"  # 1,000 of 1,999 steps
    thirds = [address for at, row in enumerate(rows) for address in ([row, row + 4] if at % 3 == 0 else [row])]
    assert inferred(thirds) == "irregular"  # a quarter of the steps
    assert inferred(rows) == "irregular"


def test_an_address_that_an_outer_loop_moves_is_strided_by_zero() -> None:
    random = np.random.default_rng(2)
    places = [int(place) * 64 for place in random.permutation(500)]
    assert inferred([place for place in places for _ in range(8)]) == "strided"  # 7 of 8 stay
    assert inferred([place for place in places for _ in range(2)]) == "irregular"  # a node that is looked at twice
    # In windows it stays all the time, but not at one address.
    assert inferred([places[i // 5] for i in range(50)], [i // 5 for i in range(50)]) == "strided"


@needs_clang
@pytest.mark.parametrize(
    ("source", "options", "least"),
    [
        ("graph_pr.c", "--scale 11 --iterations 2", 95.0),
        ("stencil.c", "--mib 2 --iterations 1", 98.0),
        ("graph_tc.c", "--scale 9 --iterations 1", 95.0),
    ],
)
def test_what_the_compiler_calls_strided_is_inferred_as_such(
    source: str, options: str, least: float, tmp_path: Path
) -> None:
    """Of accesses that step evenly by the compiler, all but a few are inferred as strided, or as constant where the step is 0."""
    program, capture = tmp_path / "program", tmp_path / "full.memlens"
    done = compile_with("--memlens=trace", "-O2", "-g", WORKLOADS / source, "-o", program, "-pthread", "-lm", name="cc")
    assert done.returncode == 0, done.stderr
    record = [
        sys.executable,
        "-m",
        "memlens",
        "record",
        "-q",
        "--collectors",
        "trace",
        "--trace=full,on-full=wait",
        "-o",
        str(capture),
    ]
    ran = subprocess.run([*record, "--", str(program), *options.split()], capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr
    found = class_agreement(open_capture(capture))
    strided = {pair: count for pair, count in found.accesses.items() if pair[0] == "strided"}
    wrong = strided.get(("strided", "irregular"), 0)
    assert 100 * (1 - wrong / sum(strided.values())) >= least, found.accesses
    # Constant instead of strided only where the compiler says that the address stays.
    moving = [
        s
        for s in found.sites
        if s["inferred"] == "constant" and s["static"] == "strided" and s["stride_bytes"] and s["accesses"] > 100
    ]
    assert not moving, moving[:3]


def test_a_capture_without_static_classes_is_refused(tmp_path: Path) -> None:
    capture = CaptureBuilder().window(10, [(0x1000, 64 * i, 8, 1) for i in range(100)]).open(tmp_path / "a.memlens")
    with pytest.raises(NoDataError, match="no static classes"):
        class_agreement(capture)


def test_a_module_may_have_any_number(tmp_path: Path) -> None:
    """Sites of modules whose names have numbers near 2^32: told apart, without an overflow."""
    builder = CaptureBuilder()
    for number, module in enumerate((2**32 - 2, 2**31)):
        builder.records.append(("string", 0, Packer("string").pack(f"module {number}".encode(), id=module)))
        addresses = np.arange(50, dtype=np.uint64) * np.uint64(64 * number) + np.uint64(0x1000 * (number + 1))
        none32, none8 = np.zeros(0, np.uint32), np.zeros(0, np.uint8)
        stream = bytes(_core.encode_stream(np.zeros(50, np.uint64), addresses, none32, none8))
        builder.add("window", tail=stream, begin_ns=100 * number, end_ns=100 * number + 50, recorded=50, executed=50, thread=100,
                    first_executed=50 * number, period=50, encoding=1, module=module)  # fmt: skip
    row = locality(builder.open(tmp_path / "a.memlens")).tables["by_program"].to_pylist()[0]
    assert (row["constants"], row["footprint_strided"]) == (50, 50)


def test_percentages_are_of_all_accesses() -> None:
    agreement = Agreement({("strided", "strided"): 60, ("strided", "irregular"): 15, ("irregular", "irregular"): 25})
    assert agreement.agreed_percent == 85 and agreement.percent("strided", "irregular") == 15
