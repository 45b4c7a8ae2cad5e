"""How one command, of one step or of several, replies and sends requests."""

from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

from ...errors import RequestError
from ...node.requests.request import UNSTAMPED, RequestKind, Stamp
from ..clients.client_state import ClientState
from ..clients.port_state import PortState
from .once_command import WORDS_BEFORE_COMMAND

__all__ = ["Convert", "Result", "Steps", "Then", "answer_error", "refuse"]

Result: TypeAlias = bytes | RequestError
Then: TypeAlias = Callable[[Result], None]
Convert: TypeAlias = Callable[[bytes], bytes]


class Steps(Protocol):
    """The conversation of a client, as one command uses it.

    Attributes:
        client: the client's state.
        port: shared with the other connections.
    """

    client: ClientState
    port: PortState

    def reply(self, reply: bytes) -> None:
        """Answer the command."""
        ...

    def submit(
        self,
        kind: RequestKind,
        payload: bytes,
        flags: int = 0,
        convert: Convert | None = None,
        stamp: Stamp = UNSTAMPED,
    ) -> None:
        """Send a request, whose result answers the command.

        Args:
            kind: of the request.
            payload: of the request.
            flags: of the request.
            convert: makes the reply of the result; not called with an error.
            stamp: session and sequence.
        """
        ...

    def send(self, kind: RequestKind, payload: bytes, then: Then) -> None:
        """Send a request, and call `then` with its result, which may be an error."""
        ...

    def offload(self, work: Callable[[], bytes], then: Then) -> None:
        """Have work done off the event loop, and call `then` with its result."""
        ...

    def wait(self, seconds: float, then: Then) -> None:
        """Call `then` later, with nothing."""
        ...

    def answer_later(self, begin: Callable[[Callable[[bytes], None]], None], then: Then) -> None:
        """Call `begin` with a function; call `then` with what that function is given later."""
        ...

    def wait_for_users(self) -> None:
        """Execute the present command once more when the users are known."""
        ...

    def park(self) -> bool:
        """Execute the present command once more in a moment: its slot is frozen.

        Returns:
            False, without effect, if it has waited long enough.
        """
        ...


def answer_error(steps: Steps, error: bytes) -> None:
    """Answer one command with an error."""
    # As in Redis, an error while queueing makes EXEC fail.
    if steps.client.transaction is not None:
        steps.client.transaction.fail()
    steps.reply(error)


def refuse(steps: Steps, arguments: Sequence[bytes], error: bytes) -> None:
    """Answer a command that is not executed with an error."""
    # As in Redis, EXEC ends the transaction also if it is refused. Otherwise the next user of a
    # pooled connection would be in it, and would get QUEUED in place of data.
    once = arguments[0].lower() == b"quorate.once"
    ending = arguments[WORDS_BEFORE_COMMAND:] if once else arguments
    if ending and ending[0].lower() == b"exec":
        steps.client.end_transaction()
    answer_error(steps, error)
