"""Client ports of the simulated members: everything of the real ones but sockets.

- `gateway.py`: between a port and its member, numbers what clients send
- `machine.py`: the port of one run of a member, and its tasks
- `session.py`: a client's connection
- `rulebook.py`: which users the log has had, and since when

The conversation, the users and their rules are those of `keyvalue`. Workloads that send commands to
a member itself, as an embedding program does, need none of this.

Read first: `machine.py`, `session.py`.
"""
