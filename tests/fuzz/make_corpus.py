"""Writes the seeds of the fuzz targets: tests/fuzz/corpus/TARGET/seed-*.

    python3 tests/fuzz/make_corpus.py [--memlens .venv/bin/memlens]

From our own captures (tests/captures, and fresh ones where memlens is given), traces that benchmarks/attacking/seeds.py makes, and small
programs compiled here. Nothing comes from other projects. What fuzzing found is added by `tools/fuzz.py corpus`.
"""

from __future__ import annotations

import argparse
import lzma
import shutil
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CORPUS = ROOT / "tests" / "fuzz" / "corpus"
sys.path.insert(0, str(ROOT / "benchmarks"))

PROGRAM = r"""
struct node { node* next; char kind; double weight; struct { short a, b; } pair[3]; unsigned low : 3, high : 9; };
union number { int i; double d; char text[24]; };
namespace ns { template <class T> struct held { T all[6]; static T one; }; template <class T> T held<T>::one; }
struct shape { virtual double area() const; int x; };
struct round_shape : node, virtual shape { char c; double area() const override; };
node nodes[5][4]; number numbers[3]; ns::held<node> held; thread_local node own[9];
enum class color { red, green } last;
template struct ns::held<number>;
static inline __attribute__((always_inline)) int twice(int i) { return nodes[i & 3][1].kind * 2 + i; }
static inline __attribute__((always_inline)) int four(int i) { static int seen[4]; return twice(twice(i)) + seen[i & 3]++; }
double shape::area() const { return x; }
double round_shape::area() const { return four(x) + weight; }
extern "C" int used(int i, int (*call)(node&)) { return call(nodes[0][i & 3]) + four(i) + own[1].kind; }
int deeper(int i, int* into) { char room[64]; for (int k = 0; k < 64; k++) room[k] = (char)(i + k); *into = room[i & 63]; return used(i, nullptr) + 1; }
"""


def run(*command: str | Path, folder: Path | None = None) -> bool:
    done = subprocess.run([str(part) for part in command], cwd=folder, capture_output=True, check=False)
    return done.returncode == 0


def put(target: str, name: str, content: bytes) -> None:
    folder = CORPUS / target
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"seed-{name}").write_bytes(content)


# ---- captures -------------------------------------------------------------------------------
def from_captures(memlens: str | None) -> None:
    for capture in sorted((ROOT / "tests" / "captures").glob("*.memlens")):
        put("chunks", capture.stem, (capture / "records-recorder.mlc").read_bytes())
    if memlens is None:
        return
    from attacking import chunk_files, seeds  # noqa: F401

    with tempfile.TemporaryDirectory() as scratch:
        for capture in seeds.captures(Path(scratch)):
            for file in capture.glob("*.mlc"):
                if file.stat().st_size < 12_000:
                    put("chunks", f"{capture.stem}-{file.stem}", file.read_bytes())


# ---- traces ---------------------------------------------------------------------------------
def from_traces() -> None:
    from attacking import seeds

    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        try:
            seeds.traces(folder)
        except ModuleNotFoundError as missing:  # pyarrow, for one of the compressed forms
            print(f"left out: {missing}")
        lackey = (folder / "lackey" / "a.log").read_bytes()
        put("lackey", "trace", b"\x0b" + lackey[:3000])
        put(
            "lackey",
            "times",
            b"\x08==00:00:00:01.250 4711== Command: ./a b\n--4711:1:main text\nI  04001100,3\n L 1ffeffe7e0,8\n M 1ffe,4\r\n",
        )
        memgaze = (folder / "memgaze" / "m.trace").read_bytes()
        put("memgaze", "trace", b"\x0b\0" + memgaze[:3000])
        put(
            "memgaze",
            "modules",
            b"\x08\1DSO: x\n/bin/prog 0\n/lib/libc.so 1\nTRACE: y\n0x1000 0x7f0000 2 14710875.296471960 90 0\n0x1004 0x7f0008 3 14710875.3 91 1\n",
        )
        put(
            "drmemtrace",
            "trace",
            b"\x11\0" + (folder / "drmemtrace" / "drmemtrace.app.100.0001.trace").read_bytes()[:3000],
        )
        entry = struct.Struct("<HHQ")
        bundles = [
            (25, 0, 7),
            (22, 4, 9),
            (24, 4, 9),
            (10, 4, 0x401000),
            (17, 3, 0x050403),
            (0, 8, 0x7000),
            (28, 14, 1),
            (1, 4, 0x7008),
            (28, 14, 2),
            (0, 8, 1),
            (26, 0, 0),
        ]
        put("drmemtrace", "bundles", b"\x05\0" + b"".join(entry.pack(*one) for one in bundles))
        psb = b"\x02\x82" * 8
        packets = psb + b"\x19" + (2000).to_bytes(7, "little") + b"\x02\x23"
        for i in range(20):
            packets += (
                b"\x02\xb2" + (0x7000 + 8 * i).to_bytes(8, "little") + b"\xdd" + (0x401000 + i).to_bytes(8, "little")
            )
        put("ptwrite", "addresses", b"\0\0" + packets)
        timed = (
            psb
            + b"\x02\x73\x10\x20\0\x40\0"
            + b"\x59\x11"
            + b"\x02\x12\1\2\3\4"
            + b"\x59\x15"
            + b"\x02\xf3"
            + psb
            + b"\x19"
            + (9000).to_bytes(7, "little")
        )
        timed += (
            b"\x02\x63\x01\x04"
            + b"\1" * 8
            + b"\x02\x33"
            + b"\x01"
            + b"\x31\1\2\3\4\5\6"
            + b"\x7d\x66\x55"
            + b"\x03\x0f\x05\xfe\xff"
        )
        put("ptwrite", "clocks", b"\0\0" + timed)
        put("ptwrite", "cpus", b"\x4c\2\x20\1\7\x40\2\x08\1" + bytes([len(packets) % 256]) + packets + packets[:90])


