"""Jobs: functions from a Spark session and a log to DataFrames, files or findings.

- ``audit`` compares members' logs; ``invariants`` and ``double_apply`` are its queries, and
  ``configurations`` checks how the members of the cluster changed.
- ``partitions`` audits all groups of a cluster with partitions, and what their logs say together.
- ``whole`` puts the states of all partitions together, each key from the owner of its slot.
- ``versions`` lists every version of every key; ``replay`` and ``version_tasks`` do the work.
- ``slots_note`` finds what a partition knew of its slots at a point of its log.
- ``once`` finds commands of sessions that the members did not apply.
- ``export`` keeps tables in a folder up to date; ``restorable`` writes a snapshot to restore from.
- ``report`` and ``page`` describe a cluster's past; ``check`` and ``picture`` judge histories.

No job changes a member's directory or writes into a cluster; ``source/writer.py`` does that.
Read ``audit.py`` for a simple job, and ``replay.py`` for the hardest one.
"""
