"""The compiled parts give the same replies and the same log as their Python twins."""
