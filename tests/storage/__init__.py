"""Tests of what lies on disk.

`log` is the largest room: batches, the journal, damage and crashes at every write. `tables` keep
the state machine's rows, `snapshots` their copies, `writing` the threads, `lmdb` the environments
and `tools` the offline commands. Read first: log/test_store.py, log/test_store_model.py.
"""
