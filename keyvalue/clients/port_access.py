"""What all connections of a port share about users: who is logged in, and what was denied.

A change of a user reaches the sessions at once, while the entry is applied:

- a session keeps what its user may do now, if what it has proved still lets it in: its password is
  still one of the user's, or the user needs none;
- otherwise it has to log in again;
- the sessions of a deleted user are closed.

Strangers
    Where the file says that clients of other machines log in, one of them that has proved nothing
    is a *stranger*: it is never let in, not even as a user that needs no password. So no change of
    a user can open the port. Where a program judges logins, every client is one until it is judged.

While the users are unknown
    Nobody can be let in, and nobody is logged out. A client that is no stranger may ask about the
    member. So may `default`, on this machine: that is how a cluster without users works, and how
    it is founded. If `default` needed a password when the users were known last, the limits before
    a login hold for it, too. The other commands wait until the users are known.
"""

import logging
import math
import os
from collections.abc import Callable, Sequence
from typing import Final, Protocol, TypeAlias, TypeVar

import attrs

from ...errors import NoLeaderError, RequestError
from ...log_events import log_event
from ...transport.strangers import OnceLog
from ..access.compiled import Access, Denial, Reason
from ..access.denials import Denials
from ..access.directory import Directory
from ..access.judges import ClientAuthenticator
from ..access.logins import CERTIFICATE, NO_PASSWORD, Logins
from ..access.rules import NOBODY
from ..access.users import DEFAULT_NAME
from ..access.verifier import Verifier
from .client_state import ClientState
from .penalties import Penalties, network_of
from .port_audit import PortAudit

__all__ = ["PortAccess"]

BEFORE_LOGIN: Final = Access(DEFAULT_NAME, NOBODY)
"""What a client may do before it has logged in."""

_log = logging.getLogger("quorate.keyvalue")


class _Connection(Protocol):
    client: ClientState


C = TypeVar("C", bound=_Connection)
_Callback: TypeAlias = Callable[[bytes | RequestError], None]


