"""A change of users, ACL SETUSER or DELUSER, from the client's command to the reply.

1. Secrets become hashes, off the event loop. From here on, no secret is anywhere.
2. The command goes through the log. Each member applies it (:mod:`..access.commands`).
3. A second entry follows, which changes nothing. A batch of the log says up to where the log is
   committed. So a member that has this entry knows that the change is committed, and applies it.
4. A wait until all members have reported the second entry, or for two heartbeat timeouts.

So once a change is answered, every member that reports in time holds its sessions to it. The ids of
those that did not are logged, and stand in INFO. Such a member is down, cut off or far behind, and
the leader has not confirmed its users since. So it counts them as unknown
(:mod:`..port.leader_users`).

What such a member has sent before, or sends by old rules, reaches no log: each request carries the
version of its rules, and the leader sends it back if it has applied newer ones.
"""

import logging
from collections.abc import Sequence
from typing import Final

from ...log_events import log_event
from ...node.requests.request import RequestKind
from ..clients.request_errors import error_text
from ..commands.table import resolve
from ..protocol import resp
from ..protocol.resp import CommandError
from .acl_command import hashing
from .permission import denied
from .steps import Result, Steps

__all__ = ["change_users"]

_BARRIER: Final = resp.bulk_array([b"QUORATE.SESSIONS"])
"""The second entry: any command that only reads."""

_log = logging.getLogger("quorate.keyvalue")


def change_users(arguments: Sequence[bytes], steps: Steps) -> None:
    """Execute ACL SETUSER or DELUSER."""
    change = _Change(arguments, steps)
    steps.client.changes_users = True
    try:
        work = hashing(arguments, steps.port)
    except CommandError as trouble:
        change.finish(trouble.reply)
        return
    if work is None:
        change.send_once_hashed(resp.pack(tuple(arguments)))
    else:
        steps.offload(work, change.send_once_hashed)


class _Change:
    def __init__(self, arguments: Sequence[bytes], steps: Steps) -> None:
        self._arguments = list(arguments)
        self._done = steps.port.access.audit.users_change(steps.client, arguments)
        self._client = steps.client
        self._port = steps.port
        self._steps = steps
        self._members = len(steps.port.gateway.topology.members)
        self._answer = b""

    def send_once_hashed(self, command: Result) -> None:
        """Send the command, in which there is no secret any more."""
        spec = resolve(self._arguments)
        assert spec is not None, "it was resolved before"
        if _failed(command):
            self.finish(command)
        elif (text := denied(self._steps, spec, self._arguments)) is not None:
            # Hashing takes long, and an administrator may have been removed in that time.
            self.finish(resp.error(text))
        else:
            assert isinstance(command, bytes)
            self._steps.send(RequestKind.COMMAND, command, self._applied)

    def _applied(self, reply: Result) -> None:
        if _failed(reply) or self._members == 1:
            self.finish(reply)
            return
        assert isinstance(reply, bytes)
        self._answer = reply
        self._steps.send(RequestKind.COMMAND, _BARRIER, self._wait)

    def _wait(self, barrier: Result) -> None:
        if _failed(barrier):
            self._spread(barrier)
            return
        words = b"wait all %d" % (self._port.access.spread_s * 1000)
        self._steps.send(RequestKind.CONTROL, words, self._spread)

    def _spread(self, missing: Result) -> None:
        # The change is applied, whatever comes of the wait: its reply stays what it is.
        # An error is no list of members: the leader was lost, or this user may ask no more.
        names = (
            missing.decode() if isinstance(missing, bytes) and missing[:1] != b"-" else "unknown"
        )
        self._port.access.missing_at = names
        if names:
            log_event(
                _log,
                logging.WARNING,
                "users_not_everywhere",
                "members without the change of users: %(members)s",
                client=self._client.client_id,
                members=names.replace(" ", ","),
            )
        self.finish(self._answer)

    def finish(self, result: Result) -> None:
        """Answer the client."""
        self._client.changes_users = False
        if self._client.removed:  # it has deleted its own user
            self._client.closing = True
        text = result if isinstance(result, bytes) else resp.error(error_text(result))
        # The first word of an error, as the rest may repeat what was sent.
        self._done("ok" if not text.startswith(b"-") else text[1:].split()[0].decode())
        self._steps.reply(text)


def _failed(result: Result) -> bool:
    return not isinstance(result, bytes) or result.startswith(b"-")
