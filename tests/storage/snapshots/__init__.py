"""Snapshot files and the folder that holds them."""
