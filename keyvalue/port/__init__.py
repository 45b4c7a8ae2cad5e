"""The port that Redis clients connect to: sockets, and nothing of what the bytes mean.

- `listener.py`: accepts clients; one epoll, one task, and turns
- `connection.py`: one socket: back-pressure, slow clients, the end in order
- `watch_pushes.py`, `pushed_watch.py`, `push_turns.py`: push changes to the clients that watch keys
- `leader_users.py`: asks the leader for the users while the member's own may be old

What clients say is the matter of `..conversation`; what is remembered of them is in `..clients`.

Read first: `connection.py`, `listener.py`.
"""
