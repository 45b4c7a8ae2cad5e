"""`quorate support-bundle`: one archive with what somebody else needs to help, and no secrets.

- `collecting` gathers the parts: versions, settings, statuses, the terms of the log, log lines,
  recordings, the doctor's findings, facts of the system. A part that can't be had is noted.
- `settings` takes out of a member's file what might be secret.
- `tracebacks` takes out of log lines what errors of other code say.
- `archive` writes the parts and their list.

No key, value, payload, password, hash or private key is ever read for it. What may kill the process
that reads it, a damaged store, is read by a child process.

Read first: `collecting`.
"""
