"""The users as a client port sees them: those of the state, or borrowed from the leader.

The state of a member may be old: after a start it is that of the last flush, a new member has none,
and a witness never has one. By such a state, a removed user would be let in again, or everybody
would be. So a port begins with *unknown* users. It asks the leader, and takes over the answer
until the member's own state is as new. The leader is asked on and on, because the state may fall
behind again (:mod:`..port.leader_users`).

While the users are unknown, nobody can be let in. A client that was let in before stays so, and may
ask about the member, and no more (:meth:`Directory.while_unknown`).
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from .compiled import Access
from .judges import ClientAuthoriser, JudgedAccess
from .rules import NOBODY, User, apply
from .users import DEFAULT_NAME, Users

__all__ = ["Directory"]

# MULTI and DISCARD do nothing by themselves. If MULTI were refused, what the client has sent behind
# it would be executed one by one, without what it has watched, once the users are known. What ends
# a client's own watches takes nothing but that from it.
_HARMLESS: Final = (
    b"+@connection -@dangerous +info +cluster +command +role +time +quorate.status +config|get "
    b"-cluster|countkeysinslot +multi +discard +unwatch +quorate.unwatch"
)

_HARMLESS_USER: Final = apply(NOBODY, _HARMLESS.split())


class Directory:
    """Users, and what each may do.

    Args:
        users: those of the state; None for a port without a state: only `default` exists then.
        settled: the state is known to be new enough.
        authoriser: decides what a user may do; None for its rules.

    Attributes:
        settled: as given, until `settle` or `unsettle`.
    """

    def __init__(
        self,
        users: Users | None = None,
        *,
        settled: bool = True,
        authoriser: ClientAuthoriser | None = None,
    ) -> None:
        self._users = Users() if users is None else users
        self._known = settled
        self._borrowed: Mapping[bytes, User] | None = None
        self._borrowed_version = -1
        self._authoriser = authoriser
        self._access: dict[bytes, Access] = {}
        self._listeners: list[Callable[[], None]] = []
        self.settled = settled
        self._users.listen(self._changed)

    # --- where the users come from

    @property
    def known(self) -> bool:
        """Whether it is known which users there are; see `PortAccess` for what follows if not."""
        return self._known

    @property
    def own_version(self) -> int:
        """The version of the users in the member's own state."""
        return self._users.version

    @property
    def version(self) -> int:
        """The version of the users in use; 0 while unknown, and before the first change."""
        if not self.known:
            return 0
        return self._users.version if self._borrowed is None else self._borrowed_version

    def settle(self) -> None:
        """Use the users of the state from now on."""
        if not self.settled:
            self.settled, self._known, self._borrowed = True, True, None
            self._changed()

    def borrow(self, users: Mapping[bytes, User], version: int) -> None:
        """Use these users of the leader, which are newer than those of the state."""
        self.settled = False
        # A version alone is a change, too: leaders compare it with that of requests.
        if not self._known or (users, version) != (self._borrowed, self._borrowed_version):
            self._borrowed, self._borrowed_version = dict(users), version
            self._known = True
            self._changed()

    def forget(self) -> None:
        """Count the users as unknown."""
        self.settled = False
        if self._known:
            self._known = False
            self._changed()

    def while_unknown(self, name: bytes) -> Access:
        """Return what a user that was let in before may do while the users are unknown."""
        access = self._access.get(name)
        if access is None:
            access = self._access[name] = Access(name, _HARMLESS_USER)
        return access

    @property
    def default_was_free(self) -> bool:
        """Whether `default` needed no password, by the users that were known last.

        While the users are unknown, this may be old. It decides only how much a client may take
        until they are known.
        """
        default = self._last(DEFAULT_NAME)
        return default is not None and default.enabled and default.nopass

    def _last(self, name: bytes) -> User | None:
        return self._users.get(name) if self._borrowed is None else self._borrowed.get(name)

    # --- users

    def listen(self, listener: Callable[[], None]) -> None:
        """Call a listener after each change, on the trio thread; it must not raise."""
        self._listeners.append(listener)

    def __iter__(self) -> Iterator[bytes]:
        """Return the names, in order; none while the users are unknown."""
        if not self._known:
            return iter(())
        return iter(self._users if self._borrowed is None else sorted(self._borrowed))

    def get(self, name: bytes) -> User | None:
        """Return a user; None if there is none of that name, or the users are unknown."""
        return self._last(name) if self._known else None

    def access(self, name: bytes) -> Access | None:
        """Return what a user may do; None unless it exists and may log in."""
        if not self._known:
            return None
        access = self._access.get(name)
        if access is None and (user := self.get(name)) is not None and user.enabled:
            if self._authoriser is None:
                access = Access(name, user)
            else:
                access = JudgedAccess(name, user, self._authoriser.allows)
            self._access[name] = access
        return access

    @property
    def restricted(self) -> bool:
        """Whether strangers may not do everything: `default` was changed, or can't log in."""
        default = self.access(DEFAULT_NAME)
        return default is None or not default.open or not default.user.nopass

    def _changed(self) -> None:
        # All of them: compiling a user again costs less than finding out which have changed.
        self._access.clear()
        for listener in self._listeners:
            listener()
