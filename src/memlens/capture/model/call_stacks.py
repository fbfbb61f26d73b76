"""Call stacks by name, and the frame of each that a programmer would call the place.

Owns which frames are skipped: those of allocators and the C library (by module and by name), of wrappers, and those that
`Capture.skip_frames` matches. A *wrapper* is a function that allocates for its callers. It is recognised in the allocation
stacks of the capture, not by a list: many call points in several functions reach the allocator through it and ask for different
sizes, it allocates in one or two lines, and it is not recursive. A function whose name says "alloc" and a constructor need only two
call points; one that is named as malloc is (`zmalloc`, `luaM_malloc_`) needs none. A function that makes one kind of object
(`make_node`) has one size and is the place itself.
"""

from __future__ import annotations

import re
from functools import lru_cache
from itertools import chain
from typing import Any, Protocol, TypedDict

from .objects import Objects, ObjectSource

LIBRARY_MODULES = (
    "libstdc++", "libc++", "libc.so", "libc-2.", "libc.musl", "libpthread", "libm.so", "libmemlens", "ld-linux", "ld-musl", "ld64",
    "libjemalloc", "libtcmalloc", "libmimalloc", "libasan", "libtsan", "liblsan", "libubsan", "[vdso]",
)  # fmt: skip
LIBRARY_NAMES = re.compile(
    r"<*(?:[\w:<>,*& ]+ )?(?:std|__gnu_cxx|boost::container|alloc|core|hashbrown)::|operator new|operator delete|__rust_|__rdl_|__rg_"
    r"|\w*(?i:[mcz]alloc|realloc|reallocarray|memalign|aligned_alloc)(?:_array|_n|0|_usable|_)?(?=$|\()|x?str(?:n)?dup$"
    r"|g_(?:malloc|slice_alloc|try_malloc)|PyMem_|PyObject_Malloc|_PyObject_|_PyMem_|CRYPTO_(?:malloc|zalloc|realloc)|safe_?malloc"
    r"|_int_(?:malloc|realloc|memalign|free)|sysmalloc|systrim|malloc_consolidate|tcache_|arena_get|new_heap|grow_heap|_mid_memalign"
    r"|__libc_(?:malloc|calloc|realloc|memalign|start)|unlink_chunk|alloc_perturb"
    r"|_{0,2}(?:w?mem(?:set|cpy|move|pcpy|ccpy|cmp|chr|rchr)|bzero|bcopy|str(?:n?cpy|n?cat|len|n?len|n?cmp|chr|rchr)|stpn?cpy|rawmemchr)(?:_(?:avx|sse|evex|erms|unaligned|generic|chk|ssse)\w*)?$"
)
"""Functions that allocate, copy or fill for somebody else, wherever they are linked: the place is whoever called them."""
STANDARD_NAMES = re.compile(r"<*(?:[\w:<>,*& ]+ )?(?:std|__gnu_cxx|alloc|core|hashbrown)::")
SYSTEM_NAMES = re.compile(STANDARD_NAMES.pattern + r"|_*(?:libc_)?(?:m|c|re)alloc$|operator |_int_|sysmalloc|__GI_")
"""Library functions that need no mention as what stood between: every allocation goes through them."""
ALLOCATING_NAME = re.compile(r"alloc", re.IGNORECASE)
INLINED = re.compile(r"^(?P<function>.*) \((?P<file>[^()]*):(?P<line>\d+)\)$", re.DOTALL)
UNNAMED = re.compile(r"\+0x[0-9a-f]+$")
MIN_CALL_POINTS = 5
MIN_CALLERS = 4
MIN_CALL_POINTS_NAMED = 2
"""Of a function whose name says that it allocates, and of a C++ constructor."""
MAX_ALLOCATING_POINTS = 2
MAX_WRAPPERS = 4
"""Wrappers around wrappers: more in one stack are layers of the program."""
_Point = tuple[str | None, int]
_Link = tuple[tuple[str, str], _Point]
"""(module, function without template arguments) and the point in it."""


class Frame(TypedDict):
    """A function that code belongs to, and the place in it."""

    function: str | None
    module: str | None
    file: str | None
    line: int | None


class Place(Frame):
    """A frame that stands for a stack."""

    via: str | None
    """The wrapper or library function behind it."""


NO_FRAME: Frame = {"function": None, "module": None, "file": None, "line": None}


@lru_cache(maxsize=1 << 16)
def _is_library(module: str, function: str) -> bool:
    return module.rpartition("/")[2].startswith(LIBRARY_MODULES) or bool(LIBRARY_NAMES.match(function))


@lru_cache(maxsize=1 << 16)
def plain_name(function: str) -> str:
    """A function without template arguments and parameters: all instances of a template are one wrapper.

    >>> plain_name("pvector<int, (X)3>::pvector(unsigned long)"), plain_name("operator new(unsigned long)"), plain_name("f")
    ('pvector::pvector', 'operator new', 'f')
    """
    out, depth = [], 0
    for at, character in enumerate(function):
        if character in "<(" and not function.startswith("operator", max(0, at - 8), at):
            depth += 1
        elif character in ">)" and depth:
            depth -= 1
        elif depth == 0:
            out.append(character)
    return "".join(out).strip()


