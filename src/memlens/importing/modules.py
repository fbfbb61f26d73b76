"""Files whose code a trace ran, where a person says at which address they lay: mappings that name its instructions."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ..capture.model.sections import read_elf
from ..errors import TraceError

if TYPE_CHECKING:
    from .target import ImportTarget

READ_EXECUTE = 5
PAGE = 4096


def map_modules(target: ImportTarget, process: int, modules: tuple[tuple[str, int], ...]) -> None:
    """Mappings of all loaded parts of each file, its bias added to the addresses that the file has."""
    for path, bias in modules:
        path = os.path.abspath(path)
        file = read_elf(path)
        if file is None:
            raise TraceError(
                f"{path} cannot be read as a 64-bit ELF file", hint="give --module FILE@ADDRESS with the program"
            )
        status = os.stat(path)
        for offset, address, size in file.segments:
            lead = offset % PAGE
            target.mapping(
                process, time_ns=0, address=bias + address - lead, size=size + lead + (-(size + lead) % PAGE),
                file_offset=offset - lead, path=path, inode=status.st_ino, device_major=os.major(status.st_dev),
                device_minor=os.minor(status.st_dev), protection=READ_EXECUTE,
            )  # fmt: skip
