"""A member repairs damaged records and survives a full disk."""
