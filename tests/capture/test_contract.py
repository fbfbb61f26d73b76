"""The contract of format/ as Python sees it: roles of fields, names of tables, layouts of arenas."""

import ast
import ctypes
import re
import struct
from collections.abc import Iterator
from pathlib import Path

import count_arena as by_hand
import numpy as np
import pytest
from conftest import ROOT

from memlens import _core, _recorder
from memlens.capture.model import count_tables, counting
from memlens.capture.store.arena_layouts import constants, layout
from memlens.capture.store.layouts import enum_names, enum_value, layouts, listed
from memlens.capture.tables.catalogue import tables
from memlens.present import _markup

ROLES = {"VALUE", "TIME", "STRING", "STACK", "ID", "CODE", "ENUM", "FLAGS", "TAIL", "RESERVED"}


def test_every_field_has_a_role_and_every_family_has_values() -> None:
    for record in layouts().values():
        roles = [field.role for field in record.fields]
        assert set(roles) <= ROLES, record.name
        assert roles.count("TIME") <= 1 and roles.count("TAIL") <= 1, record.name
        for field in record.fields:
            assert bool(field.family) == (field.role in ("ENUM", "FLAGS")), (record.name, field.name)
            if field.family:
                assert enum_names(field.family), field.family
            if field.role in ("STRING", "STACK", "ID"):
                assert field.code == "<u4", (record.name, field.name)


def test_every_record_kind_has_a_table_of_its_own() -> None:
    names = [record.table for record in layouts().values()]
    assert len(set(names)) == len(names)
    assert set(names) <= set(tables())


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("count_header", by_hand.Header), ("count_entry", by_hand.Entry), ("count_process", by_hand.ProcessContent),
        ("count_module", by_hand.ModuleContent), ("count_place", by_hand.PlaceContent),
    ],
)  # fmt: skip
def test_layouts_of_the_arena_are_those_written_by_hand(name: str, written: type[ctypes.Structure]) -> None:
    """The tests have the structs a second time, typed from memlens_count.h."""
    made = layout(name)
    assert made.n_bytes == ctypes.sizeof(written)
    expected = [(getattr(written, field[0]).offset, getattr(written, field[0]).size) for field in written._fields_]
    sizes = {"<u1": 1, "<u2": 2, "<u4": 4, "<u8": 8}
    assert [(offset, sizes[code] * (count or 1)) for _, code, offset, count in made.members] == expected


@pytest.mark.parametrize(
    "name", ["arena_header", "arena_block", "count_slot", "block_member", "slot_counter", "count_span"]
)
def test_struct_and_numpy_type_of_a_layout_agree(name: str) -> None:
    made = layout(name)
    values = tuple(range(1, len(made.fields) + 1))
    packed = made.format.pack(*values)
    row = np.frombuffer(packed, dtype=made.dtype())[0]
    assert tuple(int(row[field]) for field in made.fields) == values


def test_constants_are_those_of_the_headers() -> None:
    assert struct.pack("<Q", constants()["ML_COUNT_MAGIC"]) == b"MELCOUNT"
    assert struct.pack("<Q", constants()["ML_ARENA_MAGIC"]) == b"MELARENA"
    assert constants()["ML_BLOCK_BYTES"] == 64 + 254 * 32


# ---- lists -----------------------------------------------------------------------------------------------------------
def native_lists() -> dict[str, set[str]]:
    """Names of the lists that native code has, by what they are called there; those of three names or more."""
    families = {**_core.enum_values(), **_core.lists()}
    found = {family: set(values.values()) for family, values in families.items()}
    for module in (_core, _recorder):
        for name, value in vars(module).items():
            if isinstance(value, tuple) and all(isinstance(one, str) for one in value):
                found[name] = set(value)
    return {name: names for name, names in found.items() if len(names) >= 3}


