"""A change of users, ACL SETUSER or DELUSER, from the client's command to the reply.

1. Secrets become hashes, off the event loop. From here on, no secret is anywhere.
2. The command goes through the log. Each member applies it (:mod:`..access.commands`).
3. A second entry follows, which changes nothing. A batch of the log says up to where the log is
   committed. So a member that has this entry knows that the change is committed, and applies it.
4. WAIT, until all members have reported the second entry, or for two heartbeat timeouts.

So once a change is answered, every member that is alive holds its sessions to it. One that has not
reported is down or cut off, and serves no reads without its leader. It is logged.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Final, Protocol, TypeAlias

from ...errors import RequestError
from ...node.requests.request import RequestKind
from ..protocol import resp
from ..protocol.resp import CommandError
from .acl_command import hashing
from .client_state import ClientState
from .port_state import PortState
from .request_errors import error_text

__all__ = ["Result", "Steps", "Then", "change_users"]

Result: TypeAlias = bytes | RequestError
Then: TypeAlias = Callable[[Result], None]

_BARRIER: Final = resp.bulk_array([b"QUORATE.SESSIONS"])
"""The second entry: any command that only reads."""

_log = logging.getLogger("quorate.keyvalue")


class Steps(Protocol):
    """The conversation of a client, as a command of several steps uses it."""

    def offload(self, work: Callable[[], bytes], then: Then) -> None:
        """Have work done off the event loop, and call `then` with its result."""
        ...

    def send(self, kind: RequestKind, payload: bytes, then: Then) -> None:
        """Send a request, and call `then` with its result."""
        ...

    def reply(self, reply: bytes) -> None:
        """Answer the command."""
        ...


def change_users(
    arguments: Sequence[bytes], client: ClientState, port: PortState, steps: Steps
) -> None:
    """Execute ACL SETUSER or DELUSER."""
    change = _Change(client, port, steps, port.access.audit.users_change(client, arguments))
    client.changes_users = True
    try:
        work = hashing(arguments, port)
    except CommandError as trouble:
        change.finish(trouble.reply)
        return
    if work is None:
        change.send(resp.pack(tuple(arguments)))
    else:
        steps.offload(work, change.send)


class _Change:
    def __init__(
        self, client: ClientState, port: PortState, steps: Steps, done: Callable[[str], None]
    ) -> None:
        self._done = done
        self._client = client
        self._port = port
        self._steps = steps
        self._members = len(port.gateway.topology.members)
        self._answer = b""

    def send(self, command: Result) -> None:
        """Send the command, in which there is no secret any more."""
        if _failed(command):
            self.finish(command)
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
        words = b"wait %d %d" % (self._members - 1, self._port.access.spread_s * 1000)
        self._steps.send(RequestKind.CONTROL, words, self._spread)

    def _spread(self, reached: Result) -> None:
        # The change is applied, whatever comes of the wait: its reply stays what it is.
        if not isinstance(reached, bytes) or int(reached) < self._members - 1:
            _log.warning(
                "users_not_everywhere client=%d members=%d followers_with_change=%s",
                self._client.client_id,
                self._members,
                reached.decode() if isinstance(reached, bytes) else "unknown",
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
