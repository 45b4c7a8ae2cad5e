"""The users of the replicated ACL, as clients of etcd see them."""

import hashlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar, cast

import attrs
import pytest
import trio
from google.protobuf.message import Message
from trio.testing import MockClock, wait_all_tasks_blocked

from quorate.errors import RequestError
from quorate.etcd.access.users import ReplicatedUsers
from quorate.etcd.backend.caller import LEADER_WAIT_S
from quorate.etcd.codes import Code, EtcdError
from quorate.etcd.messages import rpc_pb2 as rpc
from quorate.etcd.messages.requests import Op
from quorate.etcd.services.context import PortContext
from quorate.etcd.services.locks.observing import observe
from quorate.etcd.services.table import DIRECT, STREAMS, UNARY
from quorate.keyvalue.access.directory import Directory
from quorate.keyvalue.access.hashing import hash_secret
from quorate.keyvalue.access.judges import ClientAuthoriser
from quorate.keyvalue.access.users import Users
from quorate.keyvalue.access.verifier import MAX_WAITING, Verifier
from quorate.keyvalue.clients.port_access import PortAccess
from quorate.node.requests.request import CONTROL, QUERY, Request, still_allowed
from tests.support.etcd_world import EtcdWorld, in_world

T = TypeVar("T")

RANGE = "/etcdserverpb.KV/Range"
PUT = "/etcdserverpb.KV/Put"
DELETE = "/etcdserverpb.KV/DeleteRange"
TXN = "/etcdserverpb.KV/Txn"
WATCH = "/etcdserverpb.Watch/Watch"
CAMPAIGN = "/v3electionpb.Election/Campaign"
PROCLAIM = "/v3electionpb.Election/Proclaim"
OBSERVE = "/v3electionpb.Election/Observe"
REMOVE = "/etcdserverpb.Cluster/MemberRemove"
LOCK = "/v3lockpb.Lock/Lock"
REVOKE = "/etcdserverpb.Lease/LeaseRevoke"
TIME_TO_LIVE = "/etcdserverpb.Lease/LeaseTimeToLive"


def hashed(secret: bytes) -> bytes:
    return b"#" + hashlib.sha256(secret).hexdigest().encode()


class AtOnce:
    """Runs the verifier's work on the trio thread."""

    async def read(self, fn: Callable[[], T]) -> T:
        await trio.lowlevel.checkpoint()
        return fn()


class NoOthers:
    """What all members know of tokens: nothing, as there is this one alone."""

    async def put(self, token: rpc.Token) -> None:
        await trio.lowlevel.checkpoint()

    def renew(self, token: rpc.Token) -> None:
        pass

    async def find(self, digest: bytes) -> rpc.TokenFound:
        await trio.lowlevel.checkpoint()
        return rpc.TokenFound()


async def no_leases(_lease: int) -> tuple[int, Sequence[bytes]]:
    await trio.lowlevel.checkpoint()
    return 1, ()


@attrs.define
class World:
    state: Users
    access: PortAccess
    users: ReplicatedUsers
    leased: dict[int, list[bytes]]

    @classmethod
    def made(
        cls, *words: bytes, settled: bool = True, authoriser: ClientAuthoriser | None = None
    ) -> "World":
        """Make users: `default` is off, and anna has these words and the password `secret`."""
        state, leased = Users(), dict[int, list[bytes]]()
        if words:
            state.set(b"default", [b"off"], 1)
            state.set(b"anna", [b"on", hashed(b"secret"), *words], 2)
        directory = Directory(state, settled=settled, authoriser=authoriser)
        access = PortAccess(directory, Verifier([AtOnce()]))

        async def leased_keys(lease: int) -> tuple[int, Sequence[bytes]]:
            await trio.lowlevel.checkpoint()
            return 1, leased.get(lease, [])

        return cls(state, access, ReplicatedUsers(access, leased_keys, NoOthers()), leased)

    def may(self, path: str, request: Message) -> bool:
        """Say whether anna may do this, where no lease counts."""
        try:
            assert not self.users.check("anna", path, request.SerializeToString())
        except EtcdError as error:
            if error.code is Code.PERMISSION_DENIED:
                return False
            raise
        return True

    async def may_at_last(self, path: str, request: Message) -> bool:
        """Say whether anna may do this, when the leader was asked for the keys of leases."""
        try:
            needs = self.users.check("anna", path, request.SerializeToString())
            await self.users.check_leases("anna", needs)
        except EtcdError as error:
            if error.code is Code.PERMISSION_DENIED:
                return False
            raise
        return True


