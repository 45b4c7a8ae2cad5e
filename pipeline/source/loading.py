"""Writes into a running cluster, done once however often a task is repeated.

A task writes its rows in *chunks*. A chunk is one transaction of one session: the rows' commands,
and the *progress* of the task, a key of the store that says how many chunks there have been and
what a digest over all their bytes is. So both stand or fall together:

- A chunk whose answer was lost is sent again with the same session and sequence, through any
  member, and the state machine answers with its first reply.
- Another attempt of the task finds the progress, passes over as many chunks, and compares the
  digest: rows in another order, or other rows, are an error and not a mixture.
- Two attempts at the same time (speculation, a task that was taken for dead) share session and
  sequences, so each chunk is done by one of them.

A session that has timed out is replaced by one of the next *generation*; the key that names it is
set once, by whoever comes first. The progress is read after the old session is known to be gone,
and with a dead session nothing more can be done, so what the progress says is final.
"""

from __future__ import annotations

import json
from hashlib import blake2b
from typing import TYPE_CHECKING, Final, cast

import attrs
import cattrs

from ...errors import KeyValueError, StorageError
from ...keyvalue.limits import MAX_SESSION_MS
from ...keyvalue.protocol.resp import encode_command
from .members import Refused

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from .members import Members, Reply

__all__ = ["Command", "Load", "Progress", "chunks_of"]

Command = tuple[bytes, ...]

CHUNK_COMMANDS: Final = 400
"""So many replies, and the progress, stay below what a session keeps of one reply."""

CHUNK_BYTES: Final = 1 << 20


@attrs.frozen
class Progress:
    """How far a task has come.

    Args:
        batch: micro-batch of a stream, 0 if it is none.
        chunks: of this batch, that are done.
        sequence: of the last one, counted over all batches.
        generation: of the session.
        rows: of this batch, that are done.
        digest: over the bytes of these chunks.
    """

    batch: int = -1
    chunks: int = 0
    sequence: int = 0
    generation: int = 0
    rows: int = 0
    digest: str = ""


def chunks_of(commands: Iterable[Command]) -> Iterator[list[Command]]:
    """Gather commands as long as they are few and short."""
    chunk: list[Command] = []
    size = 0
    for command in commands:
        length = sum(map(len, command))
        if chunk and (len(chunk) == CHUNK_COMMANDS or size + length > CHUNK_BYTES):
            yield chunk
            chunk, size = [], 0
        chunk.append(command)
        size += length
    if chunk:
        yield chunk