# ---- perf.data ------------------------------------------------------------------------------
def from_perf() -> None:
    """Both forms of the container, with a sample of many fields, a mapping, AUX data and what else perf writes."""
    kinds = 1 | 2 | 4 | 8 | 32 | 1 << 10 | 1 << 11 | 1 << 12 | 1 << 13 | 1 << 14 | 1 << 15 | 1 << 16
    attr = struct.pack(
        "<IIQQQQQIIQQQQIiQ", 4, 112, 0xCD, 7, kinds, 4, 1 << 18, 0, 0, 0, 0, 1 << 17, 0b1011, 16, 0, 3
    ) + bytes(8)

    def record(kind: int, body: bytes, misc: int = 2) -> bytes:
        return struct.pack("<IHH", kind, misc, 8 + len(body)) + body

    trailer = struct.pack("<IIQQ", 7, 7, 20, 5)
    sample = (
        struct.pack("<QQIIQQ", 5, 0x1234, 7, 7, 20, 0xBEEF)
        + struct.pack("<QQQ", 2, 1, 2)
        + struct.pack("<I", 12)
        + b"raw bytes..."
        + bytes(0)
    )
    sample += (
        struct.pack("<QQQQQ", 1, 0, 1, 2, 3)
        + struct.pack("<QQQQ", 2, 1, 2, 3)
        + struct.pack("<QQQQ", 16, 1, 2, 9)
        + struct.pack("<QQ", 11, 0x68100142)
    )
    mapping = struct.pack("<IIQQQIIQQII", 7, 7, 0x400000, 4096, 0, 8, 1, 99, 0, 5, 2) + b"/bin/true\0\0\0\0\0\0\0"
    records = record(10, mapping + trailer) + record(3, struct.pack("<II", 7, 7) + b"true\0\0\0\0" + trailer)
    records += (
        record(7, struct.pack("<IIIIQ", 8, 7, 8, 7, 19) + trailer)
        + record(9, sample)
        + record(2, struct.pack("<QQ", 5, 3) + trailer)
    )
    records += (
        record(71, struct.pack("<QQQIIII", 16, 0, 0, 0, 7, 0, 0))
        + b"x" * 16
        + record(11, struct.pack("<QQQ", 0, 16, 1) + trailer)
    )
    put("perf_data", "stream", b"PERFILE2" + struct.pack("<Q", 16) + record(64, attr + struct.pack("<Q", 5)) + records)
    head = 104 + 8 + 2 * (len(attr) + 16)
    table = attr + struct.pack("<QQ", 104, 8) + attr + struct.pack("<QQ", 104, 8)
    header = (
        b"PERFILE2" + struct.pack("<8Q", 104, len(attr) + 16, 112, len(table), head, len(records), 0, 0) + bytes(32)
    )
    put("perf_data", "file", header + struct.pack("<Q", 5) + table + records)
    whole = 136  # what fuzz_perf_records takes for the attribute
    put("perf_records", "many-fields", attr.ljust(whole, b"\0") + records)
    ring = struct.pack(
        "<IIQQQQQIIQQQQIiQ",
        1,
        112,
        6,
        1,
        1 | 2 | 4 | 8 | 1 << 12 | 1 << 16 | 1 << 22,
        0,
        1 << 18,
        0,
        0,
        0,
        0,
        0,
        1 << 8,
        0,
        0,
        0,
    )
    fault = struct.pack("<QQIIQQQQQ", 5, 0x1234, 7, 7, 20, 0xBEEF000, 2, 0x1234, 4096)
    behind = struct.pack("<IIQQ", 7, 7, 20, 5)
    put(
        "perf_records",
        "faults",
        ring.ljust(whole, b"\0")
        + record(9, fault)
        + record(4, struct.pack("<IIIIQ", 7, 1, 7, 1, 21) + behind)
        + record(13, struct.pack("<Q", 3) + behind)
        + record(1, struct.pack("<IIQQQ", 7, 7, 0x400000, 4096, 0) + b"/bin/true\0" + bytes(6) + behind),
    )
    chains = struct.pack(
        "<IIQQQQQIIQQQQIiQ", 0, 112, 0, 100, 1 << 4 | 1 << 5 | 1 << 24, 31, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0
    )
    put(
        "perf_records",
        "groups",
        chains.ljust(whole, b"\0")
        + record(9, struct.pack("<QQQ", 2, 8, 9) + bytes(48) + struct.pack("<QQQ", 2, 1, 2) + bytes(8)),
    )


