"""Which members have a vote: founding, admission after a lost disk, standbys, force."""
