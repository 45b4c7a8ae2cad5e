"""Tests of the member, in virtual time."""
