"""The standing judge: figures of memlens beside oracles that memlens has no part in.

    programs.py    Debian's programs, with their inputs and packages
    running.py     one run: natively, under memlens, and under each oracle
    model.py       rows: program × metric × oracle × difference, and their verdicts
    kernel.py      page faults and peak memory beside the kernel's own counts
    heap.py        allocations beside heaptrack and DHAT
    accesses.py    emulated accesses beside lackey, modelled misses beside cachegrind
    compiled.py    counted and traced builds of Debian's source packages beside the emulator and full recordings
    findings.py    healthy programs and bad ones
    outputs.py     the same figure in terminal, page, JSON and Python
    page.py        docs/judge.md

A check is a generator of rows. It knows programs and oracles, and memlens only through its command line and JSON.
"""
