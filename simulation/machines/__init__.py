"""Simulated machines: the clock, the disk, the tasks and the host on which a real member runs.

A machine replaces what lies below the member's seams: time, chance, the disk and the processor.
The member itself, its store in LMDB and its wire format are those of production.

Read first: ``host.py`` (the lives of a member on one machine), ``disk.py`` (when a write becomes
durable, and what a power cut leaves of it), ``scheduler.py`` (why a seed determines a whole run).
"""
