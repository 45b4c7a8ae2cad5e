"""The services Lock and Election: who comes first of those that wait.

- `lock.py`, `election.py`: the methods of the two services
- `line.py`: the line that a lock's or an election's contenders stand in
- `observing.py`: who leads, to those who only look
- `without_codes.py`: these services' errors, which etcd answers without a code

Read first: `line.py`.
"""