@attrs.define(eq=False)
class PortAccess:
    """Users and logins of one client port.

    Args:
        users: the replicated ones, as the port sees them.
        verifier: hashes passwords.
        random_bytes: returns that many random bytes.
        authenticator: decides who may log in; None for the users' passwords.
        spread_s: how long a change of users waits at most until all members have it.
        stale_after_s: users that the leader has not confirmed for this long count as unknown, once
            there are users; None for no such limit. A command may be executed by rules that
            were changed so long ago, and no longer.
        audit: takes note of logins, denials and changes.

    Attributes:
        confirmed_at: when the leader was asked for the users last, of the questions that it has
            answered (trio's clock); infinity while there is nothing to ask for.
        missing_at: ids of the members that had not reported the last change of users that was made
            here, when it was answered; "unknown" if the leader changed.
    """

    users: Directory = attrs.field(factory=Directory)
    verifier: Verifier = attrs.field(factory=Verifier)
    random_bytes: Callable[[int], bytes] = os.urandom
    authenticator: ClientAuthenticator | None = attrs.field(default=None, kw_only=True)
    spread_s: float = 2.0
    stale_after_s: float | None = 1.0
    audit: PortAudit = attrs.field(factory=PortAudit)
    denials: Denials = attrs.field(factory=Denials)
    penalties: Penalties = attrs.field(factory=Penalties)
    logins: Logins = attrs.field(init=False)
    confirmed_at: float = attrs.field(init=False)
    missing_at: str = attrs.field(init=False, default="")
    _failures: OnceLog = attrs.field(init=False, factory=OnceLog)
    _waiting: list[_Callback] = attrs.field(init=False, factory=list[_Callback])

    def __attrs_post_init__(self) -> None:
        """Make what depends on the users."""
        self.logins = Logins(self.users, self.random_bytes, self.authenticator)
        self.confirmed_at = math.inf if self.users.settled else -math.inf

    # --- sessions

    def begin(self, client: ClientState) -> None:
        """Begin a session, or begin it anew (RESET).

        It is that of the user that its certificate names, or `default` if that needs no password.
        """
        client.proof = CERTIFICATE if client.certified else NO_PASSWORD
        client.login = client.certified or DEFAULT_NAME
        self._give(client)
        if client.certified and client.logged_in:
            self.audit.login(client, "certificate")
        elif client.certified and self.users.known:
            self.audit.certificate_refused(client)

    def log_in(self, client: ClientState, name: bytes, proof: bytes) -> None:
        """Let a user in; `Logins` has found the proof right."""
        client.login, client.proof = name, proof
        self._give(client)
        self.audit.login(client, "no password" if proof == NO_PASSWORD else "password")

    def lets_in(self, client: ClientState, name: bytes, proof: bytes) -> bool:
        """Whether a proof lets a client in as a user."""
        return self.logins.holds(name, proof, remote=client.remote)

    def revise(self, connections: Sequence[C]) -> list[C]:
        """Apply a change of users to sessions; return those to close."""
        ended: list[C] = []
        for connection in connections:
            client = connection.client
            if not self.users.known and client.logged_in:
                # Nobody is logged out by an election: it will be checked again.
                client.give(self.users.while_unknown(client.login))
            elif not self.users.known or self.users.get(client.login) is not None:
                self._give(client)
            elif client.changes_users:  # it is answered first: it has deleted its own user
                client.give(BEFORE_LOGIN, logged_in=False)
                client.removed = True
            else:
                client.give(BEFORE_LOGIN, logged_in=False)
                ended.append(connection)
        return ended

    def _give(self, client: ClientState) -> None:
        access = self.users.access(client.login)
        if access is not None and self.lets_in(client, client.login, client.proof):
            client.give(access)
            client.principal = access.user.number
        elif self.users.known or client.proof != NO_PASSWORD or self.is_stranger(client):
            client.give(BEFORE_LOGIN, logged_in=False)
        else:
            free = self.users.default_was_free
            client.give(self.users.while_unknown(DEFAULT_NAME), logged_in=free)

    def is_stranger(self, client: ClientState) -> bool:
        """Whether a client must prove something first, whatever the users are."""
        return (client.remote or self.logins.judged) and client.proof == NO_PASSWORD

    # --- unknown users

    def may_found(self, client: ClientState) -> bool:
        """Whether a client may found a cluster, while no leader can say which users there are.

        A cluster that is not founded has no leader. So it is for clients of this machine, and for
        the first user of all, if a certificate says that it is.
        """
        if self.users.known:
            return False
        return client.certified == DEFAULT_NAME or not (client.remote or self.logins.judged)

    def wait_for_users(self, done: _Callback) -> None:
        """Call back once the users are known, with nothing; or with an error, if no leader is."""
        self._waiting.append(done)

    def end_waits(self, *, known: bool) -> None:
        """Call back those that wait for the users."""
        # Swapped first: one that is called may wait again.
        waiting, self._waiting = self._waiting, []
        for done in waiting:
            done(b"" if known else NoLeaderError())

    @property
    def good_until(self) -> float:
        """Until when the users count as known unless the leader confirms them (trio's clock)."""
        return math.inf if self.stale_after_s is None else self.confirmed_at + self.stale_after_s

    def forget_if_old(self, now: float) -> None:
        """Count the users as unknown if the leader has not confirmed them for too long."""
        if now >= self.good_until:
            self.users.forget()

    # --- denials

    def deny(
        self, client: ClientState, denial: Denial, *, line: Callable[[], bytes], now_ms: int
    ) -> bytes:
        """Note a denial; return the text of its error.

        Args:
            client: has sent the command.
            denial: why it may not run.
            line: returns the client's line of CLIENT LIST.
            now_ms: log time.
        """
        if not client.logged_in:
            return self.why_not_in(client) or b"NOAUTH Authentication required."
        if self._note(client, denial, client.user, line=line, now_ms=now_ms):
            self.audit.denied(client, denial)
        return denial.text

    def why_not_in(self, client: ClientState) -> bytes:
        """Return an error for a client that need not have sent a password; empty for others."""
        if client.certified and client.login == client.certified:
            named = client.certified.decode("utf-8", "replace")
            user = named if " " in named else repr(named)  # see `certified_user`
            return f"NOAUTH The certificate names no enabled user: {user}".encode()
        if client.remote and not self.users.restricted:
            return (
                b"NOAUTH There are no users yet, and this client is on another machine: "
                b"create users (ACL SETUSER) on the machine of a member"
            )
        return b""

    def deny_login(
        self, client: ClientState, name: bytes, *, line: Callable[[], bytes], now_ms: int
    ) -> None:
        """Note a failed login as a user; see `deny`."""
        self._note(client, Denial(Reason.AUTH, b"AUTH"), name, line=line, now_ms=now_ms)
        known = self.users.get(name) is not None
        self.audit.login_failed(client, name, known=known)
        # People type their password where the name belongs.
        user = repr(name) if known else "unknown"
        # Once an hour for each pair: anybody may send as many as they like. The audit log has more.
        where = network_of(client.peer)
        if words := self._failures.if_new(f"a client at {where} could not log in; user: {user}"):
            log_event(_log, logging.WARNING, "login_failed", "%(why)s", why=words)

    def _note(
        self,
        client: ClientState,
        denial: Denial,
        user: bytes,
        *,
        line: Callable[[], bytes],
        now_ms: int,
    ) -> bool:
        """Note a denial for ACL LOG; return whether it is a new one."""
        return self.denials.add(
            denial,
            user,
            in_transaction=client.transaction is not None,
            client=line,
            now=client.seen_at,
            now_ms=now_ms,
        )
