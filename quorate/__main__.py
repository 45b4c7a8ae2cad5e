"""`python -m quorate` is the command `quorate`."""

from .cli import main

main()
