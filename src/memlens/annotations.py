"""Regions, phases and tags for Python programs; the counterpart of memlens.h.

>>> import memlens
>>> with memlens.region("solve"):
...     total = sum(range(10))
>>> memlens.phase("output")

A program may carry these calls anywhere: while nothing records they do nothing. The recorder's library, if there is one, was
loaded before Python started and offers a table of functions named `memlens_hooks`; it is looked up once, when this module is
imported. This module is a leaf: it knows the table's layout (native/include/memlens.h) and no other part of memlens.
"""

from __future__ import annotations

import ctypes
import warnings
import weakref
from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

__all__ = ["Region", "Tag", "is_recording", "phase", "region", "tag", "untag"]

Parameters = ParamSpec("Parameters")
Returned = TypeVar("Returned")

HOOKS_VERSION = 1

# PYFUNCTYPE keeps the interpreter lock: a hook is shorter than giving the lock away and taking it back.
_NAME_HOOK = ctypes.PYFUNCTYPE(None, ctypes.c_char_p)
_TAG_HOOK = ctypes.PYFUNCTYPE(None, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_size_t)
_UNTAG_HOOK = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)
_STATE_HOOK = ctypes.PYFUNCTYPE(ctypes.c_int32)


class _Hooks(ctypes.Structure):
    """struct memlens_hooks of memlens.h."""

    _fields_ = (
        ("version", ctypes.c_uint32),
        ("bytes", ctypes.c_uint32),
        ("region_begin", _NAME_HOOK),
        ("region_end", _NAME_HOOK),
        ("phase", _NAME_HOOK),
        ("tag", _TAG_HOOK),
        ("untag", _UNTAG_HOOK),
        ("is_recording", _STATE_HOOK),
    )


def _find_hooks() -> _Hooks | None:
    try:
        hooks = _Hooks.in_dll(ctypes.CDLL(None), "memlens_hooks")
    except (OSError, ValueError):  # no such symbol: nothing records
        return None
    return hooks if hooks.version == HOOKS_VERSION and hooks.bytes >= ctypes.sizeof(_Hooks) else None


_hooks = _find_hooks()
# Reading a member of a ctypes structure makes a new object each time; these are read at every call.
_begin: Callable[[bytes], None] | None = _hooks.region_begin if _hooks else None
_end: Callable[[bytes], None] | None = _hooks.region_end if _hooks else None
_phase: Callable[[bytes], None] | None = _hooks.phase if _hooks else None
_tag: Callable[[bytes, int, int], None] | None = _hooks.tag if _hooks else None
_untag: Callable[[int], None] | None = _hooks.untag if _hooks else None
_is_recording: Callable[[], int] | None = _hooks.is_recording if _hooks else None


def _encoded(name: str) -> bytes:
    # Names may come from files' names, which need not be text.
    return name.encode("utf-8", "surrogateescape")


def is_recording() -> bool:
    """Whether a recorder listens now."""
    return _is_recording is not None and _is_recording() != 0


def phase(name: str) -> None:
    """Begins a phase of the whole process; it lasts until the next one."""
    if _phase is not None:
        _phase(_encoded(name))


class Region:
    """What `region` returns: a context manager and a decorator, to be used any number of times."""

    __slots__ = ("_name",)

    def __init__(self, name: bytes) -> None:
        self._name = name

    def __enter__(self) -> None:
        if _begin is not None:
            _begin(self._name)

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if _end is not None:
            _end(self._name)

    def __call__(self, function: Callable[Parameters, Returned]) -> Callable[Parameters, Returned]:
        from inspect import isasyncgenfunction, iscoroutinefunction, isgeneratorfunction

        if iscoroutinefunction(function) or isgeneratorfunction(function) or isasyncgenfunction(function):
            # Said whether or not something records, so that recording never finds an error that was not there before.
            raise TypeError(
                f"a region cannot be around {function.__qualname__}, which waits inside; use `with memlens.region(...)` in it"
            )
        if _begin is None:
            return function

        @wraps(function)
        def in_region(*arguments: Parameters.args, **options: Parameters.kwargs) -> Returned:
            with self:
                return function(*arguments, **options)

        return in_region


