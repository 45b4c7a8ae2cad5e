"""The tables: rows in memory and on disk, flushes, deadlines, and crashes in between."""
