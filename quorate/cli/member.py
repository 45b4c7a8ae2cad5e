"""`quorate member`: the members of a cluster, and changes of them while the cluster serves.

Each request goes the way of `quorate control`: to the first member that answers, which forwards it
to the leader. A change may be repeated: what is so already is a success.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final, Literal

import attrs
from cyclopts import App, Parameter
from cyclopts.validators import Number

from ..errors import ConfigurationError, UsageError
from ..local.member_list import STANDBYS, Changed, Listed, ListedMember, joiner_file, plain
from ..local.show import make_console
from ..local.survey import ask, at
from ..node.config.config import MemberConfig, load_config
from ..node.protocol.membership import MemberRole
from .control import DONE, REFUSED, UNREACHABLE, Answered
from .member_answers import ask_for_change, ask_for_list, tell
from .member_show import render, summary
from .member_wait import wait_for
from .params import Addresses, AsJson, parse_address

__all__ = ["add", "demote", "list_members", "member", "move", "promote", "remove", "replace"]

Role = Literal["voter", "standby", "spare", "witness"]
_Id = Annotated[int, Parameter(validator=Number(gte=0, lt=1 << 31), show_default=False)]
_Flag = Annotated[bool, Parameter(negative="", show_default=False)]
_Number = Annotated[int | None, Parameter(show_default=False)]
_Version = Annotated[int | None, Parameter(validator=Number(gte=0, lt=1 << 62), show_default=False)]
_Text = Annotated[str | None, Parameter(show_default=False)]
_File = Annotated[Path | None, Parameter(show_default=False)]
_Port = Annotated[int, Parameter(show_default=False)]
_NewHost = Annotated[str, Parameter(show_default=False)]

_HERE: Final = ("127.0.0.1:7000",)

member = App(
    name="member",
    help="Show the members of a cluster, and change them while it serves.",
    help_epilogue="Exit status: 0 - done; 1 - refused, for the reason given, and nothing has "
    "changed; 2 - no member or no leader answers, or the outcome is unknown: run "
    "quorate member list.",
)


@member.command(name="list", help_epilogue="")
async def list_members(*, connect: Addresses = _HERE, as_json: AsJson = False) -> int:
    """Show all members as the leader sees them, and why a new one is no voter yet.

    Args:
        connect: Client port of a member, HOST:PORT. May be given several times: the first one that
            answers is asked. 127.0.0.1:7000 if left out.
        as_json: Print the leader's answer, for programs.
    """
    answered, listed = await ask_for_list(connect)
    if listed is None:
        return tell(answered, connect, as_json=as_json)
    if as_json:
        whole = attrs.evolve(answered, words=summary(listed))
        print(whole.as_json(**plain(listed)))
    else:
        render(listed, connect, make_console())
    return DONE


@member.command(help_epilogue="")
async def add(
    *,
    host: _NewHost,
    port: _Port,
    client_port: _Number = None,
    redirect_port: int = 0,
    tls_port: int = 0,
    role: Role = "voter",
    priority: int = 0,
    even: _Flag = False,
    if_version: _Version = None,
    out: _File = None,
    wait: _Flag = False,
    connect: Addresses = _HERE,
    as_json: AsJson = False,
) -> int:
    """Give a new member a seat, and print its node.toml. It becomes a voter by itself.

    Start it with quorate run, in an empty directory. It fetches the log; then the leader makes it a
    voter. Until then it counts for nothing, so a wrong address does no harm.

    Args:
        host: Under which members and clients reach it.
        port: Its port for members.
        client_port: Its port for clients; may be left out if there is a --tls-port.
        redirect_port: Its port for cluster clients; 0 for none.
        tls_port: Its port for clients with TLS; 0 for none.
        role: voter; standby, which follows and has no vote; spare, a standby that may take the
            place of a lost voter; or witness, which votes and has no tables.
        priority: Preference for leadership.
        even: Allow that one voter becomes two. Then the loss of either stops writes.
        if_version: Only if this is still the version of the configuration.
        out: Write its node.toml to this new file, not to standard output. A repeated command keeps
            the file that the first one wrote.
        wait: Stay until it is a voter, and show its progress.
        connect: Client port of a member, HOST:PORT. May be given several times: the first one that
            answers is asked. 127.0.0.1:7000 if left out.
        as_json: Print the leader's answer, for programs. The file is printed only with --out.
    """
    if client_port is None and not tls_port:
        raise UsageError("member add: expected --client-port, --tls-port, or both")
    ports = (port, client_port or 0, redirect_port, tls_port)
    entry = _entry(host, *ports, priority=priority)
    words = _words(entry, role, None, even=even, if_version=if_version)
    request = _Request("add", connect, as_json, wait)
    return await _give_seat(request, entry, words, out)


@member.command(help_epilogue="")
async def replace(
    member_id: _Id,
    /,
    *,
    host: _NewHost,
    port: _Number = None,
    client_port: _Number = None,
    redirect_port: _Number = None,
    tls_port: _Number = None,
    if_version: _Version = None,
    out: _File = None,
    wait: _Flag = False,
    connect: Addresses = _HERE,
    as_json: AsJson = False,
) -> int:
    """Put a new member in the place of another one, which may be dead; print its node.toml.

    The new one fetches the log first. Then, in one step, it becomes a voter and the old one leaves.
    What is left out (ports, role, priority) is as the old one has it.

    Args:
        member_id: Id of the member that leaves.
        host: Under which members and clients reach the new one.
        port: Its port for members.
        client_port: Its port for clients; 0 for none.
        redirect_port: Its port for cluster clients; 0 for none.
        tls_port: Its port for clients with TLS; 0 for none.
        if_version: Only if this is still the version of the configuration.
        out: Write its node.toml to this new file, not to standard output. A repeated command keeps
            the file that the first one wrote.
        wait: Stay until it is a voter and the old one is gone, and show its progress.
        connect: Client port of a member, HOST:PORT. May be given several times: the first one that
            answers is asked. 127.0.0.1:7000 if left out.
        as_json: Print the leader's answer, for programs. The file is printed only with --out.
    """
    request = _Request(f"replace {member_id}", connect, as_json, wait, member_id)
    answered, listed = await ask_for_list(connect, request.words)
    if listed is None:
        return tell(answered, connect, as_json=as_json)
    old = listed.member(member_id)
    given = (port, client_port, redirect_port, tls_port)
    if why_not := _why_not_replaced(listed, member_id, given):
        return request.refuse(answered, why_not)
    entry = _entry(host, *_merged(given, old), priority=old.priority if old else 0)
    if old is not None and _listens(entry) == (old.host.lower(), *_ports_of(old)):
        return request.refuse(answered, f"address: member {member_id} itself is at this address")
    role = old.role if old and old.role is MemberRole.WITNESS else MemberRole.VOTER
    words = _words(entry, role.value, member_id, even=False, if_version=if_version)
    return await _give_seat(request, entry, words, out, asking=answered.connect)


@member.command(help_epilogue="")
async def promote(
    member_id: _Id,
    /,
    *,
    even: _Flag = False,
    if_version: _Version = None,
    wait: _Flag = False,
    connect: Addresses = _HERE,
    as_json: AsJson = False,
) -> int:
    """Make a standby a voter, once it has the log.

    Args:
        member_id: Id of the member.
        even: Allow that one voter becomes two. Then the loss of either stops writes.
        if_version: Only if this is still the version of the configuration.
        wait: Stay until it is a voter, and show its progress.
        connect: Client port of a member, HOST:PORT. May be given several times: the first one that
            answers is asked. 127.0.0.1:7000 if left out.
        as_json: Print the leader's answer, for programs.
    """
    words = ["promote", str(member_id), *["even"] * even, *_if(if_version)]
    request = _Request(f"promote {member_id}", connect, as_json, wait)
    answered, changed = await ask_for_change(connect, request.words, *words)
    status = tell(answered, connect, as_json=as_json, changed=changed)
    return await request.wait_until_done(answered, changed) if changed else status


@member.command(help_epilogue="")
async def demote(
    member_id: _Id,
    /,
    *,
    if_version: _Version = None,
    connect: Addresses = _HERE,
    as_json: AsJson = False,
) -> int:
    """Make a voter a standby: it goes on following, and has no vote.

    Args:
        member_id: Id of the member. A leader hands over first.
        if_version: Only if this is still the version of the configuration.
        connect: Client port of a member, HOST:PORT. May be given several times: the first one that
            answers is asked. 127.0.0.1:7000 if left out.
        as_json: Print the leader's answer, for programs.
    """
    request, words = f"demote {member_id}", ("demote", str(member_id), *_if(if_version))
    answered, changed = await ask_for_change(connect, request, *words)
    return tell(answered, connect, as_json=as_json, changed=changed)


@member.command(help_epilogue="")
async def remove(
    member_id: _Id,
    /,
    *,
    if_version: _Version = None,
    connect: Addresses = _HERE,
    as_json: AsJson = False,
) -> int:
    """Remove a member for good. Its process ends by itself; its id is never used again.

    Args:
        member_id: Id of the member. A leader hands over first.
        if_version: Only if this is still the version of the configuration.
        connect: Client port of a member, HOST:PORT. May be given several times: the first one that
            answers is asked. 127.0.0.1:7000 if left out.
        as_json: Print the leader's answer, for programs.
    """
    request = f"remove {member_id}"
    answered, listed = await ask_for_list(connect, request)
    if listed is None:
        return tell(answered, connect, as_json=as_json)
    words = ("remove", str(member_id), *_if(if_version))
    stay = _without(listed, member_id, answered.connect)
    answered, changed = await ask_for_change(stay, request, *words)
    return tell(answered, connect, as_json=as_json, changed=changed)


@member.command(help_epilogue="")
async def move(
    member_id: _Id,
    /,
    *,
    host: _Text = None,
    port: _Number = None,
    client_port: _Number = None,
    redirect_port: _Number = None,
    tls_port: _Number = None,
    if_version: _Version = None,
    connect: Addresses = _HERE,
    as_json: AsJson = False,
) -> int:
    """Change the address under which members and clients reach a member.

    What is left out stays. The member itself listens where its node.toml says: change that, too,
    and start it again.

    Args:
        member_id: Id of the member.
        host: Its new host.
        port: Its new port for members.
        client_port: Its new port for clients; 0 for none.
        redirect_port: Its new port for cluster clients; 0 for none.
        tls_port: Its new port for clients with TLS; 0 for none.
        if_version: Only if this is still the version of the configuration.
        connect: Client port of a member, HOST:PORT. May be given several times: the first one that
            answers is asked. 127.0.0.1:7000 if left out.
        as_json: Print the leader's answer, for programs.
    """
    given = {"host": host, "member_port": port, "client_port": client_port}
    given |= {"redirect_port": redirect_port, "tls_port": tls_port}
    words = [f"{name}={value}" for name, value in given.items() if value is not None]
    if not words:
        raise UsageError(
            f"member {member_id}: expected --host, --port, --client-port, --redirect-port or "
            "--tls-port"
        )
    # Whether a port is left at all, only the leader knows.
    _entry(
        host or "host",
        port or 1,
        client_port or 1,
        redirect_port or 0,
        tls_port or 0,
    )
    request, words = f"move {member_id}", ["move", str(member_id), *words, *_if(if_version)]
    answered, changed = await ask_for_change(connect, request, *words)
    return tell(answered, connect, as_json=as_json, changed=changed)


def _without(listed: Listed, member_id: int, connect: Addresses) -> Addresses:
    """Return addresses to ask that are not those of a member that leaves.

    It may end before it can pass the answer on.
    """
    gone = listed.member(member_id)
    if gone is None:
        return connect
    kept = [text for text in connect if at(parse_address(text)) != at(gone.address)]
    stay = [at(each.address) for each in listed.members if each.live and each is not gone]
    return kept or stay or connect


# --- the words of a request -----------------------------------------------------------------------


def _entry(
    host: str,
    port: int,
    client_port: int,
    redirect_port: int = 0,
    tls_port: int = 0,
    *,
    priority: int = 0,
) -> MemberConfig:
    """Return an address after the checks that a file gets.

    Raises:
        UsageError: no member can have it.
    """
    # Words of a control request are ASCII. A file may have such a host all the same.
    if not host.isascii():
        raise UsageError(f'address: host = "{host}": expected ASCII{_in_ascii(host)}')
    try:
        return MemberConfig(
            0,
            host,
            port,
            client_port,
            priority=priority,
            redirect_port=redirect_port,
            tls_port=tls_port,
        )
    except ConfigurationError as error:
        raise UsageError(str(error)) from error


def _in_ascii(host: str) -> str:
    """Return how the name of a host is written in the DNS; empty if it can't be one."""
    try:
        return f", such as {host.encode('idna').decode()}"
    except UnicodeError:
        return ""