class _SilentRegion(Region):
    """While nothing records: the one region that all calls share.

    Entering and leaving are built-in functions that take what `with` gives them, return nothing true and do nothing, because
    calling two empty Python functions takes longer than all the rest.
    """

    __slots__ = ()
    __enter__ = staticmethod({}.clear)  # type: ignore[assignment]
    __exit__ = staticmethod("".format)  # type: ignore[assignment]


_NO_REGION = _SilentRegion(b"")


def region(name: str) -> Region:
    """A region of the calling thread: `with memlens.region("solve"):`, or `@memlens.region("solve")` above a function.

    Regions nest. They belong to a thread, not to a task: do not `await` or `yield` inside one, because another task of the
    same thread would then run in it and could end its own regions in the wrong order. For the same reason a decorated
    function cannot be a coroutine or a generator; put `with memlens.region(...)` around the parts that do not wait.

    >>> @region("double")
    ... def double(value):
    ...     return 2 * value
    >>> double(4)
    8
    """
    if _begin is None:
        return _NO_REGION
    return Region(_encoded(name))


class Tag:
    """A name that was given to memory; `remove()`, or the end of a `with` block, takes it back."""

    __slots__ = ("_address", "_finalizer")

    def __init__(self, address: int | None) -> None:
        self._address = address
        self._finalizer: weakref.finalize[Any, object] | None = None

    def remove(self) -> None:
        """Takes the name back; does nothing if that has happened already or another tag has replaced this one."""
        if self._address is None:
            return
        address, self._address = self._address, None
        if self._finalizer is not None:
            self._finalizer.detach()
        if _tags.get(address) is self:
            del _tags[address]
            if _untag is not None:
                _untag(address)

    def __enter__(self) -> Tag:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.remove()


_NO_TAG = Tag(None)
# By first byte, as the recorder knows them: the newest tag of an address counts.
_tags: dict[int, Tag] = {}


def tag(name: str, memory: object) -> Tag:
    """Names the memory of `memory`: an array, anything with the buffer protocol, or (address, bytes).

    Of a view, also one with gaps or of negative step, the span from its lowest to its highest byte is named.

    The tag does not keep the memory alive and does not keep it in place. It ends with `remove()`, with a `with` block, with
    `untag`, or when the object that owns the memory dies (of a NumPy view that is its base; objects without weak references,
    such as bytearray, have to be untagged by hand, and before they are resized). A second tag that begins at the same byte
    replaces the first.

    What cannot be tagged is a warning, never an error: a program must not fail because it is being recorded.
    """
    if _tag is None:
        return _NO_TAG
    try:
        address, n_bytes, owner = _span(memory)
    except (TypeError, ValueError, BufferError) as error:
        warnings.warn(f"memlens.tag({name!r}): {error}", RuntimeWarning, stacklevel=2)
        return _NO_TAG
    if n_bytes == 0:
        return _NO_TAG
    made = Tag(address)
    replaced = _tags.get(address)
    if replaced is not None and replaced._finalizer is not None:
        replaced._finalizer.detach()
    _tags[address] = made
    _tag(_encoded(name), address, n_bytes)
    if owner is not None:
        try:
            made._finalizer = weakref.finalize(owner, made.remove)
            made._finalizer.atexit = False  # the process's end is the end of all tags
        except TypeError:
            pass  # no weak references: the caller's to untag
    return made


def untag(memory: object) -> None:
    """Takes back the name of a `Tag`, of an array or buffer, of (address, bytes), or of an address."""
    if _untag is None:
        return
    if isinstance(memory, Tag):
        memory.remove()
        return
    if isinstance(memory, int):
        address = memory
    else:
        try:
            address, _, _ = _span(memory)
        except (TypeError, ValueError, BufferError) as error:
            warnings.warn(f"memlens.untag: {error}", RuntimeWarning, stacklevel=2)
            return
    known = _tags.get(address)
    if known is not None:
        known.remove()
    else:
        _untag(address)


