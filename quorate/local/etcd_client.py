"""A client of etcd's JSON gateway, as etcd 3.4 and later and our members serve it."""

from __future__ import annotations

import json
import ssl
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Protocol, Self, TypeVar, cast
from urllib.parse import urlsplit

import attrs
import h11
import trio
from google.protobuf import json_format

from ..errors import ConfigurationError, TransportError, UsageError
from ..transport.tls.connection import describe_tls

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence
    from pathlib import Path
    from types import TracebackType

    from google.protobuf.message import Message

    Reply = TypeVar("Reply", bound=Message)

__all__ = ["EtcdRefusedError", "GatewayCall", "GatewayClient", "TlsFiles", "basic_url"]

MAX_REPLY_BYTES: Final = 256 << 20
"""A page has up to 1,000 keys of 1.5 MiB, encoded in base64, in the worst case. A larger bound
protects less; a smaller one refuses what may be."""

PATIENCE_S: Final = 30.0
"""How long one request may take. An election of etcd takes some seconds."""

_OK: Final = 200
_READS: Final = {"/v3/kv/range", "/v3/lease/timetolive", "/v3/watch"}


class EtcdRefusedError(TransportError):
    """The server has refused a request.

    Attributes:
        code: gRPC's.
    """

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class GatewayCall(Protocol):
    """Makes a call."""

    async def __call__(self, path: str, request: Message, kind: type[Reply], /) -> Reply:
        """Send a request and return the reply.

        Raises:
            EtcdRefusedError: the server has refused it.
            TransportError: it cannot be reached, or answers with something else.
        """
        ...


def basic_url(text: str) -> tuple[bool, str, int]:
    """Read an endpoint: whether it has TLS, its host and its port.

    Raises:
        UsageError: it is none.
    """
    parts = urlsplit(text if "//" in text else f"http://{text}")
    try:
        port = parts.port or 2379
    except ValueError:
        port = 0
    if parts.scheme not in {"http", "https"} or not parts.hostname or not port:
        raise UsageError(f'--endpoint "{text}": expected a URL, such as http://127.0.0.1:2379')
    return parts.scheme == "https", parts.hostname, port


@attrs.frozen
class TlsFiles:
    """Files for https.

    Args:
        ca_file: certificates to trust; those of the system if left out.
        cert_file: certificate of the client, if the server asks for one.
        key_file: its key; left out if that is in the same file.
    """

    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None

    def check(self, endpoint: str) -> None:
        """Refuse files that would not be used: whoever names them believes that they are.

        Args:
            endpoint: URL of the server.

        Raises:
            UsageError: the endpoint has no TLS, or a key has no certificate.
        """
        tls, _, _ = basic_url(endpoint)
        for option, file in (
            ("--ca-file", self.ca_file),
            ("--cert-file", self.cert_file),
            ("--key-file", self.key_file),
        ):
            if file is not None and not tls:
                raise UsageError(f'{option} {file}: expected https in --endpoint, not "{endpoint}"')
        if self.key_file is not None and self.cert_file is None:
            raise UsageError(f"--key-file {self.key_file}: expected --cert-file, too")

    def context(self) -> ssl.SSLContext:
        """Read the files.

        Raises:
            ConfigurationError: one cannot be read, or is something else.
        """
        named, what = f"--ca-file {self.ca_file}", "expected certificates in PEM form"
        try:
            context = ssl.create_default_context(cafile=self.ca_file)
            if self.cert_file is not None:
                named = (
                    f"--cert-file {self.cert_file}, --key-file {self.key_file or self.cert_file}"
                )
                what = "expected a certificate and its key, without a password, in PEM form"
                # A password would be asked for at the terminal, which may not be there.
                context.load_cert_chain(self.cert_file, self.key_file, password="")
        except ssl.SSLError as error:
            raise ConfigurationError(f"{named}: {describe_tls(error)}: {what}") from None
        except OSError as error:
            raise ConfigurationError(f"{named}: {error.strerror}") from None
        return context


