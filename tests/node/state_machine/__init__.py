"""The state machine: applying entries, timers, snapshots, and kills at every step of one."""
