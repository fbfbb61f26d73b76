"""`python -m memlens`: the command line."""

from .cli.main import main

main()
