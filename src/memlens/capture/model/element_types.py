"""Types of static variables, as debug information describes them: fields and their offsets."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict, cast

from ... import _core
from ..store.os_names import file_of

if TYPE_CHECKING:
    from ..store.source import TableSource

MOST_DEPTH = 32


class Field(TypedDict):
    """A field of a structure."""

    name: str
    offset: int
    bytes: int
    type: str


class DescribedType(TypedDict):
    """A type as `ModuleVariables.type` gives it."""

    name: str
    kind: str
    bytes: int
    padding_bytes: int
    element_id: int
    element_bytes: int
    fields: list[Field]


class VariableRow(TypedDict):
    """A row of table `variables`."""

    process: int
    kind: str
    name: str
    base: int
    bytes: int
    module: str
    file: str | None
    line: int | None
    type: str | None
    element_bytes: int
    padding_bytes: int
    thread: int | None
    born_ns: int
    died_ns: int | None


def described_type(module: _core.ModuleVariables, type_id: int) -> DescribedType | None:
    """One type, typedefs looked through; None if there is none."""
    return cast("DescribedType | None", module.type(type_id))


def element_type(capture: TableSource, variable: VariableRow) -> DescribedType | None:
    """The described type of a variable, or of its elements; None where debug information does not tell."""
    build_ids = dict(zip(*capture.table("modules").select(["path", "build_id"]).to_pydict().values(), strict=True))
    module = _core.ModuleVariables(file_of(variable["module"]), build_id=build_ids.get(variable["module"]) or "")
    if module.status:
        return None
    columns = module.variables(min_bytes=min(1024, variable["bytes"]))
    for name, type_id in zip(columns["name"], columns["type_id"].tolist(), strict=True):
        if name != variable["name"]:
            continue
        described = described_type(module, type_id)
        for _ in range(MOST_DEPTH):  # arrays of arrays
            if described is None or described["kind"] != "array":
                break
            described = described_type(module, described["element_id"])
        return described if described is not None and described["fields"] else None
    return None
