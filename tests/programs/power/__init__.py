"""What a loss of power leaves on disk, and that it is enough.

A preloaded library records every write and sync; each prefix that a disk may keep is opened again.
"""
