"""Tests with real processes, real disks and real clocks, one after the other.

`clients` uses a cluster as users do, `crash` kills and disturbs members, and `power` replays what a
disk may hold after a loss of power. test_run_command.py runs one member, test_examples.py the
examples. Read first: clients/test_failover.py, crash/test_crash.py, power/test_storage.py.
"""
