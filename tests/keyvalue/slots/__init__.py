"""Slots, the map of a cluster with partitions, and where clients are sent."""