# ---- just-in-time code ------------------------------------------------------------------------
def from_compilers_at_run_time() -> None:
    put(
        "perf_map",
        "map",
        b"7f0000001000 20 first\n0x7f0000001020 0x10 LazyCompile:~f /src/a.js:3\n7f0000001000 8 newer one\n\nbad line\n1 2\n",
    )

    def record(kind: int, body: bytes, time_ns: int, order: str) -> bytes:
        return struct.pack(order + "IIQ", kind, 16 + len(body), time_ns) + body

    for order, name in (("<", "little"), (">", "big")):
        header = struct.pack(order + "IIIIIIQQ", 0x4A695444, 1, 40, 62, 0, 7, 10, 0)
        lines = b"".join(
            struct.pack(order + "QII", 0x1000 + 4 * i, 5 + i, 0) + file + b"\0"
            for i, file in enumerate((b"/src/a.js", b"\xff", b"/src/b.js", b"\xff"))
        )
        body = record(2, struct.pack(order + "QQ", 0x1000, 4) + lines, 20, order)
        body += record(0, struct.pack(order + "IIQQQQ", 7, 7, 0x1000, 0x1000, 16, 1) + b"f\0" + b"\x90" * 16, 20, order)
        body += record(1, struct.pack(order + "IIQQQQQ", 7, 7, 0, 0x1000, 0x3000, 16, 1), 30, order)
        body += record(9, b"abcd", 31, order) + record(3, b"", 40, order)
        put("jitdump", name, header + body)
    names = (
        "_ZN2ns4heldI4nodeE3oneE", "_ZNSt6vectorIiSaIiEE9push_backERKi", "_ZN4core3fmt9Formatter3pad17h0123456789abcdefE",
        "_RNvNtCs1234_7mycrate3foo3bar", "_RINvNtC3std3mem8align_ofdE", "_RNvMNtC1a1bINtB2_1cReE3new", "_ZZ4mainENKUlvE_clEv", "_R0NvC6_u30____7hkackfecea1cbdathfdh9hlq6y",
        "main", "_RNCNvC1a4main0B3_", "_RNvYNtC1a1bNtNtC1a1c1d1e", "_RINvC1a1bKj1f_E",
    )  # fmt: skip
    for number, mangled in enumerate(names):
        put("demangle", str(number), mangled.encode())


