"""The methods of the API, as functions; which protocol a client speaks does not show here.

- `call.py`: what a method gets: who calls, and what it may use
- `context.py`: what all connections of a port share, whichever protocol they speak
- `stopping.py`: the orderly end of a port
- `table.py`: all methods by their path
- `line.py`, `without_codes.py`, `side_by_side.py`: what locks and elections have in common
- `users.py`, `needs.py`, `rights.py`, `tokens.py`: who may do what
- the other files: one service of etcd each

Read first: `call.py`, `table.py`.
"""
