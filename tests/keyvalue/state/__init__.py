"""The replicated state: the service, its store, sessions, and how much work one entry may be."""
