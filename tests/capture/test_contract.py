"""The contract of format/ as Python sees it: roles of fields, names of tables, layouts of arenas."""

import ctypes
import struct

import count_arena as by_hand
import numpy as np
import pytest

from memlens.capture.store.arena_layouts import constants, layout
from memlens.capture.store.layouts import enum_names, layouts
from memlens.capture.tables.catalogue import tables

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
