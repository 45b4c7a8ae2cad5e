"""Mutants with wrong rules of users: who is revoked goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quorate.keyvalue.access.directory import Directory
from quorate.keyvalue.access.users import Users
from quorate.keyvalue.clients.port_access import PortAccess
from quorate.keyvalue.conversation.conversation import Conversation

if TYPE_CHECKING:
    import pytest


def no_second_check(patch: pytest.MonkeyPatch) -> None:
    """Send a request that has waited by the rules of the time when it came."""
    patch.setattr(Conversation, "doubt", lambda _self: None)


def users_of_one_version(patch: pytest.MonkeyPatch) -> None:
    """Forget to raise the version when a user changes."""
    note = Users._note_version  # pyright: ignore[reportPrivateUsage]
    patch.setattr(Users, "_note_version", lambda self, _revision: note(self, 1))


def users_are_never_old(patch: pytest.MonkeyPatch) -> None:
    """Go by the users of one's own state, however long the leader has not confirmed them."""
    patch.setattr(PortAccess, "forget_if_old", lambda _self, _now: None)
    patch.setattr(Directory, "borrow", lambda self, _users, _version: self.settle())
