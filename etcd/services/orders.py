"""What an operator asks of the leader by this API, where `QUORATE.CONTROL` has a word for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from ...errors import RefusedError, RequestError
from ...node.requests.request import CONTROL
from ...node.requests.task_calls import Calls
from ..backend.backend import LEADER_WAIT_S
from ..backend.member_errors import error_of
from ..codes import Code, EtcdError

if TYPE_CHECKING:
    from ...node.requests.request import Request
    from .call import Call

__all__ = ["give_order", "own_id_of"]


async def give_order(call: Call, words: str) -> None:
    """Have the leader do something, and wait until it is done.

    Raises:
        EtcdError: the leader refuses, in its words, or there is none.
    """

    def submit(request: Request) -> None:
        request.deadline = trio.current_time() + LEADER_WAIT_S
        call.backend.gateway.submit(request)

    try:
        await Calls(submit).ask(CONTROL, words.encode(), 0, sign=call.caller.sign)
    except RefusedError as error:
        raise EtcdError(Code.FAILED_PRECONDITION, f"etcdserver: {error}") from error
    except RequestError as error:
        raise error_of(error, CONTROL) from error


def own_id_of(call: Call, member: int) -> int | None:
    """Return our id of a member, by the number that clients have; None if there is none."""
    members = call.backend.gateway.topology.members
    ids = (each.member_id for each in members)
    return next((each for each in ids if call.backend.member_id_of(each) == member), None)
