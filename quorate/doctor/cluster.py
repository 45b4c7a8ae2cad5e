"""The cluster as its members report it, and the difference of their clocks from ours."""

import time
from collections.abc import Sequence

import trio

from ..client.resp import RespError, open_resp
from ..client.secure import port_of
from ..local.survey import ANSWER_SECONDS, LOG_IN, Answer, Survey, at, survey, with_list
from ..node.requests.status import MemberAddress
from .finding import Finding, ok, problem, unknown, warning
from .peers import judge_skew

__all__ = ["check_cluster", "judge_problems", "judge_silence"]


async def check_cluster(
    addresses: Sequence[MemberAddress], *, asked: bool
) -> tuple[list[Finding], Survey]:
    """Ask the members for their status, and for the time.

    Args:
        addresses: client ports of members, in order of preference.
        asked: an operator has named them, so one of them should answer.

    Returns:
        What was found, and all answers.
    """
    seen = await with_list(await survey(addresses))
    if not seen.said:
        return [judge_silence(seen, asked=asked)], seen
    found = judge_problems(seen)
    remedy = "quorate status, then docs/operations.md"
    found += [warning("cluster", words, "no such warning", remedy) for words in seen.warnings]
    if not found and seen.leader is not None:
        leader = seen.leader
        words = f'"{leader.cluster}": member {leader.member_id} leads term {leader.term}'
        found = [ok("cluster", f"{words}, {seen.spare} more can be lost", term=leader.term)]
    for answer in seen.answers:
        if answer.status is not None and (skew := await _skew(answer)) is not None:
            found.append(skew)
    return found, seen


def judge_silence(seen: Survey, *, asked: bool) -> Finding:
    """Judge that no member has returned its status.

    Args:
        seen: why not.
        asked: see `check_cluster`.
    """
    said = "; ".join(f"{at(each.address)}: {each.error}" for each in seen.answers)
    if any(each.refused for each in seen.answers):
        words = f"members answer, but refuse their status ({said})"
        return unknown("cluster", words, "a user that may ask", LOG_IN)
    words = f"no member answers ({said})"
    if asked:
        return unknown("cluster", words, "an answer of a member that runs", "quorate status")
    return warning("cluster", words, "members that run, unless this is the first start")


def judge_problems(seen: Survey) -> list[Finding]:
    """Return a finding for each problem of the cluster; one for all if too few voters answer."""
    problems = seen.problems
    if seen.spare < 0 and not seen.is_unfounded:
        problems = [" ".join(problems)]  # the members that are gone are why none leads
    remedy = "quorate status, then the table in docs/operations.md"
    expected = "members that agree on a leader"
    return [problem("cluster", words.removesuffix("."), expected, remedy) for words in problems]


async def _skew(answer: Answer) -> Finding | None:
    """Compare a member's time with ours; None if it does not say."""
    assert answer.status is not None
    where, name = answer.address, f"member {answer.status.member_id} at {at(answer.address)}"
    with trio.move_on_after(ANSWER_SECONDS):
        try:
            async with open_resp(where.host, port_of(where)) as client:
                began = time.time()
                reply = await client.call("TIME")
                ended = time.time()
        except (OSError, RespError):
            return None
        match reply:
            case [bytes(seconds), bytes(micros)]:
                theirs = int(seconds) + int(micros) / 1e6
            case _:
                return None
        doubt = (ended - began) / 2
        return judge_skew(name, 1000 * (theirs - began - doubt), 1000 * doubt)
    return None
