"""The Spark source and sink: logs, snapshots, running members, and the rows they become."""