def literals(path: Path) -> Iterator[tuple[int, set[str], bool]]:
    """Lists of strings that are written out in a Python file, and whether they are keys that something is said of: tuples, lists, sets, and
    keys or values of dictionaries."""
    for node in ast.walk(ast.parse(path.read_text())):
        parts: list[tuple[list[ast.expr | None], bool]] = []
        if isinstance(node, ast.Tuple | ast.List | ast.Set):
            parts = [(list(node.elts), False)]
        elif isinstance(node, ast.Dict):
            parts = [(list(node.keys), True), (list(node.values), False)]
        for part, is_keys in parts:
            texts = {one.value for one in part if isinstance(one, ast.Constant) and isinstance(one.value, str)}
            if texts:
                yield node.lineno, texts, is_keys


OTHERS = {("importing/memgaze.py", "trace_class")}
"""Numbers of another tool's files, which happen to mean the same."""


def test_native_lists_are_there() -> None:
    names = native_lists()
    assert {"ACCESS_CLASSES", "AREA_KINDS", "FAULT_CLASSES", "NODE_KINDS", "OBJECT_KINDS", "PEAK_KINDS"} <= set(names)
    assert {"site_kind", "site_flags", "count_table_flags", "block_mix", "trace_class", "writer"} <= set(names)


def test_no_list_is_written_twice() -> None:
    """A list that native code has is asked for, never typed again. Where each value is explained, none is missing."""
    again, explained = [], []
    for path in sorted((ROOT / "src" / "memlens").rglob("*.py")):
        name = str(path.relative_to(ROOT / "src" / "memlens"))
        for line, texts, is_keys in literals(path):
            for native, names in native_lists().items():
                if is_keys and texts == names:
                    explained.append((name, native))
                elif names <= texts and len(texts) <= len(names) + 1 and (name, native) not in OTHERS:
                    again.append(f"{name}:{line} has all of {native}")
    assert not again
    assert set(explained) == {
        ("analyses/accuracy.py", "unseen_cause"),
        ("analyses/traffic.py", "unseen_cause"),
        ("capture/tables/counts.py", "block_mix"),
        ("present/_markup.py", "FAULT_CLASSES"),
    }
    assert tuple(_markup.FAULT_CLASSES) == _core.FAULT_CLASSES


def test_every_value_of_a_list_has_one_number_in_c() -> None:
    """No header gives a value of lists.def its number a second time."""
    text = (ROOT / "format" / "lists.def").read_text()
    values = re.findall(r"^ML_ITEM\(\w+, (\w+), (\d+), \"([^\"]+)\"\)", text, flags=re.MULTILINE)
    assert len(values) > 50
    for path in [*(ROOT / "format").glob("*.h"), *(ROOT / "native").rglob("*.h")]:
        assigned = set(re.findall(r"^\s*(ML_\w+) = \w+,", path.read_text(), flags=re.MULTILINE))
        assert not assigned & {value for value, _, _ in values}, path
    lists = _core.lists()
    assert [(int(number), name) for _, number, name in values] == [
        item for family in lists.values() for item in family.items()
    ]


def test_kinds_and_flags_have_their_numbers() -> None:
    """What was typed by hand before, typed once more here."""
    assert (counting.LOAD, counting.CALL, counting.PREFETCH) == (0, 6, 7)
    assert (counting.STACK_READ, counting.VECTOR, counting.GATHER) == (1, 4, 256)
    assert (counting.TABLE_MIX, counting.TABLE_NAIVE, counting.TABLE_ENTRY) == (1, 2, 4)
    assert counting.REFUSED == {8: "naked", 16: "ifunc resolver", 32: "excluded by its source", 64: "too many counters"}
    assert (count_tables.TRACE_STRIDED, count_tables.TRACE_VARIABLE) == (1, 4)
    assert (enum_value("writer", "runtime"), enum_value("writer", "importer")) == (2, 3)
    assert listed("slot_store") == ("load", "store", "unseen", "both", "runs")
    with pytest.raises(AssertionError, match="site_flags"):
        listed("site_flags")
