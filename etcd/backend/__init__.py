"""The way from a method of the API to the member, and back.

- `backend.py`: a message becomes a request of the member; the reply gets its header
- `caller.py`: who sends a request, which is not sent once the users have changed
- `routing.py`: which messages go into the log, which are read, and where
- `submission.py`: a request while it waits, and how many may
- `joining.py`: puts of one turn share an entry of the log
- `turn_end.py`: what is done once for a turn of the event loop
- `catching_up.py`: replies wait until this member has applied what they report
- `identity.py`: the numbers by which clients know the cluster and its members, and headers
- `member_errors.py`: errors of the member in the words of etcd
- `contact.py`: whether this member is in touch with a leader
- `keep_alives.py`: renewals of leases that share an entry
- `upkeep.py`: the leader compacts the history by itself
- `announce.py`: a member says where clients of etcd reach it

Read first: `backend.py`, `routing.py`.
"""