class GatewayClient:
    """One connection to a gateway.

    Args:
        endpoint: a URL; see `basic_url`.
        files: for https.

    Raises:
        UsageError: the endpoint is no URL, or files would not be used.
    """

    def __init__(self, endpoint: str, files: TlsFiles | None = None) -> None:
        self._tls, self._host, self._port = basic_url(endpoint)
        self._where = endpoint
        self._files = files or TlsFiles()
        self._files.check(endpoint)
        self._http = h11.Connection(h11.CLIENT)
        # With TLS 1.3 a server refuses the other end only after the handshake.
        wanted = self._tls and self._files.cert_file is None
        self._hint = "; if it asks for a certificate, give --cert-file" if wanted else ""
        self._token = ""
        self._stream: trio.abc.Stream | None = None

    async def __aenter__(self) -> Self:
        """Connect.

        Raises:
            ConfigurationError: a file for https is wrong.
            TransportError: that fails.
        """
        context = self._files.context() if self._tls else None
        try:
            with trio.fail_after(PATIENCE_S):
                stream: trio.abc.Stream = await trio.open_tcp_stream(self._host, self._port)
                if context is not None:
                    wrapped = trio.SSLStream(
                        stream, context, server_hostname=self._host, https_compatible=True
                    )
                    await wrapped.do_handshake()
                    stream = wrapped
        except (OSError, trio.BrokenResourceError, trio.TooSlowError) as error:
            raise TransportError(f"{self._where} can't be reached: {_words_of(error)}") from error
        self._stream = stream
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the connection."""
        if self._stream is not None:
            await trio.aclose_forcefully(self._stream)

    def authorize(self, token: str) -> None:
        """Send a token with all further requests."""
        self._token = token

    async def __call__(self, path: str, request: Message, kind: type[Reply], /) -> Reply:
        """Make a call; see `GatewayCall`."""
        with self._telling_where(path):
            with trio.fail_after(PATIENCE_S):
                status, answer = await self._exchange(path, request)
        if status != _OK:
            raise _refusal_untrusted(f"{self._where}{path}", status, answer)
        return _reply_untrusted(f"{self._where}{path}", answer, kind)

    async def follow(
        self,
        path: str,
        requests: Sequence[Message],
        kind: type[Reply],
        take: Callable[[Reply], bool],
    ) -> None:
        """Make a call with a stream of replies, until the server or `take` ends it.

        Args:
            path: of the method.
            requests: all of them; they are sent at once.
            kind: of each reply.
            take: called with each; says whether to go on. If not, the connection is of no use.

        Raises:
            EtcdRefusedError: the server has refused it, or ended the stream with an error.
            TransportError: it cannot be reached, or answers with something else.
        """
        where, line = f"{self._where}{path}", b""
        with self._telling_where(path):
            await self._send(path, *requests)
            while not isinstance(found := await self._next(), h11.EndOfMessage):
                if not isinstance(found, h11.Data):
                    continue
                *lines, line = (line + bytes(found.data)).split(b"\n")
                for each in lines:
                    if not each.startswith(b'{"result"'):
                        raise _refusal_untrusted(where, _OK, each)
                    if not take(_reply_untrusted(where, each, kind)):
                        return
                if len(line) > MAX_REPLY_BYTES:
                    raise h11.RemoteProtocolError(f"a line with over {MAX_REPLY_BYTES:,} bytes")

    @contextmanager
    def _telling_where(self, path: str) -> Generator[None]:
        """Raise errors of the connection with the place and the path."""
        try:
            yield
        except (OSError, trio.BrokenResourceError, trio.TooSlowError) as error:
            done = "" if path in _READS else "; it may have been done"
            words = f"{self._where}: no answer to {path}: {_words_of(error)}{self._hint}{done}"
            raise TransportError(words) from error
        except h11.RemoteProtocolError as error:
            raise TransportError(f"{self._where}: expected etcd's JSON gateway: {error}") from error

    async def _send(self, path: str, *requests: Message) -> None:
        assert self._stream is not None, "it is connected"
        body = "".join(
            json_format.MessageToJson(request, preserving_proto_field_name=True)
            for request in requests
        ).encode()
        head = [
            ("host", f"{self._host}:{self._port}"),
            ("content-type", "application/json"),
            ("content-length", str(len(body))),
        ]
        if self._token:
            head.append(("authorization", self._token))
        for event in (
            h11.Request(method="POST", target=path, headers=head),
            h11.Data(data=body),
            h11.EndOfMessage(),
        ):
            await self._stream.send_all(self._http.send(event) or b"")

    async def _exchange(self, path: str, request: Message) -> tuple[int, bytes]:
        await self._send(path, request)
        status, answer = 0, bytearray()
        while not isinstance(found := await self._next(), h11.EndOfMessage):
            if isinstance(found, h11.Response):
                status = found.status_code
            elif isinstance(found, h11.Data):
                answer += found.data
            if len(answer) > MAX_REPLY_BYTES:
                raise h11.RemoteProtocolError(f"a reply with over {MAX_REPLY_BYTES:,} bytes")
        if self._http.our_state is not h11.DONE or self._http.their_state is not h11.DONE:
            raise h11.RemoteProtocolError("the server ends the connection")
        self._http.start_next_cycle()
        self._hint = ""
        return status, bytes(answer)

    async def _next(self) -> h11.Event:
        assert self._stream is not None
        while (event := self._http.next_event()) is h11.NEED_DATA:
            self._http.receive_data(bytes(await self._stream.receive_some(1 << 16)))
        if event is h11.PAUSED or isinstance(event, h11.ConnectionClosed):
            raise h11.RemoteProtocolError("the server ends the connection")
        assert not isinstance(event, type)
        return event


def _words_of(error: Exception) -> str:
    """Say what went wrong; trio leaves the words about a broken connection to the cause."""
    cause = error.__cause__ if isinstance(error, trio.BrokenResourceError) else None
    if isinstance(cause, ssl.SSLError):
        return f"TLS: {describe_tls(cause)}"
    return str(cause or error) or "the connection has ended"


def _reply_untrusted(where: str, answer: bytes, kind: type[Reply]) -> Reply:
    reply = kind()
    try:
        found: Any = json.loads(answer)
        # In streams, replies are in an object with this only.
        json_format.ParseDict(found.get("result", found), reply, ignore_unknown_fields=True)
    except (json_format.ParseError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise TransportError(f"{where}: expected a {kind.__name__} as JSON: {error}") from error
    return reply


def _refusal_untrusted(where: str, status: int, answer: bytes) -> TransportError:
    try:
        found: Any = json.loads(answer)
        if isinstance(found["error"], dict):  # in a stream
            found = cast("dict[str, Any]", found["error"])
        code = int(found["grpc_code"] if "grpc_code" in found else found["code"])
        return EtcdRefusedError(code, f"{where}: {str(found.get('message'))[:500]} (code {code})")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        shown = answer[:80].decode(errors="replace")
        return TransportError(
            f"{where}: HTTP status {status}, {shown!r}: expected the JSON gateway of etcd, or the "
            "port of a member's table [etcd]"
        )
