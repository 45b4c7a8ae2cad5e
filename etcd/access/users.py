"""The replicated users (ACL SETUSER), as this API sees them.

Authentication is on as soon as strangers may not do everything, which is when the user `default`
was restricted. Then a call needs a token, and a token is for a name and a password
(:mod:`.tokens`). A change of a user holds from the next call on: what a token proved is compared
with the user each time.

While this member does not know the users (:mod:`quorate.keyvalue.access.directory`) nobody is let
in. Calls wait then, as they wait for a leader, which is what is missing.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import trio

from ...keyvalue.access.logins import Pending
from ...keyvalue.clients.penalties import network_of
from ...log_events import log_event
from ...transport.strangers import OnceLog
from ..backend.caller import LEADER_WAIT_S, Rules
from ..codes import (
    AUTH_FAILED,
    AUTH_NOT_ENABLED,
    INVALID_TOKEN,
    NO_LEADER,
    PERMISSION_DENIED,
    TOO_MANY_OPS,
    TOO_MANY_REQUESTS,
    USER_EMPTY,
    EtcdError,
)
from ..state.checks import MAX_OPS
from .needs import FREE, needs_untrusted
from .rights import LeaseNeed, Need, Rights
from .tokens import SharedTokens, Tokens

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from ...keyvalue.clients.port_access import PortAccess

    LeasedKeys: TypeAlias = tuple[int, Sequence[bytes]]

__all__ = ["ReplicatedUsers"]

_log = logging.getLogger("quorate.etcd")


class ReplicatedUsers:
    """The users of the cluster.

    Args:
        access: of the member's port for Redis's clients, which keeps the users new enough.
        leased_keys: returns a revision and the keys of a lease then, as the leader has them; none
            if there is no such lease. This member may be behind, and have none of them.
        shared: the tokens that all members know.
        protected: clients of other machines are served only as users, so each user needs a
            password: `nopass` must not open the port.
    """

    def __init__(
        self,
        access: PortAccess,
        leased_keys: Callable[[int], Awaitable[LeasedKeys]],
        shared: SharedTokens,
        *,
        protected: bool = False,
    ) -> None:
        self._access = access
        self._leased_keys = leased_keys
        self._tokens = Tokens(access.random_bytes, shared)
        self._rules = Rules(self)
        self._rights: dict[bytes, Rights] = {}
        self._failures = OnceLog()
        self._revised = trio.Event()  # at the next change of users
        access.users.listen(self._note_change)
        self._holds = partial(access.logins.holds, remote=protected)

    @property
    def enabled(self) -> bool:
        """Whether clients have to show a token."""
        return self._access.users.restricted

    def knows(self, token: str) -> bool:
        """Whether it is known whose token it is, and who the users are."""
        if not self._access.users.known:
            return False
        return not (self.enabled and token) or self._tokens.knows(token)

    async def learn(self, token: str) -> None:
        """Find out who the users are, and whose token it is; see `services.call.Users`.

        Raises:
            EtcdError: there is no leader that knows.
        """
        with trio.move_on_after(LEADER_WAIT_S):
            while not self._access.users.known:
                await self._next_answer()
        self._require_known()
        if not self.knows(token):
            await self._tokens.learn(token)

    @property
    def version(self) -> int:
        """The version of the users; 0 before the first change, and -1 while they are unknown."""
        users = self._access.users
        return users.version if users.known else -1

    @property
    def rules(self) -> Rules:
        """The users as they are now; see `services.call.Users`."""
        if self._rules.version != self.version:
            self._rules = Rules(self)
        return self._rules

    @property
    def names(self) -> list[str]:
        """The names of all users."""
        return [_text(name) for name in self._access.users]

    def identify(self, token: str) -> tuple[str | None, int]:
        """Return name and number of the user that has a token; see `services.call.Users`.

        Raises:
            EtcdError: the token is unknown or over, or the users are unknown now.
        """
        if not self.enabled:
            return None, 0
        self._require_known()
        if not token:
            return None, 0
        name = self._tokens.show_untrusted(token, self._holds)
        user = self._access.users.get(name)
        if user is None:  # what holds is the proof of a user that exists
            raise EtcdError(*INVALID_TOKEN)
        return _text(name), user.number

    def check(self, user: str | None, path: str, message: bytes | None) -> Sequence[LeaseNeed]:
        """Raise unless a user may do what a request asks for; see `services.call.Users`.

        Raises:
            EtcdError: it may not, or the method needs a token.
        """
        if not self.enabled or path in FREE:
            return ()
        self._require_known()
        if user is None:
            raise EtcdError(*USER_EMPTY)
        rights = self._rights_of(_name(user))
        if rights.access.open:
            return ()
        needs = needs_untrusted(path, message)
        if not rights.allow([need for need in needs if isinstance(need, Need)]):
            raise EtcdError(*PERMISSION_DENIED)
        # A transaction may name one lease often, and the leader is asked about each.
        leases = [*dict.fromkeys(need for need in needs if isinstance(need, LeaseNeed))]
        if len(leases) > MAX_OPS:
            raise EtcdError(*TOO_MANY_OPS)
        return leases

    async def check_leases(self, user: str, needs: Sequence[LeaseNeed]) -> int:
        """Raise unless a user may do this with the keys of leases; see `services.call.Users`.

        Returns the revision at which they had these keys.

        Raises:
            EtcdError: it may not, or there is no leader.
        """
        revisions: list[int] = []
        for need in needs:
            revision, keys = await self._leased_keys(need.lease)
            revisions.append(revision)
            # The users may have changed since.
            self._require_known()
            if not self._rights_of(_name(user)).allow(need.of(keys)):
                raise EtcdError(*PERMISSION_DENIED)
        return min(revisions, default=0)

    def state_of(self, user: str | None) -> object:
        """Return what a user is now; see `services.call.Users`."""
        return self.enabled, None if user is None else self._access.users.get(_name(user))

    async def wait_revised(self, user: str | None, state: object) -> None:
        """Wait until a user is something else; see `services.call.Users`."""
        # An election takes nobody's rights: then the users are unknown for a moment.
        while not self._access.users.known or self.state_of(user) == state:
            await self._revised.wait()

    async def authenticate(self, name: str, password: str, peer: str = "") -> str:
        """Return a new token for a user; see `services.call.Users`.

        Raises:
            EtcdError: name or password is wrong, or there is no authentication.
        """
        if not self.enabled:
            raise EtcdError(*AUTH_NOT_ENABLED)
        self._require_known()
        user, secret = _name(name), _name(password)
        proof = self._access.logins.check(user, secret)
        if isinstance(proof, Pending):
            proof = await self._verify(proof.work, peer)
            self._access.logins.remember(secret, proof)
            # An election may have begun: a right password must not be called wrong.
            self._require_known()
        else:
            await trio.lowlevel.checkpoint()
        if not proof or not self._holds(user, proof):
            self._log_failure(user)
            # As at the port of Redis's clients: guessing passwords must take long.
            await trio.sleep(self._access.penalties.failed(peer, trio.current_time()))
            raise EtcdError(*AUTH_FAILED)
        return await self._tokens.make(user, proof)

    # --- parts

    def _note_change(self) -> None:
        self._revised.set()
        self._revised = trio.Event()

    def _require_known(self) -> None:
        if not self._access.users.known:
            raise EtcdError(*NO_LEADER)

    async def _next_answer(self) -> None:
        """Wait until the leader was asked for the users once more, with success or without."""
        answered = trio.Event()
        self._access.wait_for_users(lambda _result: answered.set())
        await answered.wait()

    def _rights_of(self, name: bytes) -> Rights:
        access = self._access.users.access(name)
        if access is None:
            raise EtcdError(*INVALID_TOKEN)
        rights = self._rights.get(name)
        # A change of users makes new objects, and each is compiled once.
        if rights is None or rights.access is not access:
            rights = self._rights[name] = Rights(access)
        return rights

    async def _verify(self, work: Callable[[], bytes], peer: str) -> bytes:
        """Run work off the event loop.

        Raises:
            EtcdError: there is too much of it already.
        """
        results: list[bytes] = []
        done, waits = trio.Event(), True

        def take(result: bytes) -> None:
            results.append(result)
            done.set()

        if not self._access.verifier.submit(
            work, take, address=network_of(peer), wanted=lambda: waits
        ):
            raise EtcdError(*TOO_MANY_REQUESTS)
        try:
            await done.wait()
        finally:
            waits = False
        (result,) = results
        if result.startswith(b"-"):  # the verifier's own error
            raise EtcdError(*TOO_MANY_REQUESTS)
        return result

    def _log_failure(self, name: bytes) -> None:
        # People type their password where the name belongs, so only known names are shown.
        user = repr(name) if self._access.users.get(name) is not None else "unknown"
        words = self._failures.if_new(f"a client of etcd could not log in; user: {user}")
        if words:
            log_event(_log, logging.WARNING, "login_failed", "%(why)s", why=words)


def _name(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _text(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")