def text_of(function: Callable[[], object]) -> str:
    with pytest.raises(EtcdError) as caught:
        function()
    return caught.value.text


def put(key: bytes, *, prev_kv: bool = False) -> rpc.PutRequest:
    return rpc.PutRequest(key=key, prev_kv=prev_kv)


async def test_without_users_there_is_no_authentication(autojump_clock: MockClock) -> None:
    world = World.made()
    assert not world.users.enabled
    assert world.users.identify("anything") == (None, 0)
    world.users.check(None, PUT, put(b"k").SerializeToString())
    with pytest.raises(EtcdError, match="authentication is not enabled"):
        await world.users.authenticate("anna", "secret")


async def test_a_password_gets_a_token_that_names_the_user(autojump_clock: MockClock) -> None:
    world = World.made(b"~*", b"+@all")
    token = await world.users.authenticate("anna", "secret")
    assert world.users.identify(token) == ("anna", 1)
    assert await world.users.authenticate("anna", "secret") != token


@pytest.mark.parametrize(("name", "password"), [("anna", "wrong"), ("default", "")])
async def test_a_wrong_name_or_password_gets_no_token(
    autojump_clock: MockClock, name: str, password: str
) -> None:
    world = World.made(b"~*", b"+@all")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.access.verifier.run)
        with pytest.raises(EtcdError, match="authentication failed, invalid user ID or password"):
            await world.users.authenticate(name, password)
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("protected", [False, True])
async def test_a_user_without_a_password_is_no_way_in_from_other_machines(
    autojump_clock: MockClock, *, protected: bool
) -> None:
    world = World.made(b"~*", b"+@all", b"nopass")
    here = await world.users.authenticate("anna", "anything")
    users = ReplicatedUsers(world.access, no_leases, NoOthers(), protected=protected)
    if protected:
        with pytest.raises(EtcdError, match="authentication failed"):
            await users.authenticate("anna", "anything")
    else:
        assert await users.authenticate("anna", "anything") != here


async def test_guessing_passwords_takes_long_and_delays_nobody_elsewhere(
    autojump_clock: MockClock,
) -> None:
    world = World.made(b"~*", b"+@all")

    async def seconds(peer: str) -> float:
        began = trio.current_time()
        with pytest.raises(EtcdError, match="authentication failed"):
            await world.users.authenticate("anna", "wrong", peer)
        return trio.current_time() - began

    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.access.verifier.run)
        assert await seconds("10.0.0.1:1") < 0.1
        for _ in range(8):  # which need no hash here
            world.access.penalties.failed("10.0.0.1:2", trio.current_time())
        assert await seconds("10.0.0.1:3") >= 3
        assert await seconds("10.0.0.2:1") < 0.1
        began = trio.current_time()
        assert await world.users.authenticate("anna", "secret", "10.0.0.1:1")
        assert trio.current_time() == began
        nursery.cancel_scope.cancel()


async def test_logins_of_one_address_leave_room_for_those_of_others(
    autojump_clock: MockClock,
) -> None:
    world = World.made(b"~*", b"+@all")
    world.state.set(b"carl", [b"on", hash_secret(b"slow", bytes(16))], 3)
    async with trio.open_nursery() as nursery:
        for port in range(MAX_WAITING):
            nursery.start_soon(refused, world.users, "guess", f"10.0.0.1:{port}")
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(world.users.authenticate, "carl", "slow", "10.0.0.2:1")
        await trio.testing.wait_all_tasks_blocked()
        assert world.access.verifier.waiting == MAX_WAITING
        nursery.cancel_scope.cancel()


async def refused(users: ReplicatedUsers, password: str, peer: str) -> None:
    with pytest.raises(EtcdError, match="too many requests"):
        await users.authenticate("anna", password, peer)


async def test_a_slow_hash_is_checked_by_the_verifier(autojump_clock: MockClock) -> None:
    world = World.made(b"~*", b"+@all")
    world.state.set(b"carl", [b"on", hash_secret(b"slow", bytes(16))], 3)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.access.verifier.run)
        token = await world.users.authenticate("carl", "slow")
        assert world.users.identify(token)[0] == "carl"
        nursery.cancel_scope.cancel()


async def test_a_call_without_a_token_is_refused(autojump_clock: MockClock) -> None:
    world = World.made(b"~*", b"+@all")
    assert world.users.identify("") == (None, 0)
    request = put(b"k").SerializeToString()
    text = text_of(lambda: world.users.check(None, PUT, request))
    assert text == "etcdserver: user name is empty"
    world.users.check(None, "/etcdserverpb.Auth/Authenticate", b"")


