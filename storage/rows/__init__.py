"""The small rows of a member's store: everything in its LMDB environment except batches.

`databases` names the sub-databases. `identity` says which store this is, `vote` what it has
promised, and `voting_status` whether it may vote. `term_table` has the terms, the snapshots and
where a quorum was forced; `membership` has the configurations of the log; `meta_rows` reads the
rest. `log_end` compares ends of logs.

Each row is sealed with a checksum and decoded in a function that ends in ``_untrusted``. Nothing
here writes: :mod:`..log` does, each change in one transaction.

Read `vote` (a small example), then `term_table`.
"""
