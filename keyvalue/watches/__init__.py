"""What watches need besides the changes in memory: a replay of older ones.

- `replay.py`: one replay, from a snapshot and the log behind it to pages of changes
- `replays.py`: the replays of a member, one at a time, and the watches that each serves
- `tenure.py`: what a watch may return where its keys move between partitions

Watches themselves are in `programs/watch.py`, the changes in memory in `state/changes.py`.

Read first: `replays.py`.
"""