def is_constructor(plain: str) -> bool:
    """
    >>> is_constructor("pvector::pvector"), is_constructor("a::b::c"), is_constructor("main")
    (True, False, False)
    """
    scope, _, last = plain.rpartition("::")
    return bool(scope) and scope.rpartition("::")[2] == last


class StackSource(ObjectSource, Protocol):
    """A capture whose stacks are named."""

    @property
    def objects(self) -> Objects: ...
    @property
    def skip_frames(self) -> re.Pattern[str] | None: ...
    @property
    def derived(self) -> dict[str, Any]: ...


class CallStacks:
    """Call stacks of allocations and faults by name, inlined functions too, and their places."""

    def __init__(self, capture: StackSource) -> None:
        self._capture = capture
        self.codes = capture.replay.stacks
        sites = capture.replay.code_sites
        columns = ("function", "module", "file", "line", "inlined_into", "file_offset", "nearest")
        self._sites = list(zip(*(sites.column(name).to_pylist() for name in columns), strict=True))
        self._frames: dict[int, list[Frame]] = {}
        self._shown: dict[int, list[Frame]] = {}
        self._names: dict[int, list[str]] = {}
        self._links: dict[int, list[_Link]] = {}
        self._skip = capture.skip_frames
        self._skipped: dict[int, list[bool]] = {}
        self._places: dict[int, Place] = {}
        self._wrappers: set[tuple[str, str]] | None = None

    def frames_of_code(self, code: int) -> list[Frame]:
        """The function at an address and those that it was inlined into, innermost first."""
        if code not in self._frames:
            function, module, file, line, outer, offset, nearest = self._sites[code]
            if function is None and module and not module.startswith("["):
                # Stripped code, as far as it can be told apart: from the nearest symbol before it, or by its offset.
                function = nearest or f"{module.rpartition('/')[2]}+{offset:#x}"
            found: list[Frame] = [{"function": function, "module": module, "file": file, "line": line}]
            for text in outer or []:
                match = INLINED.match(text)
                found.append(
                    {"function": match["function"], "module": module, "file": match["file"], "line": int(match["line"])}
                    if match and int(match["line"])
                    else {"function": text, "module": module, "file": None, "line": None}
                )
            self._frames[code] = found
        return self._frames[code]

    def frames(self, stack: int) -> list[Frame]:
        """Frames of a stack without those of our own library, innermost first."""
        return list(chain.from_iterable(map(self._shown_of_code, self.codes.get(stack, ()))))

    def _shown_of_code(self, code: int) -> list[Frame]:
        found = self._shown.get(code)
        if found is None:
            found = self._shown[code] = [
                frame for frame in self.frames_of_code(code) if not (frame["module"] or "").endswith("libmemlens.so")
            ]
        return found

    def names(self, stack: int) -> list[str]:
        """Function names, innermost first."""
        return list(chain.from_iterable(map(self._names_of_code, self.codes.get(stack, ()))))

    def _names_of_code(self, code: int) -> list[str]:
        found = self._names.get(code)
        if found is None:
            found = self._names[code] = [self._name(frame) for frame in self._shown_of_code(code)]
        return found

    @staticmethod
    def _name(frame: Frame) -> str:
        module = (frame["module"] or "?").rpartition("/")[2]
        function = frame["function"] or ""
        unnamed = not function or bool(UNNAMED.search(function))  # one node of a tree, not one an address
        return (module if module.startswith("[") else f"[{module}]") if unnamed else function

    def code_row(self, code: int | None) -> Frame | None:
        """The innermost frame at an address; None where there is no such code."""
        return self.frames_of_code(code)[0] if code is not None and code < len(self._sites) else None

    @staticmethod
    def is_library(frame: Frame) -> bool:
        """A frame of an allocator or of the C or C++ library."""
        return _is_library(frame["module"] or "", frame["function"] or "")

    def is_skipped(self, frame: Frame) -> bool:
        """A frame that is no place: the library's, a wrapper's, or one that the user asked to skip."""
        if self.is_library(frame) or self._key(frame) in self.wrappers:
            return True
        module = (frame["module"] or "").rpartition("/")[2]
        return self._skip is not None and bool(self._skip.search(frame["function"] or "") or self._skip.search(module))

    @property
    def wrappers(self) -> set[tuple[str, str]]:
        """(module, function without template arguments) of the functions that allocate for their callers."""
        if self._wrappers is None:
            self._wrappers = self._find_wrappers()
        return self._wrappers

    def place(self, frames: list[Frame]) -> Place:
        """The innermost frame that is not skipped, and `via`: the wrapper or library function behind it."""
        for at, frame in enumerate(frames):
            if not self.is_skipped(frame):
                return {**frame, "via": self._via(frames[:at])}
        for frame in frames:  # nothing but wrappers and libraries: the innermost frame that is the program's
            if not (frame["module"] or "").rpartition("/")[2].startswith(LIBRARY_MODULES):
                return {**frame, "via": None}
        return {**frames[0], "via": None} if frames else {**NO_FRAME, "via": None}

    def site(self, stack: int) -> Place:
        """Where a stack's allocation belongs: `place` of its frames."""
        if stack not in self._places:
            self._places[stack] = self.place(self.frames(stack))
        return self._places[stack]

    def _via(self, skipped: list[Frame]) -> str | None:
        """The wrapper nearest to the place; without one None, for every allocation goes through malloc."""
        for frame in reversed(skipped):
            module = (frame["module"] or "").rpartition("/")[2]
            if (
                frame["function"]
                and not module.startswith(LIBRARY_MODULES)
                and not SYSTEM_NAMES.match(frame["function"])
            ):
                return plain_name(frame["function"])
        return None

    @staticmethod
    def _key(frame: Frame) -> tuple[str, str]:
        return frame["module"] or "", plain_name(frame["function"] or "")

    def _find_wrappers(self) -> set[tuple[str, str]]:
        engine = self._capture.objects
        rows = engine.sites()
        stacks: dict[int, set[int]] = {}
        for kind, stack, size in zip(
            *(rows.column(name).to_pylist() for name in ("kind", "stack", "max_bytes")), strict=True
        ):
            if kind == "heap":
                stacks.setdefault(stack, set()).add(size)
        # For each stack the frames that are no library's: what is decided here is the first of them.
        chains = []
        for stack, sizes in stacks.items():
            links = list(chain.from_iterable(map(self._links_of_code, self.codes.get(stack, ()))))
            if len(links) > 1:
                chains.append((links, [key for key, _ in links], sizes))
        wrappers: set[tuple[str, str]] = set()
        layers: set[tuple[str, str]] = set()  # called from one point: wrappers if what calls them is one
        for _ in range(2 * MAX_WRAPPERS):
            users = self._users(chains, wrappers | layers)
            found = {key for key, seen in users.items() if seen.is_wrapper(key[1])}
            thin = {key for key, seen in users.items() if seen.is_layer(key[1])}
            if not found and not thin:
                break
            wrappers |= found
            layers |= thin
        for _, keys, _ in chains:
            pending: list[tuple[str, str]] = []
            for key in keys:
                if key in wrappers:
                    wrappers.update(pending)
                elif key not in layers:
                    break
                else:
                    pending.append(key)
        return wrappers

    def _links_of_code(self, code: int) -> list[_Link]:
        """Frames at an address that are no library's, as (key, point); a point is a line, or an address where lines are not known."""
        found = self._links.get(code)
        if found is None:
            found = self._links[code] = [
                (self._key(frame), (frame["file"], frame["line"]) if frame["line"] else (None, code))
                for frame in self.frames_of_code(code)
                if frame["function"] and not self.is_library(frame)
            ]
        return found

    @staticmethod
    def _users(
        chains: list[tuple[list[_Link], list[tuple[str, str]], set[int]]], decided: set[tuple[str, str]]
    ) -> dict[tuple[str, str], _Users]:
        users: dict[tuple[str, str], _Users] = {}
        for links, keys, sizes in chains:
            at = next((i for i, key in enumerate(keys[: 2 * MAX_WRAPPERS]) if key not in decided), None)
            if at is None or at + 1 >= len(links):
                continue
            key, point = links[at]
            entry = users.setdefault(key, _Users())
            entry.points.add(point)
            entry.sizes.setdefault(links[at + 1], set()).update(sizes)
            entry.recursive = entry.recursive or key in keys[at + 1 :]
        return users


