"""Models of the election, and of a change of the voters: every state of a few members is explored.

They call the product's own rules (`quorate.node.protocol`), so they find a wrong rule. The tests
also plant wrong rules and check that the models find them. ``make model`` explores larger ones.
Read first: test_elector.py, elector.py; then change.py.
"""
