"""The data pipeline: the recorded log on Spark, through PySpark. An extra; never in a member.

``open_session`` makes a Spark session that knows the source ``quorate``; the jobs are functions
from a session to DataFrames. See docs/pipeline.md.
"""

from .session import open_session
from .source.columns import TABLES, Column

__all__ = ["TABLES", "Column", "open_session"]
