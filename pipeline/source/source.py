"""The data source: ``spark.read.format("quorate").load(directory)``, or with the option connect.

Spark makes these objects in its own processes, one for each of three steps (schema, filters, plan).
Each process imports this module. So the module imports little at first, and readers and writers
only when they are needed.
"""

# pyright: basic, reportMissingTypeStubs=false
# (pyarrow has no types and those of PySpark have gaps; mypy is strict here as everywhere)

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from ..spark.worker import settle
from .columns import ddl
from .options import parse_options

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader
    from pyspark.sql.types import StructType

    from .writer import StreamWriter, Writer

__all__ = ["QuorateSource"]

# ruff: noqa: PLC0415 - see above


class QuorateSource(DataSource):
    """The source ``quorate``; see docs/pipeline.md for its options and columns."""

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        settle()

    @classmethod
    def name(cls) -> str:
        """Return the name for ``format(...)``."""
        return "quorate"

    def schema(self) -> str:
        """Return the schema of the requested table."""
        return ddl(parse_options(self.options).table)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Make a batch reader of some columns."""
        from .readers import PushdownReader, Reader

        request = parse_options(self.options)
        return (PushdownReader if request.pushdown else Reader)(request, schema.names)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's
        """Make a reader of a stream."""
        from .readers import StreamReader

        return StreamReader(parse_options(self.options), schema.names)

    def writer(self, schema: StructType, overwrite: bool) -> Writer:  # noqa: FBT001 - Spark's
        """Make a writer of a DataFrame."""
        from .writer import Writer, parse_target

        return Writer(parse_target(self.options, schema.names, overwrite=overwrite))

    def streamWriter(  # noqa: N802 - Spark's
        self,
        schema: StructType,
        overwrite: bool,  # noqa: FBT001 - Spark's
    ) -> StreamWriter:
        """Make a writer of a stream."""
        from .writer import StreamWriter, parse_target

        return StreamWriter(parse_target(self.options, schema.names, overwrite=overwrite))
