"""The other members, as the file lists them: their names, their ports, and who answers there.

At a member port the doctor says hello as a reader does, and asks for nothing. So the other end
judges what it would judge of a member: the cluster, the protocol, a certificate or a key. And it
says which member it is.
"""

import socket
from typing import Final

import trio

from ..client.secure import PLAIN_PORT
from ..errors import ConfigurationError, HandshakeError, WireError
from ..local.survey import LOG_IN, Answer, ask, at, in_words
from ..local.words import age
from ..node.clocks import MAX_SKEW_MS
from ..node.config.config import MemberConfig, NodeConfig
from ..node.requests.status import MemberAddress
from ..node.upkeep.access import Access, open_reader_access
from ..transport import (
    CONNECTION_ERRORS,
    NULL_VALUE,
    PROTOCOL_VERSION,
    Address,
    Hello,
    StreamPurpose,
    TcpNetwork,
    open_stream,
)
from .finding import Finding, ok, problem, unknown, warning

__all__ = ["check_peers", "judge_answer", "judge_skew"]

NAME_SECONDS: Final = 5.0
"""How long a name may take. Smaller: slow name servers are taken for broken ones. Larger: an
operator waits for a broken one."""

_START: Final = "start it: quorate run, on its machine"
_FIREWALL: Final = "ping it; let these ports through the firewall of both machines"


async def check_peers(config: NodeConfig) -> list[Finding]:
    """Look at all members that a file lists, all at the same time, except the member itself."""
    try:
        access = open_reader_access(config.security, cluster=config.cluster, network=TcpNetwork())
    except ConfigurationError as error:
        return [unknown("member ports", str(error), "a certificate or key that can be shown")]
    found: dict[int, list[Finding]] = {peer.member_id: [] for peer in config.peers}

    async def look(peer: MemberConfig) -> None:
        found[peer.member_id] = await _look(config, peer, access)

    async with trio.open_nursery() as nursery:
        for peer in config.peers:
            nursery.start_soon(look, peer)
    return [one for each in found.values() for one in each]


async def _look(config: NodeConfig, peer: MemberConfig, access: Access) -> list[Finding]:
    named = await _resolve(peer)
    if named.level != "ok":
        return [named]
    address = MemberAddress(
        peer.member_id, peer.host, peer.client_port, peer.member_port, tls_port=peer.tls_port
    )
    return [
        named,
        await _member_port(config, peer, access),
        judge_answer(config.cluster, peer.member_id, await ask(address)),
    ]


async def _resolve(peer: MemberConfig) -> Finding:
    what = f"member {peer.member_id}: {peer.host}"
    remedy = "put the name into DNS or /etc/hosts, or write the address into [[members]]"
    found: list[str] = []
    with trio.move_on_after(NAME_SECONDS):
        try:
            infos = await trio.socket.getaddrinfo(peer.host, 0, type=socket.SOCK_STREAM)
        except OSError as error:
            return problem(
                "addresses", f"{what}: {in_words(error)}", "a name that is known", remedy
            )
        found = sorted({str(info[4][0]) for info in infos})
    if not found:
        words = f"{what}: no answer of a name server within {NAME_SECONDS:g} s"
        return problem("addresses", words, "a name that is known", remedy)
    return ok("addresses", what if found == [peer.host] else f"{what} is {', '.join(found)}")


async def _member_port(config: NodeConfig, peer: MemberConfig, access: Access) -> Finding:
    where = Address(peer.host, peer.member_port)
    name = f"member {peer.member_id} at {where}"
    expected = f'member {peer.member_id} of cluster "{config.cluster}"'
    hello = Hello(
        config.cluster,
        NULL_VALUE,
        PROTOCOL_VERSION,
        0,
        StreamPurpose.BACKUP,
        called_member_id=peer.member_id,
    )
    try:
        stream = await open_stream(access.network, where, hello, security=access.security)
    except HandshakeError as error:
        remedy = "compare cluster, [[members]] and [security] of both files, and the versions"
        return problem("member ports", f"{name}: {error}", expected, remedy)
    except WireError as error:
        return problem("member ports", f"{name}: {error}", expected, "ss -ltnp on its machine")
    except ConnectionRefusedError:
        return warning("member ports", f"{name}: nobody listens", expected, _START)
    except CONNECTION_ERRORS as error:
        words = f"{name}: {_words(error)}"
        return problem("member ports", words, expected, _FIREWALL)
    stream.close()
    return ok("member ports", f"{name} answers, protocol {PROTOCOL_VERSION >> 16}")


def _words(error: Exception) -> str:
    if isinstance(error, trio.TooSlowError):
        return "no answer in time: packets are lost, or the process stands still"
    return in_words(error) or type(error).__name__


def judge_answer(cluster: str, member_id: int, answer: Answer) -> Finding:
    """Judge the answer at a client port.

    Args:
        cluster: that is expected.
        member_id: likewise.
        answer: to QUORATE.STATUS.
    """
    name = f"member {member_id} at {at(answer.address)}"
    expected, said = f'member {member_id} of cluster "{cluster}"', answer.status
    if said is not None:
        if (said.cluster, said.member_id) == (cluster, member_id):
            words = f"{name}: {said.role}, {said.state}, term {said.term}"
            return ok("client ports", words, role=said.role, state=said.state, term=said.term)
        words = f'{name}: member {said.member_id} of cluster "{said.cluster}" answers'
        remedy = "compare [[members]] of both files"
        return problem("client ports", words, expected, remedy)
    error = answer.error or ""
    if answer.refused:
        return unknown("client ports", f"{name}: {error}", "a user that may ask", LOG_IN)
    if PLAIN_PORT in error:
        remedy = "unset QUORATE_CA, or give the port with TLS"
        return unknown("client ports", f"{name}: {error}", "a TLS connection", remedy)
    if "TLS" in error or "certificate" in error or not answer.address.client_port:
        remedy = "set QUORATE_CA to the file of the CA, and QUORATE_CERTIFICATE if it is asked for"
        return unknown("client ports", f"{name}: {error}", "a TLS connection", remedy)
    if error == in_words(ConnectionRefusedError(111, "")):
        return warning("client ports", f"{name}: nobody listens", expected, _START)
    return problem("client ports", f"{name}: {error}", expected, _FIREWALL)


def judge_skew(name: str, skew_ms: float, doubt_ms: float) -> Finding:
    """Judge by how much a member's time is ahead of ours.

    Args:
        name: of the member, with its address.
        skew_ms: its time minus ours.
        doubt_ms: by how much that may be wrong: half of the time that the answer took.
    """
    apart, where = abs(skew_ms), "ahead of" if skew_ms > 0 else "behind"
    found = f"{name}: its time is {age(apart / 1000)} {where} this machine's"
    figures = {"skew_ms": round(skew_ms, 1), "doubt_ms": round(doubt_ms, 1)}
    remedy = "let a time service set both clocks: timedatectl; docs/operations.md"
    what = "less than a second"
    if apart - doubt_ms > MAX_SKEW_MS:
        return problem("clocks", found, what, remedy, **figures)
    if apart - doubt_ms > _SKEW_MS:
        return warning("clocks", found, what, remedy, **figures)
    return ok("clocks", f"{name}: {apart:.0f} ms {where} this machine's", **figures)


_SKEW_MS: Final = 1000
"""Difference of clocks that is warned of. Smaller: a busy machine looks wrong. Larger: keys expire
a second early after a change of leader, and nobody knows why."""
