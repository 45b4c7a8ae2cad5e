"""A machine of a cluster with partitions: its supervisor, and its members as child processes."""
