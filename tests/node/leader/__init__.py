"""Leading: replication, leases, log time, handover, termination, slow disks."""