# ---- compiled files ----------------------------------------------------------------------------
def from_compilers() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        (folder / "p.cpp").write_text(PROGRAM)
        small = (
            "-shared",
            "-fPIC",
            "-nostdlib",
            "-fno-asynchronous-unwind-tables",
            "-fno-rtti",
            "-Wl,--build-id",
            "-Wl,-z,noseparate-code",
            "-Wl,--hash-style=gnu",
            "-Wl,--allow-shlib-undefined",
        )
        made = []
        for name, compiler, flags in (
            ("gcc-5", "g++", ("-O2", "-gdwarf-5")), ("gcc-4", "g++", ("-O1", "-gdwarf-4", "-fdebug-types-section")), ("gz", "g++", ("-O1", "-g", "-gz")), ("clang", "clang++-19", ("-O1", "-gdwarf-5", "-gsimple-template-names")),
        ):  # fmt: skip
            if shutil.which(compiler) and run(
                compiler, "-std=c++17", *flags, *small, "p.cpp", "-o", name, folder=folder
            ):
                made.append(name)
                content = (folder / name).read_bytes()
                put("symbols", name, content)
                put("variables", name, content)
        if "gcc-5" in made:  # symbols alone, and symbols that are packed
            run("cp", "gcc-5", "mini", folder=folder)
            run("objcopy", "--only-keep-debug", "--remove-section=.debug*", "gcc-5", "mini.debug", folder=folder)
            (folder / "mini.xz").write_bytes(lzma.compress((folder / "mini.debug").read_bytes()))
            run("strip", "mini", folder=folder)
            run("objcopy", "--add-section", ".gnu_debugdata=mini.xz", "mini", folder=folder)
            put("symbols", "mini", (folder / "mini").read_bytes())
        for name, compiler, flags, packer in (
            ("dwo-5", "g++", ("-O1", "-gdwarf-5"), None), ("dwo-4", "g++", ("-O1", "-gdwarf-4"), None), ("dwp-4", "g++", ("-O1", "-gdwarf-4"), "dwp"), ("dwp-5", "clang++-19", ("-O1", "-gdwarf-5"), "llvm-dwp-19"),
        ):  # fmt: skip
            if not shutil.which(compiler) or (packer and not shutil.which(packer)):
                continue
            for file in ("program.dwo", "program.dwp", "program"):
                (folder / file).unlink(missing_ok=True)
            run("cp", "p.cpp", "program.cpp", folder=folder)
            run(
                compiler,
                "-std=c++17",
                "-gsplit-dwarf",
                *flags,
                "-fPIC",
                "-fno-rtti",
                "-fno-asynchronous-unwind-tables",
                "-c",
                "program.cpp",
                "-o",
                "program.o",
                folder=folder,
            )
            run(compiler, *small, "program.o", "-o", "program", folder=folder)
            part = folder / "program.dwo"
            if packer and run(packer, "-e", "program", "-o", "program.dwp", folder=folder):
                part = folder / "program.dwp"
            if part.exists() and (folder / "program").exists():
                whole = (folder / "program").read_bytes()
                put("split_dwarf", name, struct.pack("<I", len(whole)) + whole + part.read_bytes())
        unwound = [flag for flag in small if flag != "-fno-asynchronous-unwind-tables"]
        for name, compiler, flags, how in (
            ("x86", "g++", ("-O2", "-fomit-frame-pointer"), 2),
            ("frame", "g++", ("-O1", "-fno-omit-frame-pointer"), 3),
            ("arm", "aarch64-linux-gnu-g++", ("-O2",), 130),
        ):
            if shutil.which(compiler) and run(
                compiler, "-std=c++17", *flags, *unwound, "p.cpp", "-o", "u", folder=folder
            ):
                run(("aarch64-linux-gnu-" if how & 128 else "") + "strip", "u", folder=folder)
                whole = (folder / "u").read_bytes()
                stack = (
                    bytes([how])
                    + bytes(range(0, 33))
                    + struct.pack("<H", 0x400)
                    + b"".join(bytes([i]) + struct.pack("<H", 0x300 + 16 * i) for i in range(90))
                )
                put("unwind", name, struct.pack("<I", len(whole)) + whole + stack)


# ---- programs of operations ----------------------------------------------------------------------
def from_noise() -> None:
    """Targets that interpret their input start from numbers: any is a valid program."""
    for target in (
        "chunk_damage",
        "ring_file",
        "streams",
        "windows",
        "static_tables",
        "replay",
        "objects",
        "locality",
        "channel",
        "drain",
    ):
        state = 20260101
        for number in range(12):
            content = bytearray([number])
            for _ in range(60 + 40 * number):
                state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
                content.append(state >> 56 if number % 3 else (state >> 58) * (state >> 40 & 1))
            put(target, str(number), bytes(content))
    # A process comes, writes a hundred allocations with drains in between, and ends.
    put(
        "channel",
        "right",
        bytes([5, 0])
        + b"".join(bytes([1 + 64 * (i % 3), i, 0, i, i]) + (b"\x09" if i % 9 == 8 else b"") for i in range(100)),
    )
    put(
        "channel",
        "unfinished",
        bytes([5, 0]) + b"".join(bytes([1 if i % 10 else 0xC4 - 0xC0 + 0xC0, i, 0, i, i]) for i in range(60)),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--memlens", default=None)
    options = parser.parse_args()
    for old in CORPUS.glob("*/seed-*"):
        old.unlink()
    from_captures(options.memlens)
    from_traces()
    from_compilers_at_run_time()
    from_perf()
    from_compilers()
    from_noise()


if __name__ == "__main__":
    main()
