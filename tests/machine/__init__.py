"""The machines of a cluster with partitions, without their processes."""
