"""Elections: each state of a member, pre-votes, gray failures, and adopting a voter's log."""
