"""Arrow columns from numbers of records."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

    from ...arrays import Integers


def named(values: Integers, names: Mapping[int, str]) -> pa.Array:
    """Numbers as a dictionary array of their names; a number without a name keeps its digits, 0 of ids is null."""
    import numpy as np
    import pyarrow as pa

    distinct, inverse = np.unique(values, return_inverse=True)
    texts = [names.get(int(v), None if int(v) == 0 else str(int(v))) for v in distinct]
    indices = pa.array(inverse.astype(np.int32))
    if None in texts:
        named = [text for text in texts if text is not None]
        is_named = np.array([text is not None for text in texts])
        mapping = np.where(is_named, np.cumsum(is_named) - 1, -1).astype(np.int32)
        mapped = mapping[inverse]
        return pa.DictionaryArray.from_arrays(pa.array(mapped, mask=mapped < 0), pa.array(named, type=pa.string()))
    return pa.DictionaryArray.from_arrays(indices, pa.array(texts, type=pa.string()))