# ---- where an object's memory is ------------------------------------------------------


class _Buffer(ctypes.Structure):
    """Py_buffer, part of Python's stable ABI since 3.11."""

    _fields_ = (
        ("buf", ctypes.c_void_p),
        ("obj", ctypes.py_object),
        ("len", ctypes.c_ssize_t),
        ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int),
        ("ndim", ctypes.c_int),
        ("format", ctypes.c_char_p),
        ("shape", ctypes.POINTER(ctypes.c_ssize_t)),
        ("strides", ctypes.POINTER(ctypes.c_ssize_t)),
        ("suboffsets", ctypes.POINTER(ctypes.c_ssize_t)),
        ("internal", ctypes.c_void_p),
    )


_FULL_READ_ONLY = 0x0100 | 0x0010 | 0x0008 | 0x0004  # PyBUF_FULL_RO


def _span(memory: object) -> tuple[int, int, object | None]:
    """(lowest address, bytes to the end of the highest element, the object that owns the memory)."""
    if isinstance(memory, tuple):
        if len(memory) != 2 or not all(isinstance(part, int) for part in memory) or min(memory) < 0:
            raise TypeError("expected (address, bytes)")
        return memory[0], memory[1], None
    interface = getattr(memory, "__array_interface__", None)
    if isinstance(interface, dict):
        place = interface.get("data")
        if isinstance(place, tuple):
            item_bytes = int(interface["typestr"][2:].partition("[")[0])  # "<f8", "<M8[ns]"
            if interface["typestr"][1] == "U":
                item_bytes *= 4
            low, n_bytes = _strided(place[0], item_bytes, interface["shape"], interface.get("strides"))
            return low, n_bytes, _owner(memory)
        if place is not None:
            raise TypeError(f"{type(memory).__name__} shows a copy of its memory")
    return (*_buffer_span(memory), _owner(memory))


def _buffer_span(memory: object) -> tuple[int, int]:
    view = _Buffer()
    # Raises TypeError or BufferError itself; released at once, because a held buffer would forbid the program to resize it.
    ctypes.pythonapi.PyObject_GetBuffer(ctypes.py_object(memory), ctypes.byref(view), _FULL_READ_ONLY)
    try:
        if view.suboffsets and any(view.suboffsets[axis] >= 0 for axis in range(view.ndim)):
            raise BufferError(f"{type(memory).__name__} is made of separate pieces")
        shape = tuple(view.shape[: view.ndim]) if view.shape else (view.len // max(view.itemsize, 1),)
        strides = tuple(view.strides[: view.ndim]) if view.strides else None
        return _strided(view.buf or 0, view.itemsize, shape, strides)
    finally:
        ctypes.pythonapi.PyBuffer_Release(ctypes.byref(view))


def _strided(first: int, item_bytes: int, shape: tuple[int, ...], strides: tuple[int, ...] | None) -> tuple[int, int]:
    """The span of a strided array whose element (0, 0, ...) is at `first`.

    >>> _strided(1000, 8, (4, 3), (48, 8))  # three of six columns
    (1000, 168)
    >>> _strided(1024, 8, (4,), (-8,))  # reversed
    (1000, 32)
    """
    if 0 in shape or item_bytes == 0:
        return first, 0
    if strides is None:
        count = 1
        for length in shape:
            count *= length
        return first, count * item_bytes
    steps = [(length - 1) * stride for length, stride in zip(shape, strides, strict=True)]
    low = first + sum(step for step in steps if step < 0)
    high = first + sum(step for step in steps if step > 0) + item_bytes
    return low, high - low


def _owner(memory: object) -> object:
    """Whose death frees the memory: a view, often a temporary, may die long before."""
    owner = memory
    for _ in range(100):  # NumPy keeps such chains short; a broken `base` must not keep us here
        below = owner.obj if isinstance(owner, memoryview) else getattr(owner, "base", None)
        if below is None:
            break
        owner = below
    return owner