def _words(
    entry: MemberConfig, role: str, replaces: int | None, *, even: bool, if_version: int | None
) -> list[str]:
    """Return the words of a request for a new seat."""
    words = [f"host={entry.host}", f"member_port={entry.member_port}"]
    optional = ("client_port", "redirect_port", "tls_port", "priority")
    words += [f"{name}={value}" for name in optional if (value := getattr(entry, name))]
    if role != MemberRole.VOTER.value:
        words.append(f"role={role}")
    if replaces is not None:
        words.append(f"replaces={replaces}")
    return ["add", *words, *["even"] * even, *_if(if_version)]


def _if(version: int | None) -> list[str]:
    return [] if version is None else [f"if_version={version}"]


# --- new seats ------------------------------------------------------------------------------------


def _ports_of(old: ListedMember | None) -> tuple[int, int, int, int]:
    """Return the ports of a member, in the order of `Seat.ports`."""
    if old is None:
        return 0, 0, 0, 0
    return old.member_port, old.client_port, old.redirect_port, old.tls_port


def _merged(given: tuple[int | None, ...], old: ListedMember | None) -> list[int]:
    """Return the ports of a new member: those given, and else those of the old one."""
    return [usual if new is None else new for new, usual in zip(given, _ports_of(old), strict=True)]