def test_the_members_are_listed_without_a_token() -> None:
    world = World.made(b"~*", b"+@all")
    context = PortContext(cast("Any", None), cast("Any", None), world.users, peer="10.0.0.1:1")
    request = rpc.MemberListRequest().SerializeToString()
    call = context.admit("", "/etcdserverpb.Cluster/MemberList", request)
    assert call is not None
    assert (call.user, call.principal, call.peer) == (None, 0, "10.0.0.1:1")


async def test_a_token_ends_when_it_was_not_shown_for_long(autojump_clock: MockClock) -> None:
    world = World.made(b"~*", b"+@all")
    token = await world.users.authenticate("anna", "secret")
    for _ in range(3):
        await trio.sleep(299)
        world.users.identify(token)
    await trio.sleep(301)
    assert text_of(lambda: world.users.identify(token)) == "etcdserver: invalid auth token"
    assert text_of(lambda: world.users.identify("made up")) == "etcdserver: invalid auth token"


async def test_a_token_ends_with_the_password_or_the_user(autojump_clock: MockClock) -> None:
    world = World.made(b"~*", b"+@all")
    token = await world.users.authenticate("anna", "secret")
    world.state.set(b"anna", [b"resetpass", hashed(b"new")], 3)
    assert text_of(lambda: world.users.identify(token)) == "etcdserver: invalid auth token"
    token = await world.users.authenticate("anna", "new")
    world.state.delete([b"anna"], 4)
    assert text_of(lambda: world.users.identify(token)) == "etcdserver: invalid auth token"


async def test_calls_wait_until_the_users_are_known(autojump_clock: MockClock) -> None:
    world = World.made(b"~*", b"+@all", settled=False)
    begun = trio.current_time()
    with pytest.raises(EtcdError, match="no leader"):
        await world.users.learn("")
    assert trio.current_time() - begun == 2
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.users.learn, "")
        await trio.testing.wait_all_tasks_blocked()
        world.access.users.settle()
        world.access.end_waits(known=True)


async def test_nobody_is_let_in_while_the_users_are_unknown(autojump_clock: MockClock) -> None:
    world = World.made(b"~*", b"+@all", settled=False)
    assert world.users.enabled
    assert text_of(lambda: world.users.identify("")) == "etcdserver: no leader"
    with pytest.raises(EtcdError, match="no leader"):
        await world.users.authenticate("anna", "secret")


def test_keys_are_those_of_the_patterns() -> None:
    world = World.made(b"~app:*", b"%R~all", b"+@all")
    assert world.may(PUT, put(b"app:1"))
    assert not world.may(PUT, put(b"apq"))
    assert not world.may(PUT, put(b"all"))
    assert world.may(RANGE, rpc.RangeRequest(key=b"all"))
    assert world.may(DELETE, rpc.DeleteRangeRequest(key=b"app:1"))
    assert not world.may(DELETE, rpc.DeleteRangeRequest(key=b"all"))


def test_a_range_needs_one_pattern_that_covers_it() -> None:
    world = World.made(b"~app:*", b"~a?c", b"~\xff*", b"+@all")
    for key, end, allowed in (
        (b"app:", b"app;", True),
        (b"app:1", b"app:9", True),
        (b"app", b"app;", False),
        (b"app:", b"app<", False),
        (b"app:", b"\0", False),
        (b"a", b"b", False),
        (b"\xff", b"\xff\xff", False),  # nothing is known of what ends behind every key
    ):
        request = rpc.RangeRequest(key=key, range_end=end)
        assert world.may(RANGE, request) is allowed
        create = rpc.WatchCreateRequest(key=key, range_end=end)
        assert world.may(WATCH, rpc.WatchRequest(create_request=create)) is allowed
    assert world.may(RANGE, rpc.RangeRequest(key=b"abc"))


def test_what_writes_and_returns_the_old_value_needs_both_rights() -> None:
    world = World.made(b"%W~*", b"+@all")
    assert world.may(PUT, put(b"k"))
    assert not world.may(PUT, put(b"k", prev_kv=True))
    assert not world.may(RANGE, rpc.RangeRequest(key=b"k"))


