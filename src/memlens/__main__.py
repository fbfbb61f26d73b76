"""`python -m memlens`: the command line."""

from .cli.start import main

main()
