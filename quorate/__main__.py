"""`python -m quorate` is the command `quorate`."""

from .cli.app import main

main()