def test_every_part_of_a_transaction_is_checked_also_of_nested_ones() -> None:
    world = World.made(b"~a*", b"+@all")
    good = rpc.RequestOp(request_put=put(b"a"))
    bad = rpc.RequestOp(request_range=rpc.RangeRequest(key=b"b"))
    nested = rpc.RequestOp(request_txn=rpc.TxnRequest(failure=[bad]))
    assert world.may(TXN, rpc.TxnRequest(success=[good]))
    assert not world.may(TXN, rpc.TxnRequest(success=[good, bad]))
    assert not world.may(TXN, rpc.TxnRequest(success=[nested]))
    assert not world.may(TXN, rpc.TxnRequest(compare=[rpc.Compare(key=b"b")]))


def test_commands_are_those_of_the_rules() -> None:
    world = World.made(b"~*", b"+get")
    assert world.may(RANGE, rpc.RangeRequest(key=b"k"))
    assert not world.may(PUT, put(b"k"))
    watch = rpc.WatchRequest(create_request=rpc.WatchCreateRequest(key=b"k"))
    assert not world.may(WATCH, watch)
    assert not world.may("/etcdserverpb.KV/Compact", rpc.CompactionRequest())
    assert not world.may("/etcdserverpb.Cluster/MemberRemove", rpc.MemberRemoveRequest())
    assert not world.may("/etcdserverpb.Auth/UserList", rpc.AuthUserListRequest())
    assert world.may("/etcdserverpb.Cluster/MemberList", rpc.MemberListRequest())
    assert world.may("/etcdserverpb.Lease/LeaseGrant", rpc.LeaseGrantRequest())


def test_a_lock_needs_the_keys_behind_its_name() -> None:
    world = World.made(b"~mine*", b"+@all")
    assert world.may(LOCK, rpc.LockRequest(name=b"mine"))
    assert not world.may(LOCK, rpc.LockRequest(name=b"yours"))


@pytest.mark.parametrize(("pattern", "name"), [(b"~/*", b"app"), (b"~app/*", b"app")])
@in_world
async def test_observe_is_judged_by_the_election_that_it_names(
    world: EtcdWorld, pattern: bytes, name: bytes
) -> None:
    users = World.made(pattern, b"+@all").users
    context = PortContext(world.backend, world.hub, users)
    token = await users.authenticate("anna", "secret")
    call = await context.admit_when_known(token, OBSERVE, None)
    await world.put(b"app/1", b"value")
    sent, replies = trio.open_memory_channel[bytes](10)
    requests, served = trio.open_memory_channel[Message](1)
    requests.send_nowait(rpc.LeaderRequest(name=name))
    with trio.move_on_after(1):
        if pattern == b"~app/*":
            await observe(call, served, sent)
        else:
            with pytest.raises(EtcdError, match="permission denied"):
                await observe(call, served, sent)
    assert sent.statistics().current_buffer_used == (pattern == b"~app/*")
    replies.close()


def lose_and_find_the_leader(made: World) -> None:
    made.access.users.forget()
    made.access.users.settle()


REVISIONS: list[tuple[Callable[[World], object], bool]] = [
    (lambda made: made.state.set(b"anna", [b"resetpass", hashed(b"new")], 3), True),
    (lambda made: made.state.set(b"anna", [b"resetkeys"], 3), True),
    (lambda made: made.state.delete([b"anna"], 3), True),
    (lambda made: made.state.set(b"bert", [b"on"], 3), False),
    (lose_and_find_the_leader, False),
]


@pytest.mark.parametrize(
    ("revise", "ends"), REVISIONS, ids=["password", "keys", "deleted", "another", "election"]
)
@in_world
async def test_a_watch_ends_when_its_user_is_changed(
    world: EtcdWorld, revise: Callable[[World], object], *, ends: bool
) -> None:
    made = World.made(b"~*", b"+@all")
    context = PortContext(world.backend, world.hub, made.users)
    token = await made.users.authenticate("anna", "secret")
    call = await context.admit_when_known(token, WATCH, None)
    sent, replies = trio.open_memory_channel[bytes](10)
    requests, served = trio.open_memory_channel[Message](1)
    requests.send_nowait(rpc.WatchRequest(create_request=rpc.WatchCreateRequest(key=b"k")))
    ended: list[str] = []

    async def serve() -> None:
        try:
            await STREAMS[WATCH](call, served, sent)
        except EtcdError as error:
            ended.append(error.text)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve)
        await trio.testing.wait_all_tasks_blocked()
        revise(made)
        await trio.testing.wait_all_tasks_blocked()
        assert ended == ["etcdserver: the user was changed; call again"] * ends
        nursery.cancel_scope.cancel()
    replies.close()


