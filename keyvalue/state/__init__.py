"""What the state machine stores, over the tables of `storage/`.

- `store.py`: keys as commands see them; log time, revisions, the budget of a request
- `sessions.py`: replicated sessions, by which a repeated command is applied once

Both are deterministic: the same log gives the same state on every member. The state machine that
feeds them is :mod:`..service`; files and snapshots are the business of `storage/tables`.

Read first: `store.py`.
"""
