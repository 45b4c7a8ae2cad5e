"""`@replicated` objects: plain Python classes as replicated state machines."""
