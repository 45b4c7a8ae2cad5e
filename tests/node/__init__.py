"""Tests of the member, in virtual time.

`protocol` holds the pure rules, with no I/O. The other rooms run members on a simulated network
and disk. `tests.support.settled` gives three members with a leader;
`tests.support.script` plays one member against scripted peers. Read first:
protocol/test_ballots.py, election/test_states.py, test_cluster.py.
"""
