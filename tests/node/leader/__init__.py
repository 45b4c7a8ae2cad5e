"""Leading: replication, leases, cluster time, handover, termination, slow disks."""
