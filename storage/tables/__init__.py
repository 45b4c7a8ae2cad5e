"""The materialised tables: keys and records, complete up to a log position.

A memtable over LMDB: `tables` is the face, and says when to flush; `layers` reads memtable, frozen
memtable and disk as one; `disk` is the LMDB environment. `stream`, `view` and `loader` turn tables
into the content of a snapshot and back. `damage` throws away damaged tables, to be rebuilt.

It knows no commands: what a key means, and when an expired key is deleted, its owner decides.

Read `tables`, `layers` and `disk`.
"""
