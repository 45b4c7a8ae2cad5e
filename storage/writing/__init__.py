"""Ordered durable writes, and blocking reads, off the event loop. The only room with threads.

`executor` says what a store expects. `group_commit` has it: jobs become groups, and a group takes
the path of the journal (`journal_path`, `journal_writer`) or of LMDB (`writer_thread`). `lane` runs
one blocking read at a time.

It does not know what a job contains: `log.recorder` and `tables` write, this room says when and
where.

Read `group_commit` first, then `writer_thread`.
"""
