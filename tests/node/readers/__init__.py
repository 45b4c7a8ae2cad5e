"""Readers of a member's log and snapshots: backup, restore, replay clients."""
