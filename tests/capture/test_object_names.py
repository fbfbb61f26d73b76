"""Addresses of small objects have a name: heap area from its first byte, stack, zeroed data of files, small variables."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from builders import PAGE, CaptureBuilder
from emulate_tools import needs_emulation

import memlens
from memlens import analyses

Record = Callable[..., memlens.Capture]

NODES = """
#include <stdio.h>
#include <stdlib.h>
struct node { struct node *next; long value; };
long small_counter;
static short small_table[16];
int main(void) {
  struct node *head = 0;
  for (long i = 0; i < 20000; i++) {
    struct node *one = malloc(sizeof *one);
    one->next = head;
    one->value = i;
    head = one;
    small_counter += small_table[i % 16]++;
  }
  long sum = small_counter;
  for (int k = 0; k < 60; k++)
    for (struct node *at = head; at; at = at->next) sum += at->value;
  printf("%ld\\n", sum);
  return 0;
}
"""


@pytest.fixture(scope="session")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("nodes")
    (folder / "nodes.c").write_text(NODES)
    subprocess.run(["cc", "-O1", "-g", "-fno-builtin", "-o", folder / "nodes", folder / "nodes.c"], check=True)
    return str(folder / "nodes")


def start() -> CaptureBuilder:
    return CaptureBuilder().event(1, "fork").event(2, "exec", name="p")


def names_at(capture: memlens.Capture, address: int, time_ns: int) -> tuple[Any, Any]:
    (number,) = capture.objects.find([address], [time_ns], process=1).tolist()
    if not number:
        return (None, None)
    row = capture.objects.table([number - 1]).to_pylist()[0]
    return row["kind"], row["name"]


def test_zeroed_data_behind_a_file_belongs_to_it(tmp_path: Path) -> None:
    builder = start().mapping(3, 1000, 4, path="/lib/x.so", inode=9, protection=3).mapping(4, 1004, 2)
    builder.mapping(5, 2000, 2)
    capture = builder.open(tmp_path / "c")
    assert names_at(capture, 1005 * PAGE, 10) == ("file", "/lib/x.so")
    assert names_at(capture, 2001 * PAGE, 10) == (None, None)


def test_what_is_found_mapped_was_there_from_the_beginning(tmp_path: Path) -> None:
    builder = start().mapping(500, 1000, 4, path="/lib/x.so", inode=9, operation="found")
    assert names_at(builder.open(tmp_path / "c"), 1001 * PAGE, 10) == ("file", "/lib/x.so")


def test_the_heap_is_known_from_its_first_object_on(record: Record, nodes: str) -> None:
    objects = record(nodes).table("objects").to_pylist()
    first = min(row["base"] for row in objects if row["kind"] == "heap" and row["bytes"] == 16)
    heap = [row for row in objects if row["kind"] == "brk"]
    assert heap and min(row["base"] for row in heap) <= first
    # 20,000 nodes of 32 bytes each.
    assert max(row["base"] + row["bytes"] for row in heap) - first >= 20000 * 32


def test_small_variables_have_names(record: Record, nodes: str) -> None:
    rows = {row["name"]: row["bytes"] for row in record(nodes).table("variables").to_pylist()}
    assert rows["small_counter"] == 8 and rows["small_table"] == 32


@needs_emulation
def test_emulated_accesses_to_small_nodes_have_a_name(record: Record, nodes: str) -> None:
    result = analyses.run("accesses", record(nodes, options=("--emulate",)))
    assert result.figures["in_no_object_share"] < 0.1
    shares: dict[str, float] = {}
    for row in result.tables["by_object"].to_pylist():
        shares[row["kind"]] = shares.get(row["kind"], 0.0) + row["share"]
    assert shares.get("heap", 0) + shares.get("brk", 0) > 0.5 and shares.get("stack", 0) > 0
