"""Tests of who may come in: impostors at the port of members, in memory and as real processes."""
