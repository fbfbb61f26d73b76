"""Records of a capture that claim gigabytes: the engines' memory stays in proportion to the records.

Each runs in a process of its own, whose peak memory a busy machine does not change.
"""

from __future__ import annotations

import sys
from pathlib import Path

from test_import_limits import MIB, Ended, run

PREAMBLE = "import struct\nimport numpy as np\nfrom memlens import _core\nu4, u8 = np.uint32, np.uint64\n"


def run_python(program: str, tmp_path: Path) -> Ended:
    return run([sys.executable, "-c", PREAMBLE + program], tmp_path / "said")


def test_touched_huge_pages_share_what_is_alike(tmp_path: Path) -> None:
    ended = run_python(
        """
n = 200
table = _core.ObjectTable(page_bytes=4096)
table.run()
times = np.arange(1, n + 1, dtype=u8)
touched = table.touch(process=np.ones(n, u4), time_ns=times, address=np.arange(n, dtype=u8) << u8(30), span_bytes=np.full(n, 1 << 30, u8),
    new_bytes=np.full(n, 1 << 30, u8), thread=np.ones(n, u4), code=np.zeros(n, u4), mapped_around=np.zeros(n, np.uint8),
    weight=np.ones(n), sampled_from_ns=2**64 - 1, placed_process=np.ones(4, u4), placed_begin_ns=times[:4], placed_end_ns=times[:4], placed_address=np.arange(4, dtype=u8) << u8(42),
    placed_bytes=np.full(4, 1 << 36, u8))
print("touched")
""",
        tmp_path,
    )
    assert ended.status == 0 and ended.text == "touched\n", ended.text
    assert ended.peak_rss_bytes < 250 * MIB  # more than a gigabyte: 12 kB for each 2 MiB


def test_line_sharing_ends_at_its_limit_of_memory(tmp_path: Path) -> None:
    ended = run_python(
        """
try:
    _core.LineSharing(memory_limit_bytes=100 << 20).add(np.array([1 << 20], u8), np.array([2**32 - 1], u4), np.zeros(1, np.uint8), np.zeros(1, u4))
except MemoryError as error:
    print(error)
""",
        tmp_path,
    )
    assert ended.status == 0 and "the analysis needs" in ended.text, ended.text
    assert ended.peak_rss_bytes < 250 * MIB  # 12 GB for the 67 million lines of one access
