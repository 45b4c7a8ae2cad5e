"""What the client port puts into the member's audit log (:mod:`quorate.node.upkeep.audit`).

No secret gets there. Passwords and hashes in ACL SETUSER are left out, and so is each word that is
no rule: it may be a password without its ``>``. A name that nobody has is left out, because people
type their password there. Keys are left out, too: they may say more than the reader of a log should
know, and ACL LOG has them.

What a client can cause as often as it likes is bounded, or it would push out all older events:
failed logins by address, logins and denials by address and user. Each kind has a bound of its own,
so that nobody hides a denial behind a flood of logins.
"""

from collections.abc import Callable, Sequence
from typing import Final

import attrs

from ...transport import Audit, NoAudit
from ..access.compiled import Denial, Reason
from ..access.rules import shown_rule
from .client_state import ClientState

__all__ = ["PortAudit"]

_MAX_WORDS_SHOWN: Final = 64
_MAX_TEXT: Final = 1000


@attrs.frozen
class PortAudit:
    """Notes the events of clients.

    Args:
        audit: the member's.
    """

    audit: Audit = attrs.field(factory=NoAudit)

    def refused(self, address: tuple[str, int], reason: str) -> None:
        """A connection was refused before it was a client.

        Args:
            address: of the other end.
            reason: in words. At any port with TLS a handshake has failed. At the port for clients
                of etcd there may be too many connections, or no users yet.
        """
        host, port = address[:2]
        where = f"{host}:{port}"
        self.audit.note("client_refused", of=host, address=where, reason=reason[:_MAX_TEXT])

    def certificate_refused(self, client: ClientState) -> None:
        """A certificate names no enabled user."""
        source = f"client_refused {_host(client)}"
        reason = f"the certificate names no enabled user: {_text(client.certified)!r}"
        facts = {"client": client.client_id, "address": client.peer}
        self.audit.note("client_refused", of=source, reason=reason, **facts)

    def login(self, client: ClientState, by: str) -> None:
        """A client has logged in."""
        self._note("login", client, _source("login", client), by=by)

    def login_failed(self, client: ClientState, name: bytes, *, known: bool) -> None:
        """A login has failed; the name is shown only if there is such a user."""
        self.audit.note(
            "login_failed",
            of=_host(client),
            user=_text(name) if known else "",
            client=client.client_id,
            address=client.peer,
        )

    def denied(self, client: ClientState, denial: Denial) -> None:
        """A command was denied to a user."""
        command = denial.what if denial.reason is Reason.COMMAND else client.last_command
        reason = denial.reason.value
        source = _source("denied", client)
        self._note("denied", client, source, reason=reason, command=_text(command))

    def operator(self, client: ClientState, words: bytes) -> Callable[[str], None]:
        """An operator's request begins; call the result with its outcome."""
        return self._begun("operator", client, words=_text(words))

    def users_change(
        self, client: ClientState, arguments: Sequence[bytes]
    ) -> Callable[[str], None]:
        """A change of users begins; call the result with its outcome."""
        command, words = arguments[1].lower(), arguments[2:]
        if command == b"setuser":
            names, rules = words[:1], words[1:]
            shown = [_text(shown_rule(word)) for word in rules[:_MAX_WORDS_SHOWN]]
            if len(rules) > _MAX_WORDS_SHOWN:
                shown.append("...")
        else:
            names, shown = words[:_MAX_WORDS_SHOWN], []
        users = [_text(name) for name in names]
        return self._begun("users_change", client, command=_text(command), users=users, rules=shown)

    def _begun(self, event: str, client: ClientState, **facts: object) -> Callable[[str], None]:
        self._note(event, client, **facts)
        # As of now: the client may log in as somebody else, or be deleted, before it is over.
        user = _text(client.user)

        def done(outcome: str) -> None:
            self._note(f"{event}_done", client, user=user, outcome=outcome[:_MAX_TEXT], **facts)

        return done

    def _note(self, event: str, client: ClientState, of: str = "", /, **facts: object) -> None:
        known = {"user": _text(client.user), "client": client.client_id, "address": client.peer}
        self.audit.note(event, of=of, **known | facts)


def _host(client: ClientState) -> str:
    return client.peer.rpartition(":")[0]


def _source(event: str, client: ClientState) -> str:
    """Return what has a bound of its own: events of a kind, of one user at one address."""
    return f"{event} {_host(client)} {_text(client.user)}"


def _text(word: bytes) -> str:
    return word[:_MAX_TEXT].decode("utf-8", "backslashreplace")
