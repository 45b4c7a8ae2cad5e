"""Golden transcripts: scripts of events, with what members then say and do."""
