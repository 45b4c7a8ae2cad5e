"""Consensus messages and their wire form, links between members, and streams.

This room knows nothing of elections or of the store: a record batch is opaque bytes here. Read
`messages` for what members say to each other, `wire` for how that looks as bytes, `network` for
the seam under which TCP or a network in memory lies, `links` for one member's links to its peers,
and `streams` for catch-up and replay.
"""

from .codec import MAX_BATCH_BYTES
from .fields import (
    MAX_STRING_BYTES,
    MAX_TERM_SPANS,
    NULL_VALUE,
    PROTOCOL_VERSION,
    AppendFlags,
    HelloStatus,
    StreamPurpose,
    VoteReason,
)
from .limits import LinkLimits
from .link_in import LinkHandler
from .links import Links
from .memory import MemoryHost, MemoryNetwork
from .messages import (
    AppendPosition,
    CanvassPosition,
    CatchupPosition,
    CommitPosition,
    ForwardReply,
    ForwardRequest,
    Hello,
    HelloReply,
    LeadershipCession,
    LogBatch,
    LogJoined,
    LogSubscribe,
    Message,
    NewLeadershipTerm,
    ReplayRequest,
    RequestVote,
    Scout,
    ScoutReply,
    StaleLeader,
    StopCatchup,
    TermSpan,
    TimeoutNow,
    Vote,
)
from .network import (
    Address,
    Connection,
    Network,
    TcpNetwork,
    parse_address,
    parse_address_untrusted,
)
from .streams import WEATHER, FrameStream, open_stream
from .wire import MAX_FRAME_BYTES, FrameDecoder, decode_untrusted, encode

__all__ = [
    "MAX_BATCH_BYTES",
    "MAX_FRAME_BYTES",
    "MAX_STRING_BYTES",
    "MAX_TERM_SPANS",
    "NULL_VALUE",
    "PROTOCOL_VERSION",
    "WEATHER",
    "Address",
    "AppendFlags",
    "AppendPosition",
    "CanvassPosition",
    "CatchupPosition",
    "CommitPosition",
    "Connection",
    "ForwardReply",
    "ForwardRequest",
    "FrameDecoder",
    "FrameStream",
    "Hello",
    "HelloReply",
    "HelloStatus",
    "LeadershipCession",
    "LinkHandler",
    "LinkLimits",
    "Links",
    "LogBatch",
    "LogJoined",
    "LogSubscribe",
    "MemoryHost",
    "MemoryNetwork",
    "Message",
    "Network",
    "NewLeadershipTerm",
    "ReplayRequest",
    "RequestVote",
    "Scout",
    "ScoutReply",
    "StaleLeader",
    "StopCatchup",
    "StreamPurpose",
    "TcpNetwork",
    "TermSpan",
    "TimeoutNow",
    "Vote",
    "VoteReason",
    "decode_untrusted",
    "encode",
    "open_stream",
    "parse_address",
    "parse_address_untrusted",
]
