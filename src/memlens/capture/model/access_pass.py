"""One sweep over the accesses of a capture for everybody who wants them.

An analysis of windows is a `Consumer`: it takes batches, is merged with others of its kind that took other threads, and says what it knows
so far. `sweep` reads the accesses once and hands each batch to all consumers. Tasks of one consumer run one after the other; those of different consumers
and, where a consumer says so, of different threads of the program run at the same time, on as many cores as there are: the engines release the GIL.

A consumer asks for batches in one order:

    chunk    `ChunkBatch`: the packed accesses of a chunk, as they are
    record   `AccessBatch`: accesses of one thread, in the order of the record files (of each thread: in its own order)
    time     `TimeGroup`: accesses of all threads, in the order of time

Because state goes with the consumer, a capture that grows is read on: `sweep(…, since=n)` gives what came after the first n chunks.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self, TypeVar

from .decoded import DecodedChunk
from .locality import AccessBatch, ThreadAccesses, TimeOrder, interleaved

if TYPE_CHECKING:
    from ...arrays import Uint64s

Order = Literal["chunk", "record", "time"]
S = TypeVar("S", covariant=True)
MOST_QUEUED = 2
"""Tasks that may wait for one consumer: memory stays bounded, the reader waits."""


@dataclass(frozen=True)
class ChunkBatch:
    chunk: DecodedChunk
    packed: list[Uint64s]


class TimeGroup:
    """Accesses of all threads that are earlier than those of the next group; of those of one time the thread seen first comes first."""

    def __init__(self, batches: list[AccessBatch]) -> None:
        self.batches = sorted(batches, key=lambda batch: batch.stream)
        self.order, self.columns = interleaved(self.batches)

    def __len__(self) -> int:
        return len(self.columns["address"])


class Consumer(Protocol):
    """What an analysis does with accesses."""

    @property
    def order(self) -> Order: ...
    @property
    def columns(self) -> frozenset[str]:
        """What each batch shall bring, of ``codes`` and ``objects`` (`AccessBatch.made`), ``constants`` and ``scalars``."""

    def begin(self, pool: TaskPool) -> None:
        """Before the first batch; `pool` runs what the consumer does for different threads."""

    def add(self, batch: Any) -> None: ...
    def snapshot(self) -> object:
        """What the accesses so far say."""


class Answering(Consumer, Protocol[S]):
    """A consumer whose `snapshot` has a type."""

    def snapshot(self) -> S: ...


class Mergeable(Consumer, Protocol):
    """A consumer whose threads are independent of each other, so that several may take some threads each."""

    def merge(self, other: Self) -> None:
        """Adds what another one took, of other threads."""


class TaskPool:
    """Tasks by key: those of one key run in order, one at a time; a failure stops the tasks of its owner only."""

    def __init__(self, workers: int | None = None) -> None:
        self._changed = threading.Condition()
        self._queues: dict[Hashable, deque[tuple[object, Callable[[], object]]]] = {}
        self._ready: deque[Hashable] = deque()
        self._open = 0
        self._is_closed = False
        self.failures: dict[int, BaseException] = {}
        """By the id of the owner."""
        count = max(1, workers or os.cpu_count() or 1)
        self._threads = [threading.Thread(target=self._work, name="memlens-pass", daemon=True) for _ in range(count)]
        for thread in self._threads:
            thread.start()

    def submit(self, owner: object, part: Hashable, work: Callable[[], object], *, wait: bool = False) -> None:
        """`wait`: until no queue is long; for the one that reads, never for a task."""
        key = (id(owner), part)
        with self._changed:
            while wait and any(len(queue) >= MOST_QUEUED for queue in self._queues.values()):
                self._changed.wait()
            self._open += 1
            queue = self._queues.get(key)
            if queue is None:
                self._queues[key] = deque([(owner, work)])
                self._ready.append(key)
                self._changed.notify_all()
            else:
                queue.append((owner, work))

    def _work(self) -> None:
        while True:
            with self._changed:
                while not self._ready and not self._is_closed:
                    self._changed.wait()
                if not self._ready:
                    return
                key = self._ready.popleft()
                owner, work = self._queues[key][0]
            if id(owner) not in self.failures:
                try:
                    work()
                except BaseException as error:
                    self.failures.setdefault(id(owner), error)
            del work
            with self._changed:
                queue = self._queues[key]
                queue.popleft()
                self._open -= 1
                if queue:
                    self._ready.append(key)
                else:
                    del self._queues[key]
                self._changed.notify_all()

    def join(self) -> None:
        """Waits until everything is done, also what tasks have submitted."""
        with self._changed:
            while self._open:
                self._changed.wait()

    def __enter__(self) -> TaskPool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            with self._changed:
                for queue in self._queues.values():
                    while len(queue) > 1:  # the first may be running
                        queue.pop()
                        self._open -= 1
        self.join()
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()


class _Sweep:
    """The stages between the reader and the consumers."""

    def __init__(self, accesses: ThreadAccesses, consumers: list[Consumer], pool: TaskPool) -> None:
        self._accesses, self._pool = accesses, pool
        self._by_record = [c for c in consumers if c.order == "record"]
        self._by_time = [c for c in consumers if c.order == "time" and "scalars" not in c.columns]
        self._by_time_scalars = [c for c in consumers if c.order == "time" and "scalars" in c.columns]
        # Captures without recorded constants have one order of time.
        self.has_scalars = bool(self._by_time_scalars) and accesses.has_scalars
        if not self.has_scalars:
            self._by_time, self._by_time_scalars = self._by_time + self._by_time_scalars, []
        self._wanted = frozenset().union(*(c.columns for c in consumers)) & {"codes", "objects"}
        self._time = TimeOrder(accesses) if self._by_time else None
        self._time_scalars = TimeOrder(accesses) if self._by_time_scalars else None

    def take(self, batch: AccessBatch) -> None:
        """A batch from the reader, in a task of its own."""
        for name in self._wanted if len(batch) else ():
            self._accesses.make(batch, name)
        for consumer in self._by_record:
            self._pool.submit(consumer, "", _adder(consumer, batch))
        if self._time is not None and len(batch):
            for group in self._time.push(batch):
                self._give(self._by_time, group)
        whole = batch.with_scalars if batch.with_scalars is not None else batch
        if self._time_scalars is not None and len(whole):
            for group in self._time_scalars.push(whole):
                self._give(self._by_time_scalars, group)

    def finish(self) -> None:
        for order, consumers in ((self._time, self._by_time), (self._time_scalars, self._by_time_scalars)):
            rest = order.rest() if order is not None else []
            if rest:
                self._give(consumers, rest)

    def _give(self, consumers: list[Consumer], batches: list[AccessBatch]) -> None:
        group = TimeGroup(batches)
        for consumer in consumers:
            self._pool.submit(consumer, "", _adder(consumer, group))


def _adder(consumer: Consumer, batch: AccessBatch | ChunkBatch | TimeGroup) -> Callable[[], None]:
    return lambda: consumer.add(batch)


def sweep(
    accesses: ThreadAccesses,
    consumers: Iterable[Consumer],
    *,
    since: int = 0,
    workers: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> dict[int, BaseException]:
    """Gives all accesses, from chunk `since` on, to all consumers; (id of the consumer → error) of those that failed.

    Parameters
    ----------
    workers
        Threads; as many as there are CPUs when not given.
    progress
        Called with (accesses read, accesses in all).
    """
    every = list(consumers)
    by_chunk = [c for c in every if c.order == "chunk"]
    total = accesses.recorded if progress is not None else 0
    done = 0
    with TaskPool(workers) as pool:
        for consumer in every:
            consumer.begin(pool)
        stages = _Sweep(accesses, every, pool)

        def take_chunk(chunk: DecodedChunk, packed: list[Uint64s]) -> None:
            for consumer in by_chunk:
                pool.submit(consumer, "", _adder(consumer, ChunkBatch(chunk, packed)), wait=True)

        if len(by_chunk) < len(every):
            wants_constants = accesses.has_constants and any("constants" in c.columns for c in every)
            for batch in accesses.batches(
                constants=wants_constants, beside=stages.has_scalars, on_chunk=take_chunk, since=since
            ):
                pool.submit(stages, "", _taker(stages, batch), wait=True)
                done += len(batch)
                if progress is not None:
                    progress(done, total)
            pool.submit(stages, "", stages.finish)
        else:
            decoded = accesses.capture.decoded
            for number, chunk in enumerate(decoded):
                if number >= since:
                    take_chunk(chunk, [*decoded.batches(chunk)])
        pool.join()
        if id(stages) in pool.failures:
            raise pool.failures[id(stages)]
    return pool.failures


def _taker(stages: _Sweep, batch: AccessBatch) -> Callable[[], None]:
    return lambda: stages.take(batch)


def run(
    accesses: ThreadAccesses,
    consumer: Answering[S],
    *,
    workers: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> S:
    """One consumer alone: what it knows at the end."""
    failures = sweep(accesses, [consumer], workers=workers, progress=progress)
    if failures:
        raise next(iter(failures.values()))
    return consumer.snapshot()
