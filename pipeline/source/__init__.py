"""The data source ``quorate`` for Spark: reads logs and snapshots, and writes into clusters.

A log is read from a directory (``logs``) or from a running cluster (``remote``, ``members``);
``reading`` has what both share. ``options`` parses what the user asks for, ``decode`` and
``columns`` make the rows, ``snapshots`` replaces what was pruned. ``writer`` and ``loading`` write.

``groups`` finds the recordings of a cluster with partitions, ``slots`` the commands in a log that
move slots, and ``owned`` says which slots a partition owned at each place of its log. ``etcd_rows``
has the keys of etcd's clients.

Only the committed part of a log is ever shown. Jobs are in ``pipeline/jobs``.
Read ``source.py``, ``readers.py`` and ``reading.py`` first.
"""
