"""The client inside a program: calls, sessions, and many calls joined into one entry."""