async def test_a_lease_is_revoked_by_those_who_may_delete_its_keys(
    autojump_clock: MockClock,
) -> None:
    world = World.made(b"~a*", b"+@all")
    world.leased[1], world.leased[2] = [b"a1", b"a2"], [b"a1", b"b"]
    assert await world.may_at_last(REVOKE, rpc.LeaseRevokeRequest(ID=1))
    assert not await world.may_at_last(REVOKE, rpc.LeaseRevokeRequest(ID=2))
    ask = rpc.LeaseTimeToLiveRequest(ID=2)
    assert world.may("/etcdserverpb.Lease/LeaseTimeToLive", ask)
    ask.keys = True
    assert not await world.may_at_last("/etcdserverpb.Lease/LeaseTimeToLive", ask)


ATTACHING: list[tuple[str, Callable[[int], Message]]] = [
    (PUT, lambda lease: rpc.PutRequest(key=b"a", lease=lease)),
    (
        TXN,
        lambda lease: rpc.TxnRequest(
            failure=[rpc.RequestOp(request_put=rpc.PutRequest(key=b"a", lease=lease))]
        ),
    ),
    (LOCK, lambda lease: rpc.LockRequest(name=b"a", lease=lease)),
    (CAMPAIGN, lambda lease: rpc.CampaignRequest(name=b"a", lease=lease)),
    (
        PROCLAIM,
        lambda lease: rpc.ProclaimRequest(leader=rpc.LeaderKey(key=b"a", lease=lease)),
    ),
]


@pytest.mark.parametrize(("path", "attach"), ATTACHING)
async def test_a_key_joins_a_lease_only_if_all_keys_there_may_be_written(
    autojump_clock: MockClock, path: str, attach: Callable[[int], Message]
) -> None:
    world = World.made(b"~a*", b"+@all")
    world.leased[1], world.leased[2] = [b"a1"], [b"a1", b"b"]
    assert world.may(path, attach(0))
    assert await world.may_at_last(path, attach(1))
    assert not await world.may_at_last(path, attach(2))
    assert await world.may_at_last(path, attach(3))  # which does not exist


async def test_rights_that_end_while_the_leader_is_asked_do_not_count(
    autojump_clock: MockClock,
) -> None:
    world = World.made(b"~a*", b"+@all")
    world.leased[1] = [b"a1"]
    needs = world.users.check("anna", REVOKE, rpc.LeaseRevokeRequest(ID=1).SerializeToString())
    world.state.set(b"anna", [b"resetkeys"], 3)
    with pytest.raises(EtcdError, match="permission denied"):
        await world.users.check_leases("anna", needs)


def test_a_transaction_names_a_bounded_number_of_leases() -> None:
    world = World.made(b"~a*", b"+@all")
    puts = [
        rpc.RequestOp(request_put=rpc.PutRequest(key=b"a", lease=lease)) for lease in range(1, 131)
    ]
    request = rpc.TxnRequest(success=puts).SerializeToString()
    assert "too many operations" in text_of(lambda: world.users.check("anna", TXN, request))


def test_a_transaction_of_too_many_operations_is_refused_before_its_rights_are_looked_up() -> None:
    world = World.made(b"~a*", b"+@all")
    foreign = rpc.RequestOp(request_range=rpc.RangeRequest(key=b"b"))
    request = rpc.TxnRequest(success=[foreign] * 129).SerializeToString()
    assert "too many operations" in text_of(lambda: world.users.check("anna", TXN, request))


async def test_what_hangs_on_a_lease_is_not_decided_at_once(autojump_clock: MockClock) -> None:
    world = World.made(b"~a*", b"+@all")
    world.leased[1], world.leased[2] = [b"a1"], [b"b"]
    context = PortContext(cast("Any", None), cast("Any", None), world.users)
    token = await world.users.authenticate("anna", "secret")
    own = rpc.LeaseRevokeRequest(ID=1).SerializeToString()
    assert context.admit(token, REVOKE, own) is None
    assert (await context.admit_when_known(token, REVOKE, own)).user == "anna"
    with pytest.raises(EtcdError, match="permission denied"):
        await context.admit_when_known(
            token, REVOKE, rpc.LeaseRevokeRequest(ID=2).SerializeToString()
        )


