"""Which stores may vote: how a cluster begins, and how a store joins or replaces a lost one.

``admission.py`` says which store may vote, and why all this is safe; read that first.
``founding.py`` founds a cluster with NEW stores.

Which members there are, and whose vote counts, is not decided here: ``protocol/membership.py`` has
the configuration as a value, ``configurations.py`` says which one counts, and
``leader/members/reconfiguration.py`` changes it.
"""
