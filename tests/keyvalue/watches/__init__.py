"""Watches of older changes: replays, and what they return."""
