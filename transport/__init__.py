"""Consensus messages and their wire form, links between members, and streams.

This room moves messages. It knows no elections and no store: a record batch is opaque bytes here.
It judges form only; whether a term or a position makes sense, the receiver decides.

Read `messages` for what members say, `wire` for how that looks as bytes, and `links` for how it
gets from one member to another. Which members those are changes at runtime: `peer_links`. Below
them, `network` is the seam: TCP there, a network in memory in `testing`. `streams` carries
catch-up, replay, snapshots and backups.
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
    is_term,
)
from .incoming import LinkHandler
from .limits import LinkLimits
from .links import Links
from .messages import (
    AdmissionRequest,
    AppendPosition,
    BackupQuery,
    BackupResponse,
    CanvassPosition,
    CatchupPosition,
    CommitPosition,
    ForwardReply,
    ForwardRequest,
    Founding,
    FoundingStore,
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
    SnapshotOffer,
    SnapshotPart,
    SnapshotRequest,
    StaleLeader,
    StopCatchup,
    TerminationAck,
    TerminationPosition,
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
from .peer_links import PeerAddresses
from .streams import CONNECTION_ERRORS, FrameStream, open_stream
from .wire import MAX_FRAME_BYTES, FrameDecoder, decode_untrusted, encode

__all__ = [
    "CONNECTION_ERRORS",
    "MAX_BATCH_BYTES",
    "MAX_FRAME_BYTES",
    "MAX_STRING_BYTES",
    "MAX_TERM_SPANS",
    "NULL_VALUE",
    "PROTOCOL_VERSION",
    "Address",
    "AdmissionRequest",
    "AppendFlags",
    "AppendPosition",
    "BackupQuery",
    "BackupResponse",
    "CanvassPosition",
    "CatchupPosition",
    "CommitPosition",
    "Connection",
    "ForwardReply",
    "ForwardRequest",
    "Founding",
    "FoundingStore",
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
    "Message",
    "Network",
    "NewLeadershipTerm",
    "PeerAddresses",
    "ReplayRequest",
    "RequestVote",
    "Scout",
    "ScoutReply",
    "SnapshotOffer",
    "SnapshotPart",
    "SnapshotRequest",
    "StaleLeader",
    "StopCatchup",
    "StreamPurpose",
    "TcpNetwork",
    "TermSpan",
    "TerminationAck",
    "TerminationPosition",
    "TimeoutNow",
    "Vote",
    "VoteReason",
    "decode_untrusted",
    "encode",
    "is_term",
    "open_stream",
    "parse_address",
    "parse_address_untrusted",
]
