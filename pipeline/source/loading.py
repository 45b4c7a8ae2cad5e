"""Writes into a running cluster exactly once, however often Spark repeats a task.

A task writes its rows in *chunks*. A chunk is one transaction of one session. It holds the rows'
commands and the *progress* of the task: a key of the store with the number of chunks so far and a
digest of all their bytes. A transaction is atomic, so commands and progress always agree:

- A chunk without an answer is sent again with the same session and sequence, through any member.
  The state machine then returns the first reply.
- Another attempt of the task reads the progress, skips as many chunks, and compares the digest. So
  different rows, or rows in another order, cause an error instead of a mixture.
- Two attempts at the same time (speculation, or a task wrongly declared dead) share session and
  sequences, so only one of them applies a chunk.

A session that has timed out is replaced by one of the next *generation*. The key that names it is
set once, by the first attempt that gets there. The progress is read after the old session is known
to be gone. A dead session can apply nothing more, so that progress is final.
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
from ...keyvalue.retry import has_no_answer
from .members import Refused

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from .members import Members, Reply

__all__ = ["Command", "Load", "Progress", "chunks_of"]

Command = tuple[bytes, ...]

CHUNK_COMMANDS: Final = 400
"""Larger: the reply of a chunk no longer fits what a session stores of one reply. Smaller: more
transactions for the same rows."""

CHUNK_BYTES: Final = 1 << 20


@attrs.frozen
class Progress:
    """How far a task has come.

    Args:
        batch: number of the stream's micro-batch, 0 without a stream.
        chunks: number of chunks of this batch that are done.
        sequence: sequence of the last chunk, counted over all batches.
        generation: generation of the session.
        rows: number of rows of this batch that are done.
        digest: digest of the bytes of these chunks.
    """

    batch: int = -1
    chunks: int = 0
    sequence: int = 0
    generation: int = 0
    rows: int = 0
    digest: str = ""


def chunks_of(commands: Iterable[Command]) -> Iterator[list[Command]]:
    """Gather commands into chunks, bounded in number and in bytes."""
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
        members: members of the cluster.
        name: the key of the progress; only attempts of this task use it.
        keep_ms: expiry of the task's keys after the last chunk, in ms; None for no expiry.
    """

    def __init__(self, members: Members, name: str, *, keep_ms: int | None = None) -> None:
        self._members = members
        self._name = name
        self._keep = () if keep_ms is None else ("PX", keep_ms)

    def write(self, batch: int, commands: Iterable[Command]) -> Progress:
        """Apply the commands of a batch, each once; return the progress at the end.

        Args:
            batch: number of the batch, never below the last one.
            commands: the commands; each attempt must pass the same ones in the same order.

        Raises:
            StorageError: another attempt had other commands, or is ahead.
            KeyValueError: a command failed; the other commands of its chunk were executed.
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
            # the last chunk of an earlier attempt is sent again, to learn its result
            found, session = self._send(found, session, chunk, again=done.chunks == before)
        if done.chunks < before:
            raise self._other()
        return found

    def progress(self) -> Progress:
        """Return the progress of this task."""
        (reply,) = self._surely([("GET", self._name)])
        return Progress() if reply is None else _progress_untrusted(reply)

    def forget(self) -> None:
        """Close the session and remove the keys; afterwards the task can be written again."""
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
        """Apply a chunk; return the progress and the session afterwards."""
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
                return wanted, session  # the chunk is done; its commands' results are lost
            if self.progress() == wanted:  # the chunk was applied before the session ended
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
        """Return the session of a generation; open one if there is none."""
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
    return isinstance(reply, Refused) and has_no_answer(reply.code)


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
