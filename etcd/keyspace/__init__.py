"""What is kept: keys with their history, leases and tokens, and the rows that hold them.

- `keys.py`: the keys, their versions, and the rows that hold them; `sorted_keys.py`: their order
- `places.py`: where a version lies; `change.py`: a change as watchers get it
- `leases.py`: leases on a clock of their own, and how they expire
- `tokens.py`: the tokens of users who logged in
- `compaction.py`: how the rows behind a compaction go; `hashing.py`: a hash of all rows
- `announcements.py`: where members listen
- `rows.py`, `notes.py`: what all that asks of the tables

Read first: `keys.py`, `leases.py`.
"""
