"""Offline tools: verify, describe, the recovery plan, restore."""