@in_world
@pytest.mark.parametrize("path", [REVOKE, TIME_TO_LIVE])
async def test_a_key_that_joins_a_lease_behind_the_check_is_safe(
    world: EtcdWorld, path: str
) -> None:
    """The key of another user joins after the first check; then anna may not."""
    made = World.made(b"~a*", b"+@all")
    lease = await world.grant(60)
    await world.put(b"a1", lease=lease)
    asked = 0

    async def leased_keys(_lease: int) -> tuple[int, Sequence[bytes]]:
        nonlocal asked
        asked += 1
        found = world.member.state.revision, [b"a1", *[b"b"] * (asked == 2)]
        if asked == 1:
            await world.put(b"b", lease=lease)
        return found

    users = ReplicatedUsers(made.access, leased_keys, NoOthers())
    context = PortContext(world.backend, world.hub, users)
    token = await users.authenticate("anna", "secret")
    request = rpc.LeaseTimeToLiveRequest(ID=lease, keys=True).SerializeToString()
    with pytest.raises(EtcdError, match="permission denied"):
        await context.call_direct(DIRECT[path], token, path, request)
    assert (asked, await world.get(b"b")) == (2, b"")
    assert await context.call_direct(DIRECT[path], token, path, request)
    assert (await world.get(b"a1") is None) == (path == REVOKE)


@in_world
async def test_a_key_that_joins_a_lease_behind_the_check_of_a_put_stays_safe(
    world: EtcdWorld,
) -> None:
    """The put is made, as it is if it comes first. Then anna may neither revoke nor list."""
    made = World.made(b"~a*", b"+@all")
    lease = await world.grant(60)

    async def leased_keys(_lease: int) -> tuple[int, Sequence[bytes]]:
        found = world.member.state.revision, [b"b"] if await world.get(b"b") is not None else []
        await world.put(b"b", lease=lease)
        return found

    users = ReplicatedUsers(made.access, leased_keys, NoOthers())
    context = PortContext(world.backend, world.hub, users)
    token = await users.authenticate("anna", "secret")
    put_a = rpc.PutRequest(key=b"a", lease=lease).SerializeToString()
    await context.call_direct(DIRECT[PUT], token, PUT, put_a)
    assert await world.get(b"a") == b""
    for path in (PUT, REVOKE, TIME_TO_LIVE):
        request = rpc.LeaseTimeToLiveRequest(ID=lease, keys=True).SerializeToString()
        sent = put_a if path == PUT else request
        with pytest.raises(EtcdError, match="permission denied"):
            await context.call_direct(DIRECT[path], token, path, sent)
    assert await world.get(b"b") == b""


async def answer_of(function: Callable[[], Awaitable[bytes]]) -> bytes | str:
    """Return the reply, or the text of the error."""
    try:
        return await function()
    except EtcdError as error:
        return error.text


@in_world
@pytest.mark.parametrize("may", [True, False])
@pytest.mark.parametrize("lease", [0, 5])
async def test_a_request_that_waits_is_sent_only_if_the_users_then_allow_it(
    world: EtcdWorld, *, may: bool, lease: int
) -> None:
    """It waits for a leader, and the users change in the meantime. With a lease it goes alone."""
    made = World.made(b"~a*", b"+@all")
    await world.grant(60, 5)
    context = PortContext(world.backend, world.hub, made.users)
    token = await made.users.authenticate("anna", "secret")
    request = rpc.PutRequest(key=b"a", lease=lease).SerializeToString()
    answers: list[bytes | str] = []

    async def put_a() -> None:
        answers.append(
            await answer_of(lambda: context.call_direct(DIRECT[PUT], token, PUT, request))
        )

    async with trio.open_nursery() as nursery:
        world.member.parked = []
        for _ in range(2):
            nursery.start_soon(put_a)
        await wait_all_tasks_blocked()
        assert world.member.parked
        made.state.set(b"anna", [b"~c*"] if may else [b"resetkeys"], 3)
        world.member.release()
    assert await world.get(b"a") == (b"" if may else None)
    assert [isinstance(answer, bytes) for answer in answers] == [may, may]
    assert may or answers == ["etcdserver: permission denied"] * 2


@in_world
async def test_rights_that_end_while_the_leader_is_asked_for_a_leases_keys_do_not_count(
    world: EtcdWorld,
) -> None:
    made = World.made(b"~a*", b"~b*", b"+@all")
    await world.grant(60, 5)

    async def leased_keys(_lease: int) -> tuple[int, Sequence[bytes]]:
        await trio.lowlevel.checkpoint()
        made.state.set(b"anna", [b"resetkeys", b"~b*"], 3)
        return world.member.state.revision, [b"b"]

    users = ReplicatedUsers(made.access, leased_keys, NoOthers())
    context = PortContext(world.backend, world.hub, users)
    token = await users.authenticate("anna", "secret")
    request = rpc.PutRequest(key=b"a", lease=5).SerializeToString()
    with pytest.raises(EtcdError, match="permission denied"):
        await context.call_direct(DIRECT[PUT], token, PUT, request)
    assert await world.get(b"a") is None


