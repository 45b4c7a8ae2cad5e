"""`quorate is-leader`: an exit status for scripts and load balancers.

As that of Aeron's ClusterTool, but for the one that says that the member does not answer.
"""

import json
import sys

from ..local.survey import SETTLED, Verdict, ask
from .status import Address, AsJson, parse_address

__all__ = ["is_leader"]


async def is_leader(*, connect: Address = "127.0.0.1:7000", as_json: AsJson = False) -> int:
    """Say whether just this member leads, and its election is over.

    Exit status: 0 - it leads; 1 - it does not; 2 - it does not answer.

    Parameters
    ----------
    connect
        Where the member listens for clients, HOST:PORT. 127.0.0.1:7000 if left out.
    as_json
        For programs.
    """
    answer = await ask(parse_address(connect))
    said = answer.status
    if said is None:
        print(f"{connect}: {answer.error}", file=sys.stderr)
        return int(Verdict.UNREACHABLE)
    leads = said.role == "leader" and said.state == SETTLED
    if as_json:
        found = {"member_id": said.member_id, "leads": leads, "leader_id": said.leader_id}
        print(json.dumps(found | {"role": said.role, "state": said.state, "term": said.term}))
    else:
        print(f"member {said.member_id} is {said.role}, {said.state}, term {said.term}")
    return int(not leads)
