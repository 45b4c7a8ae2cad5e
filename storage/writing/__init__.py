"""How bytes reach the disk without holding up the event loop.

An executor takes write jobs, and writes those that wait together as one group (group commit). A
group that only appends to the journal goes to the journal writer, a thread that never needs the
interpreter. Everything else is a transaction of LMDB on the writer thread. Simulated time has an
executor without threads.

This room does not know what a job contains; `storage/log/` and `storage/tables/` do.

Read `group_commit.py` first, then `journal_writer.py`.
"""
