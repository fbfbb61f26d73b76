"""The graph kernels compute what simple serial algorithms compute, with each number of threads."""

from __future__ import annotations

import subprocess

import pytest
from conftest import workload_path

KERNELS = ("bfs", "bc", "cc", "cc_sv", "pr", "pr_spmv", "sssp", "tc")


def line_of(kernel: str, *options: str) -> str:
    program = workload_path(f"graph_{kernel}")
    done = subprocess.run([str(program), *options], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "graph", [("--scale", "11"), ("--scale", "10", "--degree", "2", "--uniform"), ("--scale", "2")]
)
@pytest.mark.parametrize("kernel", KERNELS)
def test_each_number_of_threads_gives_the_oracles_answer(kernel: str, graph: tuple[str, ...]) -> None:
    lines = {line_of(kernel, *graph, "--iterations", "20", "--check", "--threads", threads) for threads in "124"}
    assert len(lines) == 1


def test_another_seed_is_another_graph() -> None:
    assert line_of("tc", "--scale", "10", "--seed", "1") != line_of("tc", "--scale", "10", "--seed", "2")


def test_sweeps_until_little_changes_are_those_that_a_fixed_number_makes() -> None:
    """--converge stops at the same sweep each time, the ranks are near their limit."""
    sweeps = {}
    for kernel in ("pr", "pr_spmv"):
        first, again = (
            line_of(kernel, "--scale", "12", "--iterations", "100", "--converge", "--check") for _ in range(2)
        )
        sweeps[kernel] = int(first.split("sweeps=")[1].split()[0])
        assert first == again == line_of(kernel, "--scale", "12", "--iterations", str(sweeps[kernel]))
        few = line_of(kernel, "--scale", "12", "--iterations", str(sweeps[kernel] - 1), "--converge")
        assert f"sweeps={sweeps[kernel] - 1} " in few, "the sweep before still changed too much"
    assert all(2 < count < 40 for count in sweeps.values())
    # On a uniform graph; on a small Kronecker one the uneven start of Gauss-Seidel costs more than it gains.
    even = [
        int(
            line_of(kernel, "--scale", "14", "--iterations", "100", "--uniform", "--converge")
            .split("sweeps=")[1]
            .split()[0]
        )
        for kernel in ("pr", "pr_spmv")
    ]
    assert even[0] < even[1]
    assert line_of("cc_sv", "--scale", "12", "--converge", "--check") == line_of("cc_sv", "--scale", "12")


def test_converging_needs_one_thread() -> None:
    done = subprocess.run([workload_path("graph_pr"), "--converge", "--threads", "2"], capture_output=True, text=True)
    assert done.returncode != 0 and "--converge needs --threads 1" in done.stderr
    done = subprocess.run([workload_path("graph_tc"), "--converge"], capture_output=True, text=True)
    assert done.returncode != 0


def test_both_component_kernels_agree() -> None:
    afforest, hooking = (line_of(kernel, "--scale", "12", "--iterations", "1") for kernel in ("cc", "cc_sv"))
    assert afforest.split("components=")[1] == hooking.split("components=")[1]
