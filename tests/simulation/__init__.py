"""Tests of the simulation: whole clusters in virtual time under storms of faults.

The same seed gives the same run (test_determinism.py), every invariant finds its violation
(test_invariants.py), and members with one rule removed are found (`mutants`). `hazards` holds known
dangerous schedules. Read first: test_simulate.py, test_hazards.py, mutants/README.md.
"""
