"""Snapshot files: the state of a service at one log position, and the folder that has them.

`file` is the format, with a checksum for each piece and a digest over all; `folder` writes,
receives, checks and removes files so that a crash leaves only leftovers.

It does not know what is in a piece (see `tables.stream`), nor when to take a snapshot.

Read `file` first, then `folder`.
"""
