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


def test_both_component_kernels_agree() -> None:
    afforest, hooking = (line_of(kernel, "--scale", "12", "--iterations", "1") for kernel in ("cc", "cc_sv"))
    assert afforest.split("components=")[1] == hooking.split("components=")[1]
