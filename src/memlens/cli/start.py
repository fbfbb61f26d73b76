"""Entry point of `memlens`: a compiler starts at once, everything else through cli/main.py."""

from __future__ import annotations

import sys


def main() -> None:
    if len(sys.argv) > 1 and sys.argv[1] in ("cc", "c++"):
        name = sys.argv[1]
        del sys.argv[1]
        from .compile import cc, plus_plus

        (cc if name == "cc" else plus_plus)()
    from .main import main as full

    full()
