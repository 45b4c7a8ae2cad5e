"""Following a leader: catching up, receiving a replay, installing a snapshot."""
