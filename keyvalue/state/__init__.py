"""What the state machine stores, over the tables of `storage/`.

- `store.py`: keys as commands see them; log time, revisions, the budget of a request
- `changes.py`, `pushes.py`: what has changed, in the order of the log; and as pushes to clients
- `sessions.py`: replicated sessions, by which a repeated command is applied once
- `ownership.py`, `ownership_note.py`: which slots a partition owns, and how that is stored

Keys and sessions are deterministic: the same log gives the same state on every member. What feeds
them is :mod:`..service`; files and snapshots are the business of `storage/tables`.

Read first: `store.py`.
"""
