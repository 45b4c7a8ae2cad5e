"""Crash test with real processes: kill -9 and pauses under load, then nothing may be missing."""
