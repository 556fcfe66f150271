"""`python -m whalefl`: the command line without its script."""

from whalefl.cli import main

main()
