"""Version scripts that say `local: *` would hide our runtime in a library: it would then count with a copy of its own,
and not for the region of its caller.

A script with named versions takes a second one beside it, ours. One without a name stands alone (GNU ld refuses a
second), so a copy with our names in it takes its place, kept in the cache under the name of its content.
"""

from __future__ import annotations

import os

NAMES = "__memlens_count_*; __memlens_trace*;"


def with_our_names(text: str) -> str:
    """A version script without names that keeps our symbols visible; "" when it names versions.

    >>> with_our_names("{ local: *; };")
    '{ global: __memlens_count_*; __memlens_trace*; local: *; };'
    >>> with_our_names("{ global: f; local: *; };")
    '{ global: __memlens_count_*; __memlens_trace*; f; local: *; };'
    >>> with_our_names("V1 { local: *; };")
    ''
    """
    import re

    bare = re.sub(r"/\\*.*?\\*/", lambda m: " " * len(m.group()), text, flags=re.DOTALL)
    bare = re.sub(r"#[^\n]*", lambda m: " " * len(m.group()), bare)
    begin = bare.find("{")
    if begin < 0 or bare[:begin].strip():
        return ""
    found = re.search(r"\bglobal\s*:", bare)
    if found:
        return f"{text[: found.end()]} {NAMES}{text[found.end() :]}"
    found = re.match(r"\s*local\s*:", bare[begin + 1 :])
    label = " global:" if found else ""
    return f"{text[: begin + 1]}{label} {NAMES}{text[begin + 1 :]}"


def adapted(path: str, environment: dict[str, str]) -> str | None:
    """The script to use instead of `path`; "" = the same, with ours beside it; None = leave it alone."""
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            text = file.read()
    except OSError:
        return None  # the linker says what is wrong with it
    changed = with_our_names(text)
    if not changed:
        return "" if "{" in text else None
    import hashlib

    content = changed.encode("utf-8", "surrogateescape")
    cache = environment.get("XDG_CACHE_HOME") or os.path.join(environment.get("HOME") or "/nonexistent", ".cache")
    place = os.path.join(cache, "memlens", "version-scripts", hashlib.sha256(content).hexdigest()[:24])
    if os.path.exists(place):
        return place
    try:
        os.makedirs(os.path.dirname(place), exist_ok=True)
        part = f"{place}.{os.getpid()}"
        with open(part, "wb") as output:
            output.write(content)
        os.replace(part, place)  # whole or not at all: another link may read it now
    except OSError:
        return None
    return place


def replaced(arguments: list[str], old: str, new: str) -> list[str]:
    """Arguments with one script in place of another, wherever -Wl and -Xlinker name it.

    >>> replaced(["-Wl,-z,defs,--version-script=a", "-Xlinker", "a", "a"], "a", "b")
    ['-Wl,-z,defs,--version-script=b', '-Xlinker', 'b', 'a']
    """

    def one(word: str) -> str:
        if word == old:
            return new
        return word.removesuffix(old) + new if word.endswith(f"version-script={old}") else word

    found = []
    for position, argument in enumerate(arguments):
        if argument.startswith("-Wl,"):
            argument = ",".join(map(one, argument.split(",")))
        elif position and arguments[position - 1] == "-Xlinker":
            argument = one(argument)
        found.append(argument)
    return found
