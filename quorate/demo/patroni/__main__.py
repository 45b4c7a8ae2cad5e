"""`python -m quorate.demo.patroni` runs the demo."""

from .story import main

main()
