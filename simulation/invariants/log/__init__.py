"""Invariants on what a member's log holds and what it reports of it.

One file each. `INVARIANTS` in :mod:`quorate.simulation.invariants` lists all of them.
"""
