"""Waiting for the store: until it answers, and until others have given up a key."""

from __future__ import annotations

import math
from contextlib import suppress
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, Self, TypeVar

import anyio

from ..errors import NoLeaderError, RequestError, UnknownOutcomeError, UnsupportedError
from ..keyvalue.retry import LONGEST_PAUSE_S, Retry, check_seconds
from ..keyvalue.state.changes import Change, ChangeKind
from .lease import Holder, holder_of_untrusted

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence

    from ..keyvalue.programs.client import KeyValue
    from ..keyvalue.programs.watch import Watch

__all__ = [
    "NotNowError",
    "Owned",
    "OwnerWatch",
    "close_watch",
    "in_time",
    "owned",
    "patiently",
]

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

MAX_WAIT_S: Final = 1e9


class NotNowError(Exception):
    """What was wanted is taken, and the caller does not wait."""


class Answers:
    """What the store has answered to a wait.

    Attributes:
        any: whether it has answered at all.
        trouble: why the latest request had no answer; None if it had one.
    """

    def __init__(self) -> None:
        self.any = False
        self.trouble: RequestError | None = None


_ANSWERS: ContextVar[Answers | None] = ContextVar("answers", default=None)
"""Those of the wait that this task is in: `in_time` reports what `patiently` has met."""


class Owned(NamedTuple):
    """A leased key that belongs to somebody.

    Args:
        key: the key.
        holder: its owner.
    """

    key: bytes
    holder: Holder


class Waiting(Protocol[T_co]):
    """Something that waits."""

    def __call__(self, *, once: bool) -> Coroutine[object, object, T_co]:
        """Wait; with `once`, raise `NotNowError` instead."""
        ...


async def patiently(call: Callable[[], Awaitable[T]], *, once: bool = False) -> T:
    """Call until there is an answer. The call must be one that may be done twice.

    Args:
        call: asks the store.
        once: call it once; its errors are raised.
    """
    retry = Retry(anyio.current_time, math.inf)
    answers = _ANSWERS.get() or Answers()
    while True:
        try:
            found = await call()
        except (NoLeaderError, UnknownOutcomeError) as error:
            if once:
                raise
            answers.trouble = error
            pause = retry.pause_s()
        else:
            answers.any, answers.trouble = True, None
            return found
        await anyio.sleep(pause or LONGEST_PAUSE_S)


async def in_time(
    wait_s: float | None,
    wait: Waiting[T],
    title: str,
    whom: Callable[[], str],
    state: str = "was not free",
) -> T:
    """Wait, within a time.

    Args:
        wait_s: seconds; None for any time, 0 to look once.
        wait: is cancelled when the time is over.
        title: of what is wanted, for the error message.
        whom: returns who has it, for the same.
        state: what it was for the whole time, for the same.

    Raises:
        TimeoutError: the time is over.
        ConfigurationError: `wait_s` is no number of seconds.
    """
    if wait_s is not None:
        check_seconds("wait_s", wait_s, 0, MAX_WAIT_S)
    # One look takes as long as the store takes to answer.
    answers = Answers()
    before = _ANSWERS.set(answers)
    try:
        with suppress(NotNowError), anyio.move_on_after(wait_s or math.inf):
            return await wait(once=wait_s == 0)
    finally:
        _ANSWERS.reset(before)
    within = f" within {wait_s:g} s" if wait_s else ""
    trouble = f": {answers.trouble}" if answers.trouble else ""
    if wait_s and not answers.any:
        raise TimeoutError(f"{title}: the cluster did not answer{within}{trouble}")
    last = f"; the cluster has not answered last{trouble}" if trouble else ""
    raise TimeoutError(f"{title} {state}{within}{whom()}{last}")


async def owned(kv: KeyValue, keys: Sequence[bytes]) -> list[Owned]:
    """Return which of the keys belong to somebody, and to whom."""
    return [
        Owned(key, holder_of_untrusted(record.value, record.revision))
        for key, record in zip(keys, await kv.records(keys), strict=True)
        if record is not None
    ]


class OwnerWatch:
    """A watch of leased keys, for the length of a wait.

    It is kept from look to look, since a client dials a member for each new one.

    Args:
        kv: the store.
    """

    def __init__(self, kv: KeyValue) -> None:
        self._kv = kv
        self._watch: Watch | None = None
        self._prefix = b""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._end()

    async def until_changed(
        self,
        seen: Mapping[bytes, Holder | None],
        prefix: bytes,
        needed: int = 1,
        *,
        poll_s: float,
    ) -> bool:
        """Wait until some keys have other owners than those that were seen, or none.

        It may return early, and so nobody waits for ever, whatever happens to a watch.

        Args:
            seen: the keys and their owners, as read just now; None for a key without one.
            prefix: of all these keys.
            needed: how many of them must have changed.
            poll_s: it waits at most that long.

        Returns:
            Whether so many have changed. In any case, read the keys again.
        """
        with anyio.move_on_after(poll_s):
            try:
                await self._wait(dict(seen), prefix, needed)
            except (RequestError, UnsupportedError):
                # The watch is lost, or this store has none.
                await self._end()
                await anyio.sleep(LONGEST_PAUSE_S)
            else:
                return True
        return False

    async def _wait(self, left: dict[bytes, Holder | None], prefix: bytes, needed: int) -> None:
        """Wait until so many keys of those that are left have changed."""
        enough = len(left) - needed
        watch, is_new = await self._begun(prefix)
        if is_new:  # what has changed before it began is found by reading
            now = {each.key: each.holder for each in await owned(self._kv, list(left))}
            left = {key: old for key, old in left.items() if _same(now.get(key), old)}
        while len(left) > enough:
            change = await anext(watch)
            for key in [change.key] if change.key else list(left):
                if key in left and not _same(_holder(change), left[key]):
                    del left[key]

    async def _begun(self, prefix: bytes) -> tuple[Watch, bool]:
        """Return a watch of a prefix, and whether it is a new one."""
        if self._watch is not None and self._prefix == prefix:
            return self._watch, False
        await self._end()
        watch = self._kv.watch(prefix)
        try:
            await watch.__aenter__()
        except BaseException:
            await close_watch(watch)
            raise
        self._watch, self._prefix = watch, prefix
        return watch, True

    async def _end(self) -> None:
        watch, self._watch = self._watch, None
        if watch is not None:
            await close_watch(watch)


async def close_watch(watch: Watch) -> None:
    """Close a watch, even if this task is cancelled."""
    with anyio.CancelScope(shield=True):
        await watch.aclose()


def _same(one: Holder | None, other: Holder | None) -> bool:
    return (one and one.number) == (other and other.number)


def _holder(change: Change) -> Holder | None:
    """Return the owner of a key after a change; None for nobody."""
    if change.kind is not ChangeKind.SET:
        return None
    assert change.value is not None
    return holder_of_untrusted(change.value, change.position)
