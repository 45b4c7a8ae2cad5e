"""Which members have a vote: founding, admission after a lost disk, standbys, force.

Members that come and go while the cluster runs are in `test_change.py`, as whole clusters. What is
checked of single parts lies elsewhere: the configuration as a value in
`../protocol/test_membership.py`, the words of orders in `../leader/test_member_orders.py`, and what
the leader says to them in `../leader/test_reconfiguration.py`.
"""
