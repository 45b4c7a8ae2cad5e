"""What an operator asks of the leader by this API, where `QUORATE.CONTROL` has a word for it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from ...errors import RefusedError, RequestError
from ...node.requests.request import CONTROL
from ...node.requests.task_calls import Calls
from ..backend.member_errors import error_of
from ..codes import Code, EtcdError

if TYPE_CHECKING:
    from ...node.requests.gateway import Gateway
    from ..backend.caller import Caller
    from .call import Call

__all__ = ["give_order", "own_id_of"]


async def give_order(call: Call, words: str) -> None:
    """Have the leader do something, and wait until it is done.

    Raises:
        EtcdError: the leader refuses, in its words, or there is none.
    """
    await call.send(partial(_order, call.backend.gateway, words))


async def _order(gateway: Gateway, words: str, caller: Caller) -> None:
    try:
        await Calls(gateway.submit).ask(CONTROL, words.encode(), 0, sign=caller.sign)
    except RefusedError as error:
        raise EtcdError(Code.FAILED_PRECONDITION, f"etcdserver: {error}") from error
    except RequestError as error:
        raise error_of(error, CONTROL) from error


def own_id_of(call: Call, member: int) -> int | None:
    """Return our id of a member, by the number that clients have; None if there is none."""
    members = call.backend.gateway.topology.members
    ids = (each.member_id for each in members)
    return next((each for each in ids if call.backend.member_id_of(each) == member), None)
