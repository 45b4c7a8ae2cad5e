"""A model of the election: every state of a few members is explored.

It calls the product's own rules (`quorate.node.protocol`), so it finds a wrong rule. The tests also
plant wrong rules and check that the model finds them. ``make model`` explores larger ones.
Read first: test_elector.py, elector.py.
"""
