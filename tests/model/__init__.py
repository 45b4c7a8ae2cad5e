"""The elector, explored state by state."""
