"""Fills a NumPy array and sums it: a native extension that touches memory for a script.

Options: ``--mib N``, ``--iterations N``, ``--hold-ms N``, ``--time``.

Known answer. The array is N MiB of float64, mapped fresh (NumPy allocates it without touching it): N MiB / P
pages are touched first in NumPy's fill loop, called from the line marked below in ``fill``, one more if the
array does not start at a page's first byte. NumPy asks for huge pages from 4 MiB up: where the kernel grants
them, N / 2 - 1 events place 2 MiB each and about 512 base pages remain at the two ends. The sums only read.
The result is exact: n values of 1.5 sum to 1.5 n. Exits 77 without NumPy.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy


def fill(array: numpy.ndarray) -> None:
    array.fill(1.5)  # touch: here


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--mib", type=int, default=64)
    parser.add_argument("--iterations", type=int, default=50, help="sums of the array")
    parser.add_argument("--hold-ms", type=int, default=0, help="sleep at the end, memory still mapped")
    parser.add_argument("--time", action="store_true", help="print seconds=S on stderr")
    options = parser.parse_args()
    begin_s = time.monotonic()
    try:
        import numpy as np
    except ImportError:
        print("skipped: NumPy is not installed")
        return 77
    n_values = options.mib * 2**20 // 8
    array = np.empty(n_values, dtype=np.float64)
    fill(array)
    total = 0.0
    for _ in range(options.iterations):
        total += float(array.sum())
    if total != 1.5 * n_values * options.iterations:
        print(f"error: the sum is {total}", file=sys.stderr)
        return 1
    print(f"numpy_sum values={n_values} sum={total:.1f}", flush=True)
    if options.time:
        print(f"seconds={time.monotonic() - begin_s:.6f}", file=sys.stderr)
    time.sleep(options.hold_ms / 1000)
    return 0


if __name__ == "__main__":
    sys.exit(main())