class Load:
    """The writes of one task.

    Args:
        members: of the cluster.
        name: the key of its progress; all attempts of the task, and nobody else, use it.
        keep_ms: how long its keys are kept after the last chunk, in ms; None for ever.
    """

    def __init__(self, members: Members, name: str, *, keep_ms: int | None = None) -> None:
        self._members = members
        self._name = name
        self._keep = () if keep_ms is None else ("PX", keep_ms)

    def write(self, batch: int, commands: Iterable[Command]) -> Progress:
        """Have the commands of a batch done, each once; return what there is in the end.

        Args:
            batch: none below the last one.
            commands: in every attempt the same ones in the same order.

        Raises:
            StorageError: another attempt had other commands, or is ahead.
            KeyValueError: a command was answered with an error; those of its chunk were tried.
            TransportError: no member answers.
        """
        found = self.progress()
        if found.batch > batch:
            raise StorageError(f"{self._name}: batch {batch} comes after {found.batch}")
        before = found.chunks if found.batch == batch else 0
        session = self._session(found.generation)
        done = attrs.evolve(found, batch=batch, chunks=0, rows=0, digest="")
        for chunk in chunks_of(commands):
            done = _with(done, chunk)
            if done.chunks > before:
                following, generation = found.sequence + 1, found.generation
                found = attrs.evolve(done, sequence=following, generation=generation)
            elif done.chunks < before:
                continue
            elif (done.rows, done.digest) != (found.rows, found.digest):
                raise self._other()
            # what an earlier attempt has had done last is sent again, to see if it went well
            found, session = self._send(found, session, chunk, again=done.chunks == before)
        if done.chunks < before:
            raise self._other()
        return found

    def progress(self) -> Progress:
        """Say how far it has come."""
        (reply,) = self._surely([("GET", self._name)])
        return Progress() if reply is None else _progress_untrusted(reply)

    def forget(self) -> None:
        """Close the session and remove the keys; afterwards it can be written once more."""
        found = self.progress()
        keys = [self._session_key(at) for at in range(found.generation + 1)]
        replies = self._surely([("GET", key) for key in keys])
        held = [one for one in replies if isinstance(one, bytes)]
        self._surely([("DEL", self._name, *keys)])
        for session in held:
            self._surely([("QUORATE.SESSION", "CLOSE", session)])

    def _send(
        self, wanted: Progress, session: int, chunk: list[Command], *, again: bool
    ) -> tuple[Progress, int]:
        """Have a chunk done; return the progress and the session then."""
        while True:
            text = json.dumps(attrs.asdict(wanted)).encode()
            (*_, reply) = self._surely(
                [
                    ("MULTI",),
                    *chunk,
                    ("SET", self._name, text, *self._keep),
                    ("GET", self._name),
                    ("QUORATE.ONCE", session, wanted.sequence, "EXEC"),
                ]
            )
            if not isinstance(reply, Refused):
                self._check(reply, text)
                return wanted, session
            if reply.code != "NOSESSION":
                raise StorageError(f"{self._name}: chunk {wanted.chunks}: {reply}")
            if again:
                return wanted, session  # that it was done is known, how its commands went is not
            if self.progress() == wanted:  # it was done before the session ended
                return wanted, session
            wanted = attrs.evolve(wanted, generation=wanted.generation + 1)
            session = self._session(wanted.generation)

    def _check(self, reply: Reply, text: bytes) -> None:
        if not isinstance(reply, list) or not reply or reply[-1] != text:
            raise self._other()
        for one in reply:
            if isinstance(one, Refused):
                raise KeyValueError(f"{self._name}: {one}")

    def _other(self) -> StorageError:
        return StorageError(
            f"{self._name}: an earlier attempt had other rows, or the same in another order; make "
            "the query deterministic, with sortWithinPartitions as its last step"
        )

    def _session_key(self, generation: int) -> str:
        return f"{self._name}:session:{generation}"

    def _session(self, generation: int) -> int:
        """Return the session of a generation; open it if there is none."""
        key = self._session_key(generation)
        (reply,) = self._surely([("GET", key)])
        if reply is None:
            (opened,) = self._surely([("QUORATE.SESSION", "OPEN", MAX_SESSION_MS)])
            if not isinstance(opened, int):
                raise StorageError(f"{self._name}: {opened!r}")
            self._surely([("SET", key, str(opened), "NX", *self._keep)])
            (reply,) = self._surely([("GET", key)])
            if reply != b"%d" % opened:  # another attempt was first
                self._surely([("QUORATE.SESSION", "CLOSE", opened)])
        if not isinstance(reply, bytes) or not reply.isdigit():
            raise StorageError(f"{key}: expected a session, found {reply!r:.80}")
        return int(reply)

    def _surely(self, commands: Sequence[Sequence[bytes | str | int]]) -> list[Reply]:
        return self._members.surely(commands, again=_unanswered)


def _unanswered(reply: Reply) -> bool:
    return isinstance(reply, Refused) and reply.code in {"UNKNOWN", "CLUSTERDOWN"}


def _with(done: Progress, chunk: list[Command]) -> Progress:
    digest = blake2b(done.digest.encode(), digest_size=16)
    for command in chunk:
        digest.update(encode_command(command))
    return attrs.evolve(
        done,
        chunks=done.chunks + 1,
        rows=done.rows + len(chunk),
        digest=digest.hexdigest(),
    )


def _progress_untrusted(reply: Reply) -> Progress:
    try:
        return cattrs.structure(cast("object", json.loads(cast("bytes", reply))), Progress)
    except (ValueError, TypeError, RecursionError, cattrs.BaseValidationError) as error:
        raise StorageError(f"expected the progress of a load, found {reply!r:.80}") from error
