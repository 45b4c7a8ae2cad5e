"""The client of a cluster with partitions, with real state machines behind fake ports."""
