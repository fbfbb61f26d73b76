"""What `memlens cc` and `memlens c++` do to a clang command line.

`commandline` understands what clang was asked to do, `toolchain` knows what is installed, `plan`
makes the new command line from both. Nothing here runs a compiler but to ask its version; the
command line execs what was planned. A build starts this thousands of times: import nothing that
costs a millisecond (typing, re, pathlib, dataclasses, shutil).
"""
