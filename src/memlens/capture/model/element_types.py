"""Types of static variables, as debug information describes them: fields and their offsets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ... import _core
from ..store.os_names import file_of

if TYPE_CHECKING:
    from ..store.source import TableSource

MOST_DEPTH = 32


def element_type(capture: TableSource, variable: dict[str, Any]) -> dict[str, Any] | None:
    """The described type of a variable, or of its elements; None where debug information does not tell."""
    build_ids = dict(zip(*capture.table("modules").select(["path", "build_id"]).to_pydict().values(), strict=True))
    module = _core.ModuleVariables(file_of(variable["module"]), build_id=build_ids.get(variable["module"]) or "")
    if module.status:
        return None
    columns = module.variables(min_bytes=min(1024, variable["bytes"]))
    for name, type_id in zip(columns["name"], columns["type_id"].tolist(), strict=True):
        if name != variable["name"]:
            continue
        described: Any = module.type(type_id)
        for _ in range(MOST_DEPTH):  # arrays of arrays
            if described is None or described["kind"] != "array":
                break
            described = module.type(described["element_id"])
        return described if described is not None and described["fields"] else None
    return None