@in_world
async def test_a_request_that_waits_goes_on_when_the_users_are_known_again(
    world: EtcdWorld,
) -> None:
    made = World.made(b"~a*", b"+@all")
    context = PortContext(world.backend, world.hub, made.users)
    token = await made.users.authenticate("anna", "secret")
    request = rpc.PutRequest(key=b"a").SerializeToString()
    async with trio.open_nursery() as nursery:
        world.member.parked = []
        nursery.start_soon(context.call_direct, DIRECT[PUT], token, PUT, request)
        await wait_all_tasks_blocked()
        made.access.users.forget()
        world.member.release()
        await wait_all_tasks_blocked()
        assert not world.member.commands
        made.access.users.settle()
        made.access.end_waits(known=True)
    assert await world.get(b"a") == b""


@in_world
async def test_a_lock_that_waits_is_not_taken_with_rights_that_have_ended(
    world: EtcdWorld,
) -> None:
    made = World.made(b"~a*", b"+@all")
    context = PortContext(world.backend, world.hub, made.users)
    token = await made.users.authenticate("anna", "secret")
    request = rpc.LockRequest(name=b"a")
    call = await context.admit_when_known(token, LOCK, request.SerializeToString())
    answers: list[bytes | str] = []

    async def take() -> None:
        answers.append(await answer_of(lambda: UNARY[LOCK](call, request)))

    async with trio.open_nursery() as nursery:
        world.member.parked = []
        nursery.start_soon(take)
        await wait_all_tasks_blocked()
        made.state.set(b"anna", [b"resetkeys"], 3)
        world.member.release()
    assert answers == ["etcdserver: permission denied"]
    assert not world.member.commands


@pytest.mark.parametrize("anew", [False, True])
@in_world
async def test_a_lock_that_waits_is_not_taken_for_one_whose_password_was_changed(
    world: EtcdWorld, *, anew: bool
) -> None:
    made = World.made(b"~a*", b"+@all")
    context = PortContext(world.backend, world.hub, made.users)
    token = await made.users.authenticate("anna", "secret")
    request = rpc.LockRequest(name=b"a")
    call = await context.admit_when_known(token, LOCK, request.SerializeToString())
    first = rpc.LockResponse.FromString(await UNARY[LOCK](call, request))
    answers: list[bytes | str] = []

    async def take() -> None:
        answers.append(await answer_of(lambda: UNARY[LOCK](call, request)))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(take)
        await wait_all_tasks_blocked()
        if anew:
            made.state.delete([b"anna"], 3)
            made.state.set(b"anna", [b"on", b"~a*", b"+@all", hashed(b"other")], 4)
        else:
            made.state.set(b"anna", [b"resetpass", hashed(b"other")], 3)
        await world.delete(first.key)
    assert answers == ["etcdserver: the user was changed; call again"]


@in_world
async def test_an_order_that_waits_is_given_only_if_the_users_then_allow_it(
    world: EtcdWorld,
) -> None:
    made = World.made(b"~*", b"+@all")
    context = PortContext(world.backend, world.hub, made.users)
    token = await made.users.authenticate("anna", "secret")
    request = rpc.MemberRemoveRequest(ID=world.backend.member_id_of(2))
    call = await context.admit_when_known(token, REMOVE, request.SerializeToString())
    answers: list[bytes | str] = []

    async def remove() -> None:
        answers.append(await answer_of(lambda: UNARY[REMOVE](call, request)))

    async with trio.open_nursery() as nursery:
        world.member.parked = []
        nursery.start_soon(remove)
        await wait_all_tasks_blocked()
        (order,) = parked_orders(world)
        made.state.set(b"bert", [b"on"], 3)
        assert not [*still_allowed([order])]
        await wait_all_tasks_blocked()
        again = parked_orders(world)[-1]
        assert (again.payload, again.deadline) == (order.payload, order.deadline)
        made.state.set(b"anna", [b"-@all"], 4)
        assert not [*still_allowed([again])]
    assert answers == ["etcdserver: permission denied"]


def parked_orders(world: EtcdWorld) -> list[Request]:
    return [each for each in world.member.parked or () if each.kind is CONTROL]


