"""memlens: where a native program's memory traffic comes from and where its data lives.

>>> import memlens
>>> capture = memlens.open("run.memlens")            # doctest: +SKIP
>>> capture.table("faults").to_pandas().head()       # doctest: +SKIP

Everything here is imported on first use, so that the command line starts fast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .version import __version__

if TYPE_CHECKING:
    from .capture.reader import Capture
    from .capture.reader import open_capture as open

__all__ = ["Capture", "__version__", "analyses", "open"]


def __getattr__(name: str) -> Any:
    import importlib

    if name == "open":
        return importlib.import_module(".capture.reader", __name__).open_capture
    if name == "Capture":
        return importlib.import_module(".capture.reader", __name__).Capture
    if name in ("analyses", "capture", "errors", "results"):
        return importlib.import_module(f".{name}", __name__)
    raise AttributeError(f"module 'memlens' has no attribute {name!r}")
