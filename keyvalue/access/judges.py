"""How an embedding program judges clients by itself, in place of passwords and rules.

The users stay those of the log: a name must be a user that is on, and a session ends when its user
is deleted or turned off. Who has the right password, and what a user may do, may be decided
elsewhere: by a directory of a company, or by a policy.

For members and readers there is `transport.authentication`.
"""

from collections.abc import Callable, Sequence
from typing import Final, Protocol

import attrs

from ..commands.table import CommandSpec
from .compiled import BEFORE_LOGIN, Access, Denial, Reason
from .rules import User

__all__ = ["JUDGED", "ClientAuthenticator", "ClientAuthoriser", "ClientSecurity", "JudgedAccess"]

JUDGED: Final = b"judged"
"""The proof of a session that a `ClientAuthenticator` has let in."""


class ClientAuthenticator(Protocol):
    """Decides who may log in, in place of the passwords of the users."""

    def login(self, user: str, secret: bytes) -> bool:
        """Whether this secret is that of a user.

        It is called on another thread, two calls at most at a time, so it may ask a server. An
        exception is logged, and the client gets an error.
        """
        ...


class ClientAuthoriser(Protocol):
    """Decides what a user may do, in place of its rules."""

    def allows(self, principal: str, command: Sequence[bytes]) -> bool:
        """Whether a user may execute a command, given as its words.

        It is called on the event loop for each command, before it is sent, so it must not block,
        and must not raise.
        """
        ...


@attrs.frozen
class ClientSecurity:
    """Who judges the clients of a member.

    Args:
        authenticator: decides who may log in; None for the passwords of the users.
        authoriser: decides what a user may do; None for its rules.
    """

    authenticator: ClientAuthenticator | None = None
    authoriser: ClientAuthoriser | None = None


class JudgedAccess(Access):
    """What one user may do, by an authoriser.

    Args:
        name: of the user.
        user: its rules, which are not looked at.
        allows: of the authoriser.
    """

    __slots__ = ("_allows", "_principal")

    def __init__(
        self, name: bytes, user: User, allows: Callable[[str, Sequence[bytes]], bool]
    ) -> None:
        super().__init__(name, user)
        # No short way: it is asked about each command.
        self.open, self.joins = False, 0
        self._allows = allows
        self._principal = name.decode(errors="replace")

    def denial(self, spec: CommandSpec, arguments: Sequence[bytes]) -> Denial | None:
        """See `Access`."""
        if spec.name in BEFORE_LOGIN or self._allows(self._principal, arguments):
            return None
        return Denial(Reason.COMMAND, spec.name.encode())