def _why_not_replaced(listed: Listed, member_id: int, ports: tuple[int | None, ...]) -> str | None:
    """Return why a member can't be replaced, None if it can.

    Args:
        listed: the members.
        member_id: of the one to replace.
        ports: those of the new one that were given, in the order of `Seat.ports`.
    """
    old = listed.member(member_id)
    member_port, client_port, _, tls_port = ports
    # If it is gone already, the leader says whether the new one has its seat.
    if old is None and (member_port is None or (client_port is None and tls_port is None)):
        if listed.version and member_id < listed.next_id:
            return f"removed: member {member_id} was removed"
        return f"unknown-member: there is no member {member_id}"
    if old is not None and old.role in STANDBYS:
        return (
            f"role: member {member_id} is a standby, and no write waits for it. Remove it, and add "
            f"another one: quorate member remove {member_id}"
        )
    return None


@attrs.frozen
class _Request:
    """A command that an operator has typed, and how it is to be answered.

    Args:
        words: the command, as it was typed behind ``quorate member``.
        connect: where the operator asks.
        as_json: for programs.
        wait: stay until the member is what it is to become.
        replaced: the member that has to be gone then, too.
    """

    words: str
    connect: Addresses
    as_json: bool
    wait: bool
    replaced: int | None = None

    def refuse(self, answered: Answered, words: str) -> int:
        """Print why it can't be done, without asking the leader; return the exit status."""
        refused = attrs.evolve(answered, status=REFUSED, words=words)
        return tell(refused, self.connect, as_json=self.as_json)

    async def wait_until_done(self, answered: Answered, changed: Changed) -> int:
        """Wait for the member, if that is wanted; return the exit status."""
        if not self.wait:
            return answered.status
        done = await wait_for(answered.connect, changed.member, replaced=self.replaced)
        if self.as_json:
            after = attrs.evolve(answered, status=done.status, words=done.words)
            tell(
                after,
                self.connect,
                as_json=True,
                changed=attrs.evolve(changed, version=done.version),
            )
        return done.status


