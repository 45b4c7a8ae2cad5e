"""`quorate torture`: real members under real faults, and checks of everything at the end.

- ``plan`` runs the members, the load and the faults, and then all checks.
- ``clients`` and ``sessions`` are the load; they record a history of operations.
- ``faults`` chooses and injects faults; ``network`` and ``disk`` make partitions and bad disks.
- ``members`` adds, replaces and removes members; ``picture`` knows which ones there should be.
- ``users`` makes and revokes users; ``rotations`` replaces certificates and CAs.
- ``machines`` and ``keeper`` start members, and judge how they end.
- ``checks`` compares states and recordings; `quorate.histories` checks linearizability.

Deterministic runs with simulated faults are in `quorate.simulation`. Read ``plan.py`` first.
"""
