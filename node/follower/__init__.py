"""A follower: it copies its leader's log, and catches up if it is behind.

``following.py`` is the role. ``live_log.py`` and ``replay_receiver.py`` bring the log,
``catchup_rate.py`` throttles that, and ``snapshot_install.py`` replaces a log that is too far
behind. ``log_guard.py`` refuses leaders that contradict our log, and truncates it.
``leader_probe.py`` is the question of a standby whether its leader hears it.

How a follower finds its leader is not here (``election/``), nor how the log is stored
(``storage``). Read ``following.py`` first, and then ``election/follower_states.py``, which runs it.
"""