async def _give_seat(
    request: _Request,
    entry: MemberConfig,
    words: Sequence[str],
    out: Path | None,
    asking: Addresses = (),
) -> int:
    """Ask for a seat, and print or write the file of the member that gets it."""
    _check_out(out, entry)
    answered, changed = await ask_for_change(asking or request.connect, request.words, *words)
    if changed is None or request.as_json:
        tell(answered, request.connect, as_json=request.as_json, changed=changed)
    else:  # Standard output is for the file, so that it can be redirected.
        print(changed.done, file=sys.stderr)
    if changed is None:
        return answered.status
    if out is not None or not request.as_json:
        asked, listed = await ask_for_list(answered.connect, request.words)
        if listed is None:
            return tell(asked, request.connect, as_json=False)
        text = await _file_of(listed, changed.member, answered.connect)
        if text is None:
            return UNREACHABLE
        _write(text, out, as_json=request.as_json)
    return await request.wait_until_done(answered, changed)


async def _file_of(listed: Listed, member_id: int, connect: Addresses) -> str | None:
    """Return the file of a new member; None, and print why, if that is not possible."""
    addresses = [parse_address(text) for text in connect]
    for address in (*addresses, *(each.address for each in listed.members if each.live)):
        said = (await ask(address)).status
        if said is not None:
            break
    else:
        print("No member says the name of the cluster: repeat the command.", file=sys.stderr)
        return None
    if listed.member(member_id) is None:
        print(f"Member {member_id} was removed again, by another request.", file=sys.stderr)
        return None
    return joiner_file(said.cluster, listed, member_id, Path())


def _check_out(out: Path | None, entry: MemberConfig) -> None:
    """Check that the file can be written, before anything changes.

    Raises:
        UsageError: it exists, and is not that of this new member; or its folder does not exist.
    """
    if out is None or (not out.exists() and out.absolute().parent.is_dir()):
        return
    try:
        found = load_config(out)
    except ConfigurationError:
        found = None
    # A request that is repeated finds the file that it has written.
    if found is None or not (found.join and _listens(found.own) == _listens(entry)):
        raise UsageError(f"--out {out}: expected a new file, in a folder that exists")


def _listens(entry: MemberConfig) -> tuple[str, int, int, int, int]:
    ports = (entry.member_port, entry.client_port, entry.redirect_port, entry.tls_port)
    return entry.host.lower(), *ports


def _write(text: str, out: Path | None, *, as_json: bool) -> None:
    if out is None:
        print(text, end="", flush=True)
        return
    if not out.exists():  # else it is the same, see above
        out.write_text(text, encoding="utf-8")
    print(
        f"Its file is {out}. Put it into an empty directory on the machine of the new member, and "
        "start it there: quorate run node.toml",
        file=sys.stderr if as_json else sys.stdout,
        flush=True,
    )
