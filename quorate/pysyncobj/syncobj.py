"""`SyncObj`: a member in a thread of its own, and calls from any other thread."""

from __future__ import annotations

import logging
import threading
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import TYPE_CHECKING, Any, Final

import attrs
import trio

from ..embed import open_node
from ..errors import (
    ConfigurationError,
    NoLeaderError,
    OversizedRequestError,
    RefusedError,
    RequestError,
)
from ..log_events import log_event
from ..node import State
from ..objects import wire
from ..objects.caller import Caller, Waiting
from ..objects.machine import ObjectsMachine
from .config import FAIL_REASON, SyncObjConf, SyncObjException, node_config
from .parts import AttributesPart, CodeVersion, Replicating, SyncObjConsumer
from .plain import decode_untrusted, encode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ..embed import Node as Member
    from ..node import NodeConfig, NodeStatus

__all__ = ["Node", "SyncObj"]

_LOG: Final = logging.getLogger(__name__)
LOOK_S: Final = 0.05
"""How often the thread looks at the member. If smaller, an idle program costs more. If larger,
`isReady` and `_getLeader` are late."""

PATIENT_S: Final = 24 * 3600.0
"""How long a call waits for a leader. PySyncObj waits for ever; the state machine needs an end."""

IMPATIENT_S: Final = 1.0
"""The same with `commandsWaitLeader=False`."""


@attrs.frozen
class Node:
    """A node of the cluster.

    Args:
        id: "host:port".
    """

    id: str

    @property
    def address(self) -> str:
        """Its address."""
        return self.id

    def __str__(self) -> str:
        return self.id


