"""Invariants on the configurations of the cluster: who its members are, and who decides.

They follow the entries of membership in each member's log, and what the members make of them.
``in_force`` compares a member with its own log. ``one_change`` and ``in_order`` check what may
follow what in a log. ``shared_quorums`` compares consecutive configurations, ``stores`` who counts
in them, and ``the_dropped`` what members hear that leave.

One file each. `INVARIANTS` in :mod:`quorate.simulation.invariants` lists all of them. Read first:
``in_force.py``, then ``one_change.py``.
"""
