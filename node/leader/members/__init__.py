"""Changes of the members, by the leader: from an operator's order to the entries of the log.

- :mod:`.reconfiguration` goes on with what the log says is to be, step by step, and does orders.
- :mod:`.changes` appends configurations, and has the rules that make that safe.
- :mod:`.promotion` says whether a member that joins may become a voter now.
- :mod:`.orders` is the grammar of what an operator may ask for; :mod:`.plans` has the configuration
  that an order leads to, and :mod:`.listing` the list that an operator is shown.

What a configuration is, and which steps lead from one to the next, is in
``protocol/membership.py``; which one counts, in ``configurations.py``. How a store gets its vote is
in ``membership/admission.py``. Read `reconfiguration` first, then `changes` and `promotion`.
"""
