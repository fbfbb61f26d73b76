"""Mutants of captures: every file, every field of meta.json and of records, every boundary, every side table.

Each function changes one thing in a copy and says what; records and headers get sound checksums, so that readers believe them.
"""

from __future__ import annotations

import json
import os
import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

from memlens.capture.store.layouts import Field, Layout, layout_of_kind, records_with_tails

from .chunk_files import CHUNK_FIELDS, CHUNK_HEADER, FILE_FIELDS, read_chunk_file, write_chunk_file
from .values import HOSTILE, wrong_number, wrong_value

Mutation = Callable[[Path, random.Random], str]


def _paths(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a JSON value."""
    found = [at] if at else []
    if isinstance(value, dict):
        for key, inner in value.items():
            found += _paths(inner, (*at, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value[:4]):
            found += _paths(inner, (*at, index))
    return found


def meta_field(folder: Path, draw: random.Random) -> str:
    """One field of meta.json gets another value, goes away, or comes twice."""
    meta = json.loads((folder / "meta.json").read_text())
    place = draw.choice(_paths(meta))
    owner = meta
    for key in place[:-1]:
        owner = owner[key]
    name = ".".join(map(str, place))
    if isinstance(owner, dict) and draw.random() < 0.15:
        del owner[place[-1]]
        what = f"meta.json without {name}"
    elif isinstance(owner, list) and draw.random() < 0.15:
        owner.extend(owner * draw.choice((1, 50)))
        what = f"meta.json: {name} repeated"
    else:
        owner[place[-1]] = wrong_value(draw)
        what = f"meta.json: {name} = {str(owner[place[-1]])[:40]!r}"
    (folder / "meta.json").write_text(json.dumps(meta))
    return what


def meta_raw(folder: Path, draw: random.Random) -> str:
    """meta.json as bytes: cut, flipped, too deep, too long, of another encoding."""
    path = folder / "meta.json"
    raw = path.read_bytes()
    how = draw.choice(("cut", "flip", "deep", "empty", "latin", "digits", "list", "twice", "nul", "zeros"))
    if how == "cut":
        raw = raw[: draw.randrange(len(raw))]
    elif how == "flip":
        at = draw.randrange(len(raw))
        raw = raw[:at] + bytes([raw[at] ^ (1 << draw.randrange(8))]) + raw[at + 1 :]
    elif how == "deep":
        raw = raw.replace(b'"machine": {', b'"deep": ' + b"[" * 100_000 + b"]" * 100_000 + b', "machine": {', 1)
    elif how == "latin":
        raw = raw.replace(b'"state"', b'"\xe9\xff": 1, "state"', 1)
    elif how == "digits":
        raw = raw.replace(b'"state"', b'"pid": ' + b"9" * 10_000 + b', "state"', 1)
    else:
        raw = {"empty": b"", "list": b"[]", "twice": raw + raw, "nul": raw + b"\0", "zeros": b" " * (1 << 22)}[how]
    path.write_bytes(raw)
    return f"meta.json: {how}"


def _record_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("records-*.mlc"))


def record_field(folder: Path, draw: random.Random) -> str:
    """One field of one record, or of all records of a chunk; checksums are made anew."""
    path = draw.choice(_record_files(folder))
    file = read_chunk_file(path)
    kinds: dict[int, list[int]] = {}
    for number, chunk in enumerate(file.chunks):
        if layout_of_kind(chunk.header["kind"]) and chunk.payload:
            kinds.setdefault(chunk.header["kind"], []).append(number)
    kind = draw.choice(sorted(kinds))  # rare kinds as often as common ones
    chunk = file.chunks[draw.choice(kinds[kind])]
    layout = layout_of_kind(kind)
    assert layout is not None
    offsets = _record_offsets(layout, chunk.payload)
    if not offsets:
        return "nothing"
    payload = bytearray(chunk.payload)
    if layout.has_tail and draw.random() < 0.4:
        what = _change_tail(payload, layout, draw.choice(offsets), draw)
    else:
        field = draw.choice(layout.fields)
        code = {"<u1": "B", "<u2": "H", "<u4": "I", "<u8": "Q", "<i2": "H", "<i4": "I", "<i8": "Q"}[field.code]
        others = [struct.unpack_from("<" + code, payload, at + field.offset)[0] for at in offsets[:50]]
        chosen = offsets if draw.random() < 0.15 else [draw.choice(offsets)]
        value = 0
        for at in chosen:
            (now,) = struct.unpack_from("<" + code, payload, at + field.offset)
            value = wrong_number(draw, 8 * struct.calcsize(code), now, others)
            struct.pack_into("<" + code, payload, at + field.offset, value)
        what = f"{layout.name}.{field.name} = {value:#x}{' and others' if len(chosen) > 1 else ''}"
    chunk.payload = bytes(payload)
    write_chunk_file(path, file)
    return what


def _record_offsets(layout: Layout, payload: bytes) -> list[int]:
    if not layout.has_tail:
        return list(range(0, len(payload) - layout.record_bytes + 1, layout.record_bytes))
    offsets, at = [], 0
    for _, tail in records_with_tails(layout, payload):
        offsets.append(at)
        at += layout.record_bytes + len(tail) + (-len(tail) % 8)
    return offsets


def _change_tail(payload: bytearray, layout: Layout, at: int, draw: random.Random) -> str:
    field: Field = next(field for field in layout.fields if field.name == "tail_bytes")
    (length,) = struct.unpack_from("<I", payload, at + field.offset)
    begin = at + layout.record_bytes
    if layout.name == "string" and draw.random() < 0.7:
        text = draw.choice(HOSTILE).encode("utf-8", "surrogatepass")[:length].ljust(length, b"!")
        payload[begin : begin + length] = text
        return f"string {text[:30]!r}"
    if length and draw.random() < 0.8:
        places = [draw.randrange(length) for _ in range(draw.choice((1, 1, 1, 2, 8)))]
        for place in places:
            payload[begin + place] = draw.choice((0, 0xFF, 0x7F, 0x80, draw.randrange(256), payload[begin + place] ^ 1))
        return f"{layout.name}: bytes {places[:4]} of a tail"
    value = wrong_number(draw, 32, length, [])
    struct.pack_into("<I", payload, at + field.offset, value)
    return f"{layout.name}.tail_bytes = {value:#x}"


def header_field(folder: Path, draw: random.Random) -> str:
    """A field of a chunk's or a file's header, with a checksum that fits."""
    path = draw.choice(_record_files(folder))
    file = read_chunk_file(path)
    if draw.random() < 0.2 or not file.chunks:
        name = draw.choice(FILE_FIELDS[:-1])
        file.header[name] = wrong_number(
            draw, 32 if name in ("format_version", "header_bytes", "pid", "writer") else 64, file.header[name], []
        )
        write_chunk_file(path, file)
        return f"file header {name} = {file.header[name]:#x}"
    name = draw.choice(CHUNK_FIELDS[:-1])
    bits = {"Q": 64, "I": 32, "H": 16}[CHUNK_HEADER.format[1:][CHUNK_FIELDS.index(name)]]
    chunk = draw.choice(file.chunks)
    others = [other.header[name] for other in file.chunks]
    chunk.header[name] = wrong_number(draw, bits, chunk.header[name], others)
    for number, other in enumerate(file.chunks):
        if name == "sequence" and other is not chunk:
            other.header["sequence"] = number
        elif other is not chunk:
            other.header |= {"magic": 0x4B4E4843, "header_bytes": CHUNK_HEADER.size, "encoding": 0,
                             "stored_bytes": len(other.payload), "payload_bytes": len(other.payload),
                             "payload_checksum": 0 if name == "payload_checksum" else other.header["payload_checksum"]}  # fmt: skip
    write_chunk_file(path, file, keep=frozenset([name]))
    return f"chunk header {name} = {chunk.header[name]:#x}"


def chunk_order(folder: Path, draw: random.Random) -> str:
    """Chunks removed, doubled, swapped, emptied, of another kind, with bytes too many or too few."""
    path = draw.choice(_record_files(folder))
    file = read_chunk_file(path)
    if not file.chunks:
        return "nothing"
    at = draw.randrange(len(file.chunks))
    how = draw.choice(("remove", "double", "swap", "empty", "kind", "short", "long", "remove kind", "many"))
    chunk = file.chunks[at]
    if how == "remove":
        del file.chunks[at]
    elif how == "double":
        file.chunks.insert(draw.randrange(len(file.chunks)), chunk)
    elif how == "swap":
        other = draw.randrange(len(file.chunks))
        file.chunks[at], file.chunks[other] = file.chunks[other], file.chunks[at]
    elif how == "empty":
        chunk.payload = b""
    elif how == "kind":
        chunk.header["kind"] = draw.choice(file.chunks).header["kind"]
    elif how == "short":
        chunk.payload = chunk.payload[: draw.randrange(len(chunk.payload) + 1)]
    elif how == "long":
        chunk.payload += draw.randbytes(draw.randrange(1, 200))
    elif how == "many":
        chunk.payload *= 20
    else:
        kind = chunk.header["kind"]
        file.chunks = [other for other in file.chunks if other.header["kind"] != kind]
    write_chunk_file(path, file)
    return f"chunk {at} of {path.name}, kind {chunk.header['kind']}: {how}"


def raw_bytes(folder: Path, draw: random.Random) -> str:
    """A file cut anywhere, or some of its bytes changed."""
    path = draw.choice([path for path in sorted(folder.iterdir()) if path.is_file() and path.stat().st_size])
    content = bytearray(path.read_bytes())
    if draw.random() < 0.4:
        keep = draw.randrange(len(content))
        path.write_bytes(content[:keep])
        return f"{path.name} cut to {keep} bytes"
    places = [draw.randrange(len(content)) for _ in range(draw.choice((1, 2, 4, 16)))]
    for place in places:
        content[place] = draw.choice((0, 0xFF, 0x7F, 0x80, draw.randrange(256)))
    path.write_bytes(content)
    return f"{path.name}: bytes {places[:4]} changed"


def special_file(folder: Path, draw: random.Random) -> str:
    """A file of the capture becomes a pipe, a link, a directory, a device, or goes away."""
    path = draw.choice(sorted(folder.iterdir()))
    how = draw.choice(
        ("fifo", "zero", "full", "dangling", "loop", "directory", "gone", "tty", "proc", "unreadable", "hole")
    )
    path.unlink()
    if how == "fifo":
        os.mkfifo(path)
    elif how == "directory":
        path.mkdir()
    elif how == "unreadable":
        path.write_bytes(b"x")
        path.chmod(0)
    elif how == "hole":
        with open(path, "wb") as file:
            file.truncate(1 << 40)
    elif how != "gone":
        targets = {"zero": "/dev/zero", "full": "/dev/full", "dangling": "/nowhere", "loop": path.name, "tty": "/dev/tty",
                   "proc": "/proc/self/mem"}  # fmt: skip
        path.symlink_to(targets[how])
    return f"{path.name}: {how}"


def side_table(folder: Path, draw: random.Random) -> str:
    """A side table with columns missing, of other types, with other values, or of other rows."""
    import pyarrow as pa
    import pyarrow.parquet as parquet

    tables = sorted(folder.glob("*.parquet"))
    if not tables:
        return "nothing"
    path = draw.choice(tables)
    table = parquet.read_table(path, use_threads=False)
    how = draw.choice(("drop", "type", "value", "value", "value", "null", "rows", "double", "rename", "order"))
    names = table.column_names
    at = draw.randrange(len(names))
    name = names[at]
    column = table.column(at)
    if how == "drop":
        table = table.drop_columns([name])
    elif how == "type":
        kind = draw.choice(
            (pa.string(), pa.int8(), pa.float64(), pa.binary(), pa.list_(pa.int32()), pa.bool_(), pa.null())
        )
        table = table.set_column(at, name, pa.nulls(len(column), kind))
    elif how == "null":
        table = table.set_column(at, name, pa.nulls(len(column), column.type))
    elif how == "rows":
        table = table.slice(0, draw.randrange(len(column) + 1))
    elif how == "double":
        table = pa.concat_tables([table] * draw.choice((2, 20)))
    elif how == "order":
        order = list(range(len(column)))
        draw.shuffle(order)
        table = table.take(order)
    elif how == "rename":
        table = table.rename_columns([*names[:at], "x", *names[at + 1 :]])
    else:
        values = column.to_pylist()
        if not values:
            return "nothing"
        for row in [draw.randrange(len(values))] if draw.random() < 0.7 else range(len(values)):
            values[row] = _table_value(column.type, values, draw)
        table = table.set_column(at, name, pa.array(values, column.type))
    parquet.write_table(table, path, compression="zstd")
    return f"{path.name}: {name}: {how}"


def _table_value(kind: Any, values: list[Any], draw: random.Random) -> Any:
    import pyarrow as pa

    if pa.types.is_integer(kind):
        bits = kind.bit_width
        number = wrong_number(draw, bits, next((v for v in values if v is not None), 0) % (1 << bits), [])
        return number - (1 << bits) if pa.types.is_signed_integer(kind) and number >> (bits - 1) else number
    if pa.types.is_floating(kind):
        return draw.choice((0.0, -1.0, 1e308, float("nan"), float("inf"), 1e-300))
    if pa.types.is_string(kind):
        return draw.choice(HOSTILE).encode("utf-8", "replace").decode()
    return draw.choice(values)


def arena_number(folder: Path, draw: random.Random) -> str:
    """A number in what a process left in its own arena or rings, at a natural place that holds something."""
    path = draw.choice(sorted([*folder.glob("*.mla"), *folder.glob("*.mlr")]))
    with open(path, "r+b") as file:
        content = file.read(1 << 22)
        size = draw.choice((1, 2, 4, 4, 8, 8))
        for _ in range(1000):
            at = draw.randrange(0, draw.choice((256, 4096, len(content))) - size, size)
            now = int.from_bytes(content[at : at + size], "little")
            if now:
                break
        value = wrong_number(draw, 8 * size, now, [])
        file.seek(at)
        file.write(value.to_bytes(size, "little"))
    return f"{path.name}: {size} bytes at {at} = {value:#x}"


MUTATIONS: tuple[tuple[Mutation, int], ...] = (
    (meta_field, 8), (meta_raw, 2), (record_field, 12), (header_field, 3), (chunk_order, 3), (raw_bytes, 3), (special_file, 2),
    (side_table, 5), (arena_number, 10),
)  # fmt: skip


def mutate(folder: Path, draw: random.Random) -> str:
    """One to three changes; what they are. A change for which this capture has no file is drawn anew."""
    functions, weights = zip(*MUTATIONS, strict=True)
    said: list[str] = []
    wanted = draw.choice((1, 1, 1, 1, 2, 3))
    for _ in range(50):
        change = draw.choices(functions, weights)[0]
        try:
            said.append(change(folder, draw))
            if change is special_file:
                break  # another change may read that file, which may have no end
        except Exception:
            if said:
                break  # a change before it left nothing to change
        if len(said) == wanted:
            break
    return "; ".join(said)
