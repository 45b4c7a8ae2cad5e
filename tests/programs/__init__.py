"""Tests with real processes: clusters of members, the faults that befall them, and examples."""
