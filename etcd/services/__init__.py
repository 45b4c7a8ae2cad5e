"""The methods of the API, as functions; which protocol a client speaks does not show here.

- `call.py`: what a method gets: who calls, and what it may use
- `context.py`: what all connections of a port share, whichever protocol they speak
- `stopping.py`: the orderly end of a port
- `wire.py`: the bytes of a connection
- `table.py`: all methods by their path
- `side_by_side.py`: functions that run side by side for one call
- `alarms.py`: what is wrong with this member; `version.py`: which etcd we say we are
- `orders.py`: what an operator asks of the leader
- `locks/`: the services Lock and Election
- the other files: one service of etcd each

Read first: `call.py`, `table.py`.
"""
