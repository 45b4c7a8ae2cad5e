"""The requests in the body of a call whose requests are a stream: JSON values in a row."""

from __future__ import annotations

import codecs
from typing import TYPE_CHECKING, Final

from ..codes import Code, EtcdError
from .json_messages import fill_untrusted
from .json_values import next_value_untrusted

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from .talk import Talk

__all__ = ["REQUEST_BYTES", "Requests"]

REQUEST_BYTES: Final = 256 << 10
"""Longest request of a stream. Smaller: a watch of a long range does not fit. Larger: clients make
us buffer and parse more."""


class Requests:
    """Reads requests from the body of a call.

    Args:
        talk: the connection.
        kind: class of the requests.
    """

    def __init__(self, talk: Talk, kind: type[Message]) -> None:
        self._talk = talk
        self._kind = kind
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._text = ""
        self._ended = False

    async def next_untrusted(self) -> Message | None:
        """Return the next request; None at the end of the body.

        Raises:
            EtcdError: it is none, or is too long.
            trio.BrokenResourceError: the client is gone.
        """
        while True:
            try:
                found = next_value_untrusted(self._text)
            except EtcdError as error:
                # Perhaps only the rest of it is missing.
                if self._ended:
                    raise EtcdError(Code.UNKNOWN, error.text) from None
            else:
                if found is not None:
                    value, end = found
                    self._text = self._text[end:]
                    return self._made(value)
                if self._ended:
                    return None
            await self._read_more()

    def _made(self, value: object) -> Message:
        message = self._kind()
        try:
            fill_untrusted(message, value)
        except EtcdError as error:
            raise EtcdError(Code.UNKNOWN, error.text) from None
        return message

    async def _read_more(self) -> None:
        """Read until a value may have ended: all of ours end with a bracket."""
        while True:
            piece = await self._talk.piece()
            self._ended = piece is None
            more = self._decoder.decode(piece or b"", final=self._ended)
            self._text += more
            if len(self._text) > REQUEST_BYTES:
                words = f"expected a request of {REQUEST_BYTES} characters at most"
                raise EtcdError(Code.INVALID_ARGUMENT, words)
            if self._ended or "}" in more:
                return
