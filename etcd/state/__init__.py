"""The state machine: what requests do to the keyspace, alike on each member.

- `machine.py`: `EtcdState`, what the service and the port call
- `checks.py`, `intervals.py`: what is wrong with a request, before any state is looked at
- `ranges.py`, `writes.py`, `transactions.py`, `leasing.py`: the requests
- `work.py`: the bound of what one request may do
- `library.py`: what decodes messages
- `replayed.py`: the same over tables in memory, for tools that read a log

Read first: `machine.py`, `writes.py`.
"""
