"""The peers of one member: which links there are, and how they come and go.

The idea
--------
A member has a link to each peer that it *lists*, as its configuration of the cluster says, and to
each member that was *introduced*: the handler has admitted its hello, and its own link to us is up.
An introduced member has named in its hello where it can be dialled.

::

    listed   introduced   link
    no       no           none
    yes      any          dialled until the peer is listed no more
    no       yes          dialled until the member's own link to us ends

The naive way, and why it fails
-------------------------------
One could keep links to listed peers only. But members do not learn of a change at the same moment.
A new member knows its cluster before the cluster knows it, and a member that was down for long has
an old list. It could speak to us then, and would get no answer. With introduced links every member
can be answered: from its first message to the end of its link, we have a link to it.

One could also keep a link to all members that ever spoke to us. Then a member that is gone for good
would be dialled for ever.

What we do not do
-----------------
This module does not decide which members may come in. `LinkHandler.admits` does. The number of
introduced links is bounded, since each has queues and a task.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias

import trio

from .fields import HelloStatus
from .messages import Hello
from .network import HIGHEST_PORT, Address
from .outgoing import OutgoingLink

MAX_INTRODUCED: Final = 16
"""Most links to members that were introduced. Fewer: a member with an old list would refuse some of
the members that have joined since. More: any process that knows the cluster's name can make this
member dial that many addresses, with two queues for each."""

PeerAddresses: TypeAlias = Mapping[int, Address | Sequence[Address]]
"""The address of each peer, or several ones in the order in which to try them."""


class PeerLinks:
    """The links to all peers of one member.

    Args:
        member_id: of this member; an entry for it in a list is ignored.
        peers: the first list.
        make: makes a link to a member at some addresses.
        on_change: called whenever the set of linked members has changed.

    Attributes:
        links: by member, in ascending order of ids.
    """

    def __init__(
        self,
        member_id: int,
        peers: PeerAddresses,
        *,
        make: Callable[[int, tuple[Address, ...]], OutgoingLink],
        on_change: Callable[[], None],
    ) -> None:
        self._member_id = member_id
        self._make = make
        self._on_change = on_change
        self._nursery: trio.Nursery | None = None  # while `run` is running
        self._introduced: set[int] = set()  # listed ones, too: members whose link to us is up
        self._listed = self._addresses(peers)
        # Sorted, so that a simulation dials and broadcasts in the same order in every run.
        self.links = {member: make(member, where) for member, where in self._listed.items()}

    def _addresses(self, peers: PeerAddresses) -> dict[int, tuple[Address, ...]]:
        """Return the addresses of each peer, in ascending order of ids."""
        return {
            member: (where,) if isinstance(where, Address) else tuple(where)
            for member, where in sorted(peers.items())
            if member != self._member_id
        }

    def set_peers(self, peers: PeerAddresses) -> None:
        """Replace the list; links begin, and end, accordingly."""
        before = list(self.links)
        self._listed = self._addresses(peers)
        for member in before:
            self._end_unless_wanted(member)
        for member, where in self._listed.items():
            if member in self.links:
                self.links[member].list_at(where)
            else:
                self._begin(member, where)
        # Once, with everything in place: the callback may call any method, this one included.
        if list(self.links) != before:
            self._on_change()

    def judge(self, hello: Hello) -> tuple[HelloStatus, str]:
        """Whether the member of a hello can be introduced; the reason if it can't."""
        if hello.member_id in self.links:
            return HelloStatus.ACCEPTED, ""
        # A member that we can't dial could speak to us, and would never get an answer.
        if _advertised(hello) is None:
            where = f"{hello.host!r} and port {hello.port}"
            reason = f"member {hello.member_id} names host {where}, expected where to dial it"
            return HelloStatus.WRONG_MEMBER, reason
        if len(self.links.keys() - self._listed.keys()) >= MAX_INTRODUCED:
            reason = f"{MAX_INTRODUCED} members that are in no list are linked already"
            return HelloStatus.BUSY, reason
        return HelloStatus.ACCEPTED, ""

    def introduce(self, hello: Hello) -> None:
        """Note that the link of a member has been accepted; make one to it if there is none."""
        member, address = hello.member_id, _advertised(hello)
        self._introduced.add(member)
        is_new = member not in self.links
        if is_new:
            self._begin(member, ())
        if address is not None:
            self.links[member].advertise(address)
        # Last: the callback may change the list, even so that this link is gone again.
        if is_new:
            self._on_change()

    def part(self, member: int) -> None:
        """Note that a member's link to us has ended; ours ends with it unless it is listed."""
        self._introduced.discard(member)
        if self._end_unless_wanted(member):
            self._on_change()

    def nudge(self, member: int) -> None:
        """Dial the member now if its link is down: it has just dialled us."""
        # After a long outage the pause between dials may be a second; the peer is up now.
        if (link := self.links.get(member)) is not None:
            link.nudge()

    def count_received(self, member: int, size: int) -> None:
        """Count bytes that came from a member; for those of a member without a link do nothing."""
        if (link := self.links.get(member)) is not None:
            link.received_bytes += size

    def run(self, nursery: trio.Nursery) -> None:
        """Begin to dial; each link is a task of the nursery, from now on and in time to come."""
        self._nursery = nursery
        for link in self.links.values():
            nursery.start_soon(link.run)

    def stop(self) -> None:
        """Note that the nursery takes no more tasks."""
        self._nursery = None

    def _begin(self, member: int, addresses: tuple[Address, ...]) -> None:
        link = self._make(member, addresses)
        self.links = dict(sorted([*self.links.items(), (member, link)]))
        if self._nursery is not None:
            self._nursery.start_soon(link.run)

    def _end_unless_wanted(self, member: int) -> bool:
        """End a link to a member that is neither listed nor introduced; return whether it ended."""
        if member in self._listed or member in self._introduced or member not in self.links:
            return False
        self.links.pop(member).end()
        return True


def _advertised(hello: Hello) -> Address | None:
    """Return the address that a hello names; None if nobody can be dialled there."""
    # It comes from outside, and is logged and dialled: a line break or a port beyond the last one
    # must get no further than here.
    usable = hello.host.isprintable() and " " not in hello.host and 0 < hello.port <= HIGHEST_PORT
    return Address(hello.host, hello.port) if hello.host and usable else None
