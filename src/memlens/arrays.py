"""Types of NumPy arrays. For type checkers: modules import it under TYPE_CHECKING, so that no command loads NumPy to start.

An array whose type of elements is known has that type. `Array` is for columns whose type depends on the column, and for code that
works for every type of elements.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

Bools = npt.NDArray[np.bool_]
Uint8s = npt.NDArray[np.uint8]
Uint16s = npt.NDArray[np.uint16]
Uint32s = npt.NDArray[np.uint32]
Uint64s = npt.NDArray[np.uint64]
Ints = npt.NDArray[np.signedinteger]
"""int64, int32, and the positions that NumPy gives (intp)."""
Integers = npt.NDArray[np.integer]
"""Signed or not."""
Floats = npt.NDArray[np.float64]
Records = npt.NDArray[np.void]
"""Structured: one element for each record."""
Array = npt.NDArray[Any]
"""Of any type of elements."""
Columns = dict[str, Array]
"""Arrays of one length by name."""
ColumnsView = Mapping[str, Array]