class _Users:
    """Who allocates through a function: call points with the sizes that they ask for."""

    def __init__(self) -> None:
        self.points: set[_Point] = set()
        self.sizes: dict[_Link, set[int]] = {}
        self.recursive = False

    def is_wrapper(self, plain: str) -> bool:
        if self.recursive:
            return False
        last = plain.rpartition("::")[2]
        if ALLOCATING_NAME.search(last) and len(self.sizes) >= MIN_CALL_POINTS_NAMED:
            return True
        if len(self.points) > MAX_ALLOCATING_POINTS:
            return False
        different = len({frozenset(sizes) for sizes in self.sizes.values()}) > 1
        if is_constructor(plain):
            return different and len(self.sizes) >= MIN_CALL_POINTS_NAMED
        callers = {key for key, _ in self.sizes}
        return different and len(self.sizes) >= MIN_CALL_POINTS and len(callers) >= MIN_CALLERS

    def is_layer(self, plain: str) -> bool:
        """Named as an allocating function, or without a name, and called from one point only."""
        hidden = bool(ALLOCATING_NAME.search(plain.rpartition("::")[2])) or bool(UNNAMED.search(plain))
        return hidden and not self.recursive and len(self.sizes) == 1


def call_stacks(capture: StackSource) -> CallStacks:
    """The capture's call stacks, made once."""
    made = capture.derived.get("call_stacks")
    if made is None or made._skip is not capture.skip_frames or made.codes is not capture.replay.stacks:
        made = capture.derived["call_stacks"] = CallStacks(capture)
    return made