@in_world
async def test_a_request_that_is_begun_anew_has_no_more_time(world: EtcdWorld) -> None:
    made = World.made(b"~a*", b"+@all")
    context = PortContext(world.backend, world.hub, made.users)
    token = await made.users.authenticate("anna", "secret")
    request = rpc.RangeRequest(key=b"a").SerializeToString()
    answers: list[bytes | str] = []
    began = trio.current_time()

    async def read() -> None:
        answers.append(
            await answer_of(lambda: context.call_direct(Op.RANGE, token, RANGE, request))
        )

    async with trio.open_nursery() as nursery:
        world.member.parked = []
        nursery.start_soon(read)
        await trio.sleep(1.5)
        first = parked_reads(world)[-1]
        made.state.set(b"bert", [b"on"], 3)
        assert not [*still_allowed([first])]
        await wait_all_tasks_blocked()
        second = parked_reads(world)[-1]
        assert second is not first
        assert first.deadline == second.deadline == began + LEADER_WAIT_S
        # Nor is there more time to find out who the users are.
        made.access.users.forget()
        assert not [*still_allowed([second])]
    assert answers == ["etcdserver: no leader"]
    assert trio.current_time() == began + LEADER_WAIT_S


def parked_reads(world: EtcdWorld) -> list[Request]:
    return [each for each in world.member.parked or () if each.kind is QUERY]


@in_world
async def test_all_that_wait_are_checked_at_one_look_while_the_users_are_the_same(
    world: EtcdWorld,
) -> None:
    made = World.made(b"~a*", b"+@all")
    context = PortContext(world.backend, world.hub, made.users)
    token = await made.users.authenticate("anna", "secret")
    request = rpc.RangeRequest(key=b"a").SerializeToString()
    world.member.parked = []
    ended: list[bytes | EtcdError] = []
    for _ in range(3):
        call = context.admit(token, RANGE, request)
        assert call is not None
        world.backend.submit(Op.RANGE, request, ended.append, caller=call.caller)
    waiting = parked_reads(world)
    assert len({id(each.recheck) for each in waiting}) == 1
    assert [*still_allowed(waiting)] == waiting
    made.access.users.forget()
    made.access.users.settle()
    assert [*still_allowed(waiting)] == waiting
    made.access.users.forget()
    assert not [*still_allowed(waiting)]
    assert len(ended) == 3


def test_no_users_are_not_taken_for_unknown_ones() -> None:
    made = World.made()
    allowed = made.users.rules
    ended: list[bytes | RequestError] = []
    request = Request(QUERY, b"", 0, ended.append)
    assert [*allowed(request)] == [request]
    made.access.users.forget()
    assert not allowed(request)
    assert len(ended) == 1


def test_a_program_that_judges_is_asked_in_redis_words() -> None:
    asked: list[list[bytes]] = []

    class Judge:
        def allows(self, principal: str, command: Sequence[bytes]) -> bool:
            asked.append([principal.encode(), *command])
            return command[0] == b"GET"

    world = World.made(b"~*", b"+@all", authoriser=Judge())
    assert world.may(RANGE, rpc.RangeRequest(key=b"a", range_end=b"b"))
    assert not world.may(PUT, put(b"k"))
    assert asked == [[b"anna", b"GET", b"a", b"b"], [b"anna", b"SET", b"k"]]


async def test_the_service_says_whether_there_are_users(autojump_clock: MockClock) -> None:
    class Backend:
        state = attrs.make_class("State", {"revision": attrs.field(default=7)})()

        def header(self, revision: int) -> bytes:
            return rpc.AuthStatusResponse(
                header=rpc.ResponseHeader(revision=revision)
            ).SerializeToString()

    world = World.made(b"~*", b"+@all")
    context = PortContext(cast("Any", Backend()), cast("Any", None), world.users)
    path = "/etcdserverpb.Auth/AuthStatus"
    call = await context.admit_when_known("", path, b"")
    reply = rpc.AuthStatusResponse.FromString(await UNARY[path](call, rpc.AuthStatusRequest()))
    assert (reply.enabled, reply.authRevision, reply.header.revision) == (True, 2, 7)
    path = "/etcdserverpb.Auth/UserList"
    token = await world.users.authenticate("anna", "secret")
    call = await context.admit_when_known(token, path, b"")
    assert (call.user, call.principal) == ("anna", 1)
    users = await UNARY[path](call, rpc.AuthUserListRequest())
    assert [*rpc.AuthUserListResponse.FromString(users).users] == ["anna", "default"]


def test_an_error_has_the_code_of_etcd() -> None:
    world = World.made(b"~a", b"+@all")
    with pytest.raises(EtcdError) as caught:
        world.users.check("anna", PUT, put(b"k").SerializeToString())
    assert caught.value.code is Code.PERMISSION_DENIED
