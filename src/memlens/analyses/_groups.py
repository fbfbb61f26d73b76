"""What accesses are grouped by: function, line, object, thread, region, the whole program, or two of these."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..errors import UsageError

if TYPE_CHECKING:
    from ..capture.locality import AccessBatch, ThreadAccesses

DIMENSIONS = ("program", "function", "line", "object", "thread", "region")


class Dimension:
    """Numbers a batch's accesses; `keys` says what each number means."""

    names: tuple[str, ...] = ()

    def __init__(self, accesses: ThreadAccesses) -> None:
        self.accesses = accesses
        self.keys: list[tuple[Any, ...]] = []

    def numbers(self, batch: AccessBatch) -> Any:
        raise NotImplementedError

    @property
    def follows_windows(self) -> bool:
        """Whether all accesses of a window belong to one group."""
        return False


class _Program(Dimension):
    def __init__(self, accesses: ThreadAccesses) -> None:
        super().__init__(accesses)
        self.keys = [()]

    def numbers(self, batch: AccessBatch) -> Any:
        import numpy as np

        return np.zeros(len(batch), dtype=np.uint32)

    @property
    def follows_windows(self) -> bool:
        return True


class _Thread(Dimension):
    names = ("process", "thread", "thread_name")

    def __init__(self, accesses: ThreadAccesses) -> None:
        super().__init__(accesses)
        rows = accesses.capture.table("threads").to_pylist()
        names = {(row["process"], row["thread"]): row["name"] for row in rows}
        self.keys = [(*key, names.get(key)) for key in accesses.streams]

    def numbers(self, batch: AccessBatch) -> Any:
        import numpy as np

        return np.full(len(batch), batch.stream, dtype=np.uint32)

    @property
    def follows_windows(self) -> bool:
        return True


class _Region(Dimension):
    names = ("region",)

    def __init__(self, accesses: ThreadAccesses) -> None:
        import numpy as np

        super().__init__(accesses)
        strings = accesses.capture.strings()
        found, self._of_window = np.unique(accesses.capture.windows.columns["region"], return_inverse=True)
        self.keys = [(strings.get(int(number)) if number else None,) for number in found]

    def numbers(self, batch: AccessBatch) -> Any:
        import numpy as np

        return self._of_window.reshape(-1)[batch.window].astype(np.uint32)

    @property
    def follows_windows(self) -> bool:
        return True


class _Code(Dimension):
    def __init__(self, accesses: ThreadAccesses, *, line: bool) -> None:
        import numpy as np

        from .traffic import CodeNames

        super().__init__(accesses)
        names = CodeNames(accesses.capture)
        self.names = ("function", "module", "file", "line") if line else ("function", "module")
        columns: list[list[Any]] = [names.function, names.module, *([names.file, names.line] if line else [])]
        index: dict[tuple[Any, ...], int] = {}
        numbers = [index.setdefault(key, len(index)) for key in zip(*columns, strict=True)]
        self._of_code = np.array(numbers, dtype=np.uint32)
        self.keys = list(index)

    def numbers(self, batch: AccessBatch) -> Any:
        import numpy as np

        codes = np.minimum(self.accesses.codes(batch), np.uint32(len(self._of_code) - 1))
        return self._of_code[codes]


class _Object(Dimension):
    names = ("object", "kind")

    def __init__(self, accesses: ThreadAccesses) -> None:
        from .object_accesses import ObjectGroups

        super().__init__(accesses)
        groups = ObjectGroups(accesses.capture)
        self._of_object = groups.of_object
        self._objects = accesses.capture.objects
        self._has_tags = bool(self._objects.is_kind("tag").any()) if self._objects.count else False
        # Groups of one name differ by thread or site: one row each, as in the analysis `accesses`.
        self.keys = [(row["object"], row["kind"]) for row in groups.rows]

    def numbers(self, batch: AccessBatch) -> Any:
        import numpy as np

        found = self._objects.find(batch.address, batch.time_ns, process=batch.process)
        if self._has_tags:
            tags = self._objects.find(batch.address, batch.time_ns, process=batch.process, layer="tag")
            found = np.where(tags != 0, tags, found)
        return self._of_object[found].astype(np.uint32)


class _Pair(Dimension):
    def __init__(self, first: Dimension, second: Dimension) -> None:
        import numpy as np

        super().__init__(first.accesses)
        self._parts = (first, second)
        self.names = (*first.names, *second.names)
        self._seen = np.zeros(0, dtype=np.uint64)
        self._number = np.zeros(0, dtype=np.uint32)

    def of_parts(self, first: Any, second: Any) -> Any:
        """Numbers of pairs of numbers; new pairs get the next ones."""
        import numpy as np

        wanted, inverse = np.unique(
            first.astype(np.uint64) << np.uint64(32) | second.astype(np.uint64), return_inverse=True
        )
        fresh = wanted[~np.isin(wanted, self._seen)]
        if len(fresh):
            for pair in fresh.tolist():
                self.keys.append((*self._parts[0].keys[pair >> 32], *self._parts[1].keys[pair & 0xFFFFFFFF]))
            numbers = np.arange(len(self._seen), len(self._seen) + len(fresh), dtype=np.uint32)
            seen = np.concatenate((self._seen, fresh))
            order = np.argsort(seen, kind="stable")
            self._seen, self._number = seen[order], np.concatenate((self._number, numbers))[order]
        return self._number[np.searchsorted(self._seen, wanted)][inverse.reshape(-1)]

    def numbers(self, batch: AccessBatch) -> Any:
        return self.of_parts(*(part.numbers(batch) for part in self._parts))

    @property
    def follows_windows(self) -> bool:
        return all(part.follows_windows for part in self._parts)


def named_dimension(accesses: ThreadAccesses, by: str | tuple[str, str]) -> Dimension:
    """A dimension by name, or two of them crossed: ``"function"``, ``("function", "object")``, ``"function,object"``."""
    parts = by.split(",") if isinstance(by, str) else list(by)
    unknown = [part for part in parts if part not in DIMENSIONS]
    if unknown or not 1 <= len(parts) <= 2:
        raise UsageError(
            f"accesses cannot be grouped by {' and '.join(map(repr, unknown or parts))}",
            hint=f"one or two of {', '.join(DIMENSIONS)}",
        )
    made = [_one(accesses, part) for part in parts]
    return made[0] if len(made) == 1 else _Pair(made[0], made[1])


def _one(accesses: ThreadAccesses, name: str) -> Dimension:
    if name in ("function", "line"):
        return _Code(accesses, line=name == "line")
    kinds: dict[str, type[Dimension]] = {
        "program": _Program,
        "thread": _Thread,
        "region": _Region,
        "object": _Object,
    }
    return kinds[name](accesses)
