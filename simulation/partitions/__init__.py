"""Clusters with partitions: several groups of real members in one run, and slots on the move.

Each group is a :class:`~..world.World` of its own, with its own storms and invariants. All share
the clock and the scheduler. Directors found the partitions and move slots, as in production,
through connections that lose requests and replies; they die, stand still, and come in twos.

- `run.py`: a whole run: storms, healing, and calm
- `groups.py`: the groups, and what a director sees of them
- `routing.py`: a client that asks whichever group has the slot
- `book.py`: what the committed logs say of slots, and what must hold
- `rows.py`: the rows of slots, before and behind a move
- `sessions.py`: clients that write exactly once while slots move
- `directors.py`: the lives of directors
- `operators.py`: who asks for moves, and repeats what was sent long ago
- `plans.py`: who asks for splits and other replicas, and deletes the map
- `supervisors.py`: who starts members of new groups, and new members

Read first: `run.py`, `book.py`.
"""
