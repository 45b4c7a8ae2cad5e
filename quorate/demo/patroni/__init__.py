"""`make patroni-demo`: Patroni keeps three PostgreSQL servers, and quorate is its etcd.

Three members and three nodes run on loopback, and a client writes a row every half second. Then one
thing after the other is killed, stopped, restarted and lost, among the members and among the nodes.
After each, the demo checks what Patroni and PostgreSQL did about it. The exit status is 0 only if
every check passed and every acknowledged row is on every server.

``programs`` finds Patroni and PostgreSQL, ``nodes`` runs one of each, and ``members`` configures
them for members of quorate. ``rows`` writes and counts, ``world`` holds all of them and waits,
``member_steps``, ``node_steps`` and ``operator_steps`` are what happens, and ``story`` runs it.
Read ``story`` first.
"""
