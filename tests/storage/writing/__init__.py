"""Group commit and reading threads."""
