"""The data pipeline: what the source reads, and what the jobs find."""
