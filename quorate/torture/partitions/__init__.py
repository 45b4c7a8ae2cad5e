"""`quorate torture --partitions`: a cluster with partitions under faults, while slots move.

- ``plan``: runs the machines, the load, the faults and the moves, and then all checks
- ``machines``: the machines, each a supervisor with its members, and how these end
- ``clients``: the load: our client, which writes exactly once, and others
- ``stores``, ``redis_store``: what clients work with; redis-py's cluster client
- ``numbers``: clients that count, and keys that never change
- ``faults``: chooses and injects faults
- ``moves``: moves, aborts, transfers, new preferences and a split
- ``checks``: what must hold when all is calm
- ``logs``: what must hold of the logs of all groups together

Read first: ``plan``.
"""
