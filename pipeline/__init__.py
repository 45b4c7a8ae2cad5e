"""The data pipeline: reads the recorded log with Spark, through PySpark. An optional extra.

``open_session`` makes a Spark session that knows the source ``quorate``. The jobs are functions
from a session to DataFrames. Members never import this package. See docs/pipeline.md.

- ``source``: the data source: reads logs, snapshots and running clusters, and writes into clusters
- ``payloads``: decodes the payloads of entries into commands
- ``jobs``: audits, exports, reports, versions of keys, linearizability checks
- ``spark``: finds Java and Spark, and opens a session

Read ``source/source.py`` first, then ``source/readers.py`` and ``jobs/replay.py``.
"""

from .session import open_session
from .source.columns import TABLES, Column

__all__ = ["TABLES", "Column", "open_session"]