class _MemberThread:
    """Runs a member until it is stopped, or the main thread has ended.

    Attributes:
        failure: what has ended it; None while it runs, or after a stop.
        status: what the member said of itself last.
    """

    def __init__(self, config: NodeConfig, parts: list[AttributesPart], conf: SyncObjConf) -> None:
        self._config = config
        self._caller = Caller(PATIENT_S if conf.commandsWaitLeader else IMPATIENT_S)
        self._parts = parts
        self._on_ready = conf.onReady
        self._begun = threading.Event()
        self._stopping = False
        self._token: trio.lowlevel.TrioToken | None = None
        self._thread = threading.Thread(target=self._run, name="quorate")
        self._node: Member | None = None
        self.failure: BaseException | None = None
        self.status: NodeStatus | None = None

    def start(self) -> None:
        """Start it; return when the member listens.

        Raises:
            Exception: what `open_node` raises.
        """
        self._thread.start()
        self._begun.wait()
        if self.failure is not None:
            raise self.failure

    def stop(self, *, wait: bool) -> None:
        """Stop the member in order."""
        self._stopping = True
        if wait and not self.is_current:
            self._thread.join()

    @property
    def is_alive(self) -> bool:
        """Whether it runs."""
        return self._thread.is_alive()

    @property
    def backlog(self) -> int:
        """How many calls wait to be sent, about."""
        return self._caller.backlog

    @property
    def is_current(self) -> bool:
        """Whether this is the thread itself."""
        return threading.current_thread() is self._thread

    def submit(self, waiting: Waiting) -> bool:
        """Have a call sent, after the earlier ones; return whether the member runs."""

        def submit() -> None:
            try:
                self._caller.submit(waiting)
            except ConfigurationError as error:
                waiting.done(NoLeaderError(str(error)))

        assert self._token is not None
        if self._stopping:
            return False
        try:
            self._token.run_sync_soon(submit)
        except trio.RunFinishedError:
            return False
        return True

    def snapshot(self) -> None:
        """Have all members take a snapshot, if they can now."""

        def begin() -> None:
            trio.lowlevel.spawn_system_task(self._snapshot)

        assert self._token is not None
        self._token.run_sync_soon(begin)

    async def _snapshot(self) -> None:
        assert self._node is not None
        try:
            await self._node.snapshot()
        except RequestError as error:
            self._say("no snapshot was taken: %(why)s", str(error))

    def _run(self) -> None:
        try:
            trio.run(self._main)
        except BaseException as error:
            self.failure = error
            if self._begun.is_set():
                raise  # the interpreter shows it, as for any thread
        finally:
            self._begun.set()

    async def _main(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        machine = ObjectsMachine(self._parts, self._caller)
        self._caller.local = machine
        async with open_node(self._config, machine) as node, trio.open_nursery() as nursery:
            self._node = node
            await nursery.start(self._caller.run, node)
            self.status = node.status()
            self._begun.set()
            await self._watch(node)
            nursery.cancel_scope.cancel()

    async def _watch(self, node: Member) -> None:
        # As PySyncObj does: a program that only returns from its main thread ends.
        while not self._stopping and threading.main_thread().is_alive():
            self.status = node.status()
            if self._on_ready is not None and _is_ready(self.status):
                on_ready, self._on_ready = self._on_ready, None
                self.guarded(on_ready)
            await trio.sleep(LOOK_S)

    def guarded(self, callback: Callable[..., object], *args: object) -> None:
        """Run a program's callback; it must not end the member."""
        try:
            callback(*args)
        except Exception as error:  # noqa: BLE001 - a program's own
            self._say("a callback has failed: %(why)s", f"{type(error).__name__}: {error}")

    def _say(self, words: str, why: str) -> None:
        log_event(_LOG, logging.ERROR, "callback_fails", words, why=why)


def _is_ready(status: NodeStatus) -> bool:
    return _leader_of(status) is not None and status.applied_position >= status.commit_position


def _leader_of(status: NodeStatus) -> int | None:
    return status.leader_id if status.state == State.CLOSED.name else None


class _Starting(type):
    """Starts the member when the constructor of the class has set all first values."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        made: Any = super().__call__(*args, **kwargs)
        made._quorate_start()  # noqa: SLF001 - our own
        return made


class SyncObj(Replicating, metaclass=_Starting):
    """An object that is the same on all nodes, as PySyncObj has it.

    Args:
        selfNode: this node, as "host:port".
        otherNodes: the other ones.
        conf: settings.
        consumers: further objects to replicate.
        ignored: `nodeClass`, `transport` and `transportClass` can't be had.

    Raises:
        ConfigurationError: an address, a setting or a first value can't be had.
        SyncObjException: a consumer is none.
        OSError: the address can't be bound.
    """

    def __init__(
        self,
        selfNode: object,
        otherNodes: Iterable[object],
        conf: SyncObjConf | None = None,
        consumers: Iterable[Any] | None = None,
        **ignored: object,
    ) -> None:
        if ignored:
            raise ConfigurationError(f"{', '.join(ignored)}: can't be had: leave it out")
        settings = conf or SyncObjConf()
        self._quorate_conf = settings
        self._quorate_config = node_config(selfNode, list(otherNodes), settings)
        self._quorate_consumers = _consumers(consumers or ())
        self._quorate_version = CodeVersion()
        self._quorate_thread: _MemberThread | None = None
        for consumer in self._quorate_all_consumers():
            consumer.__dict__["_syncObj"] = self
        self._quorate_begin()

    def _quorate_all_consumers(self) -> list[SyncObjConsumer]:
        return [self._quorate_version, *self._quorate_consumers]

    def _quorate_syncobj(self) -> SyncObj:
        return self

    def _quorate_parts(self) -> list[AttributesPart]:
        parts = [self._quorate_own]
        return parts + [each.__dict__["_quorate_part"] for each in self._quorate_all_consumers()]

    def _quorate_start(self) -> None:
        parts = self._quorate_parts()
        names = ["self", "version", *(f"consumer {number}" for number in range(len(parts) - 2))]
        for part, name in zip(parts, names, strict=True):
            part.object_name = name
        self._quorate_thread = _MemberThread(self._quorate_config, parts, self._quorate_conf)
        self._quorate_thread.start()

    @property
    def _quorate_running(self) -> _MemberThread:
        if self._quorate_thread is None:
            raise SyncObjException("NotReady", "the constructor has not returned yet")
        return self._quorate_thread

    # --- calls

    def call(
        self, part: AttributesPart, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Call a replicated method of a part, as :func:`replicated` describes."""
        callback: Callable[[Any, int], object] | None = kwargs.pop("callback", None)
        sync, timeout = kwargs.pop("sync", False), kwargs.pop("timeout", None)
        version, _ = part.body_of(name, self.getCodeVersion())
        call = wire.Call(part.object_name, name, version, encode((args, kwargs)))
        if callback is not None or not sync:
            self._quorate_send(call, callback or _ignore)
            return None
        if self._quorate_running.is_current:
            text = f"{name}: a callback can't wait for a result: leave sync=True out there"
            raise SyncObjException("Deadlock", text)
        future: Future[tuple[Any, int]] = Future()

        def note(result: Any, error: int) -> None:
            future.set_result((result, error))

        self._quorate_send(call, note)
        try:
            result, error = future.result(timeout)
        except FutureTimeoutError:
            text = f"{name}: no result within {timeout} s; it may or may not take effect"
            raise SyncObjException("Timeout", text) from None
        if error:
            raise SyncObjException(error, f"{name}: {result or _name_of(error)}")
        return result

    def _quorate_send(self, call: wire.Call, callback: Callable[[Any, int], object]) -> None:
        thread = self._quorate_running

        def done(outcome: wire.Outcome | RequestError) -> None:
            thread.guarded(callback, *_answer(outcome))

        if thread.backlog >= self._quorate_conf.commandsQueueSize:
            thread.guarded(callback, None, FAIL_REASON.QUEUE_FULL)
        elif not thread.submit(Waiting(call, done)):
            thread.guarded(callback, None, FAIL_REASON.MISSING_LEADER)

    # --- the code version

    def getCodeVersion(self) -> int:
        """Return the code version in force; 0 at first."""
        return int(self._quorate_version.version)

    def setCodeVersion(
        self, newVersion: int, callback: Callable[[Any, int], object] | None = None
    ) -> None:
        """Put a code version into force, on all nodes; each must run that code.

        Raises:
            SyncObjException: this node has no such version, or a later one is in force.
        """
        newest = max(part.newest for part in self._quorate_parts())
        if not self.getCodeVersion() <= newVersion <= newest:
            text = f"version {newVersion}: expected {self.getCodeVersion()} to {newest}"
            raise SyncObjException("wrongVer", text)
        self._quorate_version.enable(newVersion, callback=callback)

    # --- its state

    def waitReady(self) -> None:
        """Return once the node listens, which it does when its constructor has returned."""
        _ = self._quorate_running

    waitBinded = waitReady

    def isReady(self) -> bool:
        """Return whether there is a leader, and all that is known to be committed is applied."""
        status = self._quorate_running.status
        return status is not None and _is_ready(status)

    _isReady = isReady

    def _getLeader(self) -> Node | None:
        status = self._quorate_running.status
        leader = None if status is None else _leader_of(status)
        return None if leader is None else self._quorate_nodes()[leader]

    def _isLeader(self) -> bool:
        return self._getLeader() == self.selfNode

    def _quorate_nodes(self) -> dict[int, Node]:
        members = self._quorate_config.members
        return {each.member_id: Node(f"{each.host}:{each.member_port}") for each in members}

    @property
    def selfNode(self) -> Node:
        """This node."""
        return self._quorate_nodes()[self._quorate_config.member_id]

    @property
    def otherNodes(self) -> set[Node]:
        """The other nodes."""
        return set(self._quorate_nodes().values()) - {self.selfNode}

    @property
    def conf(self) -> SyncObjConf:
        """The settings."""
        return self._quorate_conf

    def isNodeConnected(self, node: Node) -> bool:
        """Return whether there is a link to a node."""
        status, nodes = self._quorate_running.status, self._quorate_nodes()
        peers = status.peers if status else ()
        return any(peer.connected and nodes.get(peer.member_id) == node for peer in peers)

    @property
    def hasQuorum(self) -> bool:
        """Whether this node has links to enough others for a majority."""
        connected = 1 + sum(map(self.isNodeConnected, self.otherNodes))
        return connected > len(self._quorate_nodes()) // 2

    def getStatus(self) -> dict[str, Any]:
        """Return what the node says of itself, by PySyncObj's names as far as they fit."""
        status = self._quorate_running.status
        assert status is not None
        return {
            "self": self.selfNode,
            "leader": self._getLeader(),
            "has_quorum": self.hasQuorum,
            "partner_nodes_count": len(self.otherNodes),
            "raft_term": status.term,
            "commit_idx": status.commit_position,
            "last_applied": status.applied_position,
            "log_len": status.append_position - status.start_position,
            "uptime": int(status.uptime_s),
            "self_code_version": max(part.newest for part in self._quorate_parts()),
            "enabled_code_version": self.getCodeVersion(),
        }

    def printStatus(self) -> None:
        """Print what the node says of itself."""
        for name, value in self.getStatus().items():
            print(f"{name}: {value}")

    _printStatus = printStatus

    @property
    def raftCurrentTerm(self) -> int:
        """The leadership term."""
        return int(self.getStatus()["raft_term"])

    @property
    def raftCommitIndex(self) -> int:
        """The position of the log up to which all is known to be committed."""
        return int(self.getStatus()["commit_idx"])

    @property
    def raftLastApplied(self) -> int:
        """The position of the log up to which all is applied."""
        return int(self.getStatus()["last_applied"])

    def _getTerm(self) -> int:
        return self.raftCurrentTerm

    def _getLastCommitIndex(self) -> int:
        return self.raftCommitIndex

    def _getRaftLogSize(self) -> int:
        return int(self.getStatus()["log_len"])

    # --- what an operator does

    def forceLogCompaction(self) -> None:
        """Have all nodes take a snapshot."""
        self._quorate_running.snapshot()

    _forceLogCompaction = forceLogCompaction

    def addNodeToCluster(self, node: object, callback: object = None) -> None:
        """Refuse.

        Raises:
            SyncObjException: always; it says what to use.
        """
        del callback
        raise SyncObjException("Unsupported", f"{node}: use quorate member: docs/membership.md")

    removeNodeFromCluster = addNodeToCluster

    def tick_thread_alive(self) -> bool:
        """Return whether the member's thread runs."""
        return self._quorate_running.is_alive

    def destroy(self) -> None:
        """Stop the node in order, some time."""
        self._quorate_running.stop(wait=False)

    _destroy = destroy

    def destroy_synchronous(self) -> None:
        """Stop the node in order, and wait for it."""
        self._quorate_running.stop(wait=True)


def _consumers(given: Iterable[Any]) -> list[SyncObjConsumer]:
    found: list[SyncObjConsumer] = []
    for each in given:
        inner: object = each
        if not isinstance(each, SyncObjConsumer) and hasattr(each, "_consumer"):
            inner = each._consumer()  # noqa: SLF001 - PySyncObj's own way
        if not isinstance(inner, SyncObjConsumer):
            raise SyncObjException("Consumers", f"{inner!r:.60}: expected a SyncObjConsumer")
        found.append(inner)
    return found


def _ignore(_result: Any, _error: int) -> None:
    """Take the answer of a call that nobody waits for."""


def _answer(outcome: wire.Outcome | RequestError) -> tuple[Any, int]:
    """Return result and reason, as callbacks get them; the result of an error is its text."""
    match outcome:
        case wire.Result(data):
            return decode_untrusted(data), FAIL_REASON.SUCCESS
        case wire.Failure(kind, text):
            return f"{kind}: {text}", FAIL_REASON.EXCEPTION
        case NoLeaderError():
            return None, FAIL_REASON.MISSING_LEADER
        case RefusedError() | OversizedRequestError():
            return f"{outcome}", FAIL_REASON.REQUEST_DENIED
        case _:
            return None, FAIL_REASON.LEADER_CHANGED


def _name_of(error: int) -> str:
    names = {code: name for name, code in vars(FAIL_REASON).items() if isinstance(code, int)}
    return names.get(error, f"error {error}")
