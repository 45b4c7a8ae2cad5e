"""Calls of replicated objects, on a state machine of its own without a member."""
