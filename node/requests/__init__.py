"""Requests of clients: from a client port to the leader's log, and their replies back.

- :mod:`.request` is one request, with its callback; :mod:`.gateway` is what a client port may call.
- :mod:`.router` sends a request into our log, forwards it to the leader, or parks it.
- :mod:`.forwarding` is the leader's end of a forwarded request.
- :mod:`.task_calls` lets a task of this process wait for its request.
- :mod:`.status` is what a member reports of itself: plain data.

This room knows nothing of terms, batches or quorums: the leader's role does (:mod:`..leader`). Read
`request`, `router` and `forwarding`, in this order.
"""
