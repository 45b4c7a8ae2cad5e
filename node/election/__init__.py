"""Elections: how a member finds its leader, or becomes it, and gets from there to its term.

``election.py`` begins with a tutorial; it has the loop and the states before a leader is known.
``leader_states.py`` and ``follower_states.py`` have the states of the two roles. ``context.py`` is
what all states share, ``transition.py`` what a state returns, ``prevote.py`` the pre-vote.

What a leader or a follower does once the election is closed is not here: see ``leader/`` and
``follower/``. The rules by which a state decides are pure functions in ``protocol/``.
Read ``election.py``, ``context.py`` and ``protocol/states.py`` first.
"""
