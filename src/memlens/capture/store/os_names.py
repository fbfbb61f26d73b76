"""Names of the operating system as text: paths and arguments are bytes, and need not be UTF-8.

A capture keeps the bytes of names in its string records. Wherever a name is text (tables, `meta.json`, reports) bytes that are
no UTF-8 are escaped, as in ``a\\xffb``, so that the text can be encoded by anybody.
"""

from __future__ import annotations

import os
import re


def text_of(name: bytes) -> str:
    """A name's bytes as text; a zero byte, which only damage puts there, is escaped too.

    >>> text_of(b"/srv/caf\\xc3\\xa9"), text_of(b"a\\xffb")
    ('/srv/café', 'a\\\\xffb')
    """
    return name.replace(b"\0", b"\\x00").decode("utf-8", "backslashreplace")


def shown(name: str | os.PathLike[str]) -> str:
    """The same of a name as Python has it, with surrogates for bytes that it could not decode.

    >>> shown(os.fsdecode(b"a\\xffb"))
    'a\\\\xffb'
    """
    return text_of(os.fsencode(name))


def working_directory() -> str:
    """Where this process is, as text; a directory that was removed has no name any more."""
    try:
        return shown(os.getcwd())
    except OSError:
        return "(removed)"


ESCAPED = re.compile(rb"\\x([89a-f][0-9a-f])")


def file_of(text: str) -> str:
    """The path to open for a path of a capture.

    An escape may be part of the file's name as well: the name as it is written goes first.

    >>> file_of("/usr/lib"), file_of("/no/such")
    ('/usr/lib', '/no/such')
    """
    text = text.replace("\0", "\\x00")  # of a damaged capture: no path has one
    if "\\x" not in text or os.path.lexists(text):
        return text
    real = os.fsdecode(ESCAPED.sub(lambda match: bytes.fromhex(match[1].decode()), text.encode("utf-8", "replace")))
    return real if os.path.lexists(real) else text
