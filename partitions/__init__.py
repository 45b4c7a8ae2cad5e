"""Clusters of several partitions: who has what, who leads where, and slots on the move.

Nothing here is part of a member. It drives groups of members through their client ports, and all
that it does may be repeated and may come late: a group's log decides what holds.

- `groups.py`: what a group of members is to this room; how commands are repeated
- `metadata.py`: the map, in the metadata group
- `director.py`: does the moves in the map, and has everything else done
- `reconcile.py`: founds partitions, and sets right what groups have; `waits.py`: why it cannot
- `move.py`: one move of slots, and why it is safe; `wishes.py`: the moves in the map;
  `slots_state.py`: what a partition says of its slots
- `health.py`: unhealthy machines, and leaders that go away from them and come back
- `replicas.py`: members of groups, as the map says
- `balance.py`: plans, as pure functions of the map; `machines.py`: those for a machine that goes
- `one_moment.py`: positions of all groups' logs that belong together
- `progress.py`: moves as an operator sees them

Read first: `move.py`, `director.py`.
"""
