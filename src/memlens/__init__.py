"""memlens: where a native program's memory traffic comes from and where its data lives.

>>> import memlens
>>> capture = memlens.open("run.memlens")            # doctest: +SKIP
>>> capture.table("faults").to_pandas().head()       # doctest: +SKIP
>>> with memlens.region("solve"):                    # in a program that is recorded
...     pass

Everything here is imported on first use, so that the command line starts fast.
"""

from __future__ import annotations

from .version import __version__

TYPE_CHECKING = False  # typing's, without importing it: `memlens cc` starts thousands of times in a build
if TYPE_CHECKING:
    from typing import Any

    from .annotations import is_recording, phase, region, tag, untag
    from .capture.reader import Capture
    from .capture.reader import open_capture as open

__all__ = ["Capture", "__version__", "analyses", "is_recording", "open", "phase", "region", "tag", "untag"]

# The line from __future__ leaves a name here that would hide the module annotations.py.
globals().pop("annotations", None)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "annotations", "capture", "errors", "results", "view"} - {"TYPE_CHECKING"})


def __getattr__(name: str) -> Any:
    import importlib

    if name in ("is_recording", "phase", "region", "tag", "untag"):
        # Kept here, so that an annotation in a loop pays for this function once.
        globals()[name] = getattr(importlib.import_module(".annotations", __name__), name)
        return globals()[name]
    if name == "open":
        return importlib.import_module(".capture.reader", __name__).open_capture
    if name == "Capture":
        return importlib.import_module(".capture.reader", __name__).Capture
    if name in ("analyses", "annotations", "capture", "errors", "results", "view"):
        return importlib.import_module(f".{name}", __name__)
    raise AttributeError(f"module 'memlens' has no attribute {name!r}")
