"""The state machine: keys with their history, leases, and what requests do to them.

- `machine.py`: `EtcdState`, what the service and the port call
- `checks.py`, `intervals.py`: what is wrong with a request, before any state is looked at
- `keys.py`: the keys, their versions, and the rows that hold them; `sorted_keys.py`: their order
- `places.py`: where a version lies; `change.py`: a change as watchers get it
- `ranges.py`, `writes.py`, `transactions.py`, `leasing.py`: the requests
- `work.py`: the bound of what one request may do
- `leases.py`: leases on a clock of their own, and how they expire
- `compaction.py`: how the rows behind a compaction go; `hashing.py`: a hash of all rows
- `announcements.py`: where members listen; `library.py`: what decodes messages
- `replayed.py`: the same over tables in memory, for tools that read a log
- `rows.py`: what all that asks of the tables

Read first: `machine.py`, `keys.py`, `leases.py`.
"""
