"""Joins of arrays by number, for tables that would be large as rows: what Arrow and DuckDB do for small ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ...arrays import Array, Integers, Ints


def expand(offsets: Ints, keys: Ints) -> tuple[Ints, Ints]:
    """(row, entry) for every entry of each key of a CSR table.

    >>> import numpy as np
    >>> expand(np.array([0, 2, 2, 3]), np.array([0, 2, 1]))
    (array([0, 0, 1]), array([0, 1, 2]))
    """
    import numpy as np

    first = offsets[keys]
    counts = offsets[keys + 1] - first
    rows = np.repeat(np.arange(len(keys)), counts)
    ends = np.cumsum(counts)
    entries = np.arange(len(rows)) - np.repeat(ends - counts, counts) + np.repeat(first, counts)
    return rows, entries


def csr(keys: Ints, count: int) -> tuple[Ints, Ints]:
    """(offsets, order): entries of key k are order[offsets[k]:offsets[k + 1]]."""
    import numpy as np

    order = np.argsort(keys, kind="stable")
    offsets = np.zeros(count + 1, dtype=np.int64)
    np.cumsum(np.bincount(keys, minlength=count), out=offsets[1:])
    return offsets, order


def factorized(*columns: Array) -> tuple[Ints, Ints]:
    """(number of each row's combination, first row of each combination)."""
    import numpy as np

    codes = np.zeros(len(columns[0]), dtype=np.int64)
    for column in columns:
        values, inverse = np.unique(column, return_inverse=True)
        codes = codes * max(len(values), 1) + inverse.reshape(-1)
        _, codes = np.unique(codes, return_inverse=True)
        codes = codes.reshape(-1)
    _, first = np.unique(codes, return_index=True)
    return codes, first


def summed(codes: Ints, values: Integers, count: int) -> Integers:
    """Sums of 64-bit integers, modulo 2^64."""
    import numpy as np

    sums = np.zeros(count, dtype=values.dtype)
    np.add.at(sums, codes, values)
    return sums
