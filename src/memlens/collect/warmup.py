"""Imports what finishing and the summary need while the program runs, on CPUs that are idle.

NumPy, Arrow and the analyses take a quarter of a second to import, which a person would wait for after the program's end. One
module after the other is imported while some CPU has nothing to do, and only where memory is plentiful: the recorder may share a
control group with the program. The finishing process is forked from the recorder and has them.
"""

from __future__ import annotations

import importlib
import os
import threading
import time

from .. import registry
from .memory import available_bytes

MODULES = (
    "numpy", "pyarrow", "pyarrow.compute", "pyarrow.parquet", "numpy.ma", "pyarrow.dataset", "pyarrow.acero", "memlens.collect.finish",
    "memlens.capture.model.replay", "memlens.capture.model.objects", "memlens.capture.model.symbols", "memlens.capture.model.variables",
    "memlens.capture.store.side_tables",
)  # fmt: skip
LEAST_FREE_BYTES = 2 << 30
BEGIN_S, LOOK_S = 0.05, 0.02
IDLE_SHARE = 0.5
"""Of one CPU, in each of the last LOOKS: an import takes up to 40 ms, which a program that keeps all CPUs busy would lose."""
LOOKS = 5
NICENESS = 10
ENVIRONMENT = {
    "ARROW_DEFAULT_MEMORY_POOL": "system", "ARROW_IO_THREADS": "1", "OMP_NUM_THREADS": "2", "OPENBLAS_NUM_THREADS": "1",
}  # fmt: skip
"""Memory pools that reserve and threads that nobody needs would count as ours; a fork has no use for threads."""


class _Idleness:
    """Whether a CPU had nothing to do for a while."""

    def __init__(self) -> None:
        self._tick_s = 1 / os.sysconf("SC_CLK_TCK")
        self._ticks, self._looked = self._read(), time.monotonic()
        self._idle_looks = 0

    @staticmethod
    def _read() -> int:
        with open("/proc/stat") as file:
            return int(file.readline().split()[4])

    def now(self) -> bool:
        """Looks every 20 ms: the kernel counts in ticks of 10 ms."""
        passed = time.monotonic() - self._looked
        if passed >= LOOK_S:
            ticks = self._read()
            is_idle = (ticks - self._ticks) * self._tick_s >= IDLE_SHARE * passed
            self._idle_looks = self._idle_looks + 1 if is_idle else 0
            self._ticks, self._looked = ticks, self._looked + passed
        return self._idle_looks >= LOOKS


class Warmup:
    """Call `start` when the program runs and `stop` before a fork."""

    def __init__(self, for_summary: tuple[str, ...]) -> None:
        """`for_summary`: modules and kinds of the registry that the summary needs."""
        self._modules = (*MODULES, *for_summary)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="memlens-warmup", daemon=True)
        self._is_running = False

    def start(self) -> None:
        os.environ.update(ENVIRONMENT)
        try:
            self._thread.start()
            self._is_running = True
        except RuntimeError:  # no thread can be had: imports happen later
            pass

    def stop(self) -> None:
        """Waits for the module that is being imported: it is needed anyway."""
        self._ended.set()
        if self._is_running:
            self._thread.join()
            self._is_running = False

    def _run(self) -> None:
        try:
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
            if self._ended.wait(BEGIN_S) or available_bytes() < LEAST_FREE_BYTES:
                return
            idle = _Idleness()
            for name in self._modules:
                while not idle.now():
                    if self._ended.wait(LOOK_S):
                        return
                if self._ended.is_set():
                    return
                if name in registry.PACKAGES:
                    registry.all_of(name)
                else:
                    importlib.import_module(name)
        except Exception:  # whatever it is, whoever needs the module will say so
            return
