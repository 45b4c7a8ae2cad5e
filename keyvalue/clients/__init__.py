"""What a member remembers of its clients: of one, and of all together.

- `client_state.py`, `transaction.py`, `watching.py`: one client: its modes, MULTI, WATCH
- `change_watches.py`: its watches by QUORATE.WATCH
- `port_state.py`, `counters.py`: all clients: turns, memory budgets, figures
- `joined.py`: plain commands of several clients that travel as one request
- `port_access.py`, `port_audit.py`: who is logged in, and what was denied; what is noted of that
- `strangers.py`, `penalties.py`: bounds for those that have to log in first
- `request_errors.py`: error replies

It knows the member only as a `Gateway`, and no sockets. It does not execute commands.

Read first: `client_state.py`, `port_state.py`.
"""
