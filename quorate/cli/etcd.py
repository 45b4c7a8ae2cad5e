"""`quorate etcd`: keys are moved between etcd and members, over the API that both have."""

import io
import json
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from typing import IO, Annotated, Final

import attrs
from cyclopts import Parameter

from ..errors import ConfigurationError, RefusedError, TransportError
from ..etcd.messages import rpc_pb2 as rpc
from ..local.etcd_client import EtcdRefusedError, GatewayClient, TlsFiles
from ..local.etcd_copy import MAX_LINE_BYTES, Copied, export_keys, import_keys
from ..local.words import counted
from .params import AsJson

__all__ = ["export_to", "import_from"]

DONE: Final = 0
REFUSED: Final = 1
UNKNOWN: Final = 2

Endpoint = Annotated[str, Parameter(show_default=False)]
File = Annotated[Path | None, Parameter(show_default=False)]
Text = Annotated[str, Parameter(show_default=False)]
Flag = Annotated[bool, Parameter(negative="", show_default=False)]


async def export_to(
    *,
    endpoint: Endpoint,
    out: File = None,
    prefix: Text = "",
    ca_file: File = None,
    cert_file: File = None,
    key_file: File = None,
    user: Text = "",
    password_file: File = None,
    as_json: AsJson = False,
) -> int:
    """Write all keys of etcd, or of a member's etcd port, as lines of JSON.

    All keys are as of one revision. Their history is not written. A key with a lease is written
    with it.

    Exit status: 0 - done; 1 - the server refuses it, or has dropped that revision in the meantime;
    2 - the server does not answer; 78 - the file exists.

    Args:
        endpoint: URL of the server, such as http://127.0.0.1:2379.
        out: A new file; standard output if left out.
        prefix: Only keys that begin with it.
        ca_file: Certificates to trust, for https; the system's if left out.
        cert_file: Certificate to show, for https, if the server asks for one.
        key_file: Its key, if that is in a file of its own.
        user: Name to log in with, if the server has users.
        password_file: File with the password.
        as_json: Report for programs, on standard error.
    """
    try:
        file = nullcontext(sys.stdout) if out is None else out.open("x")
    except FileExistsError:
        raise ConfigurationError(f"--out {out}: it exists: expected a new file") from None
    status = UNKNOWN
    try:
        with file as lines:

            def copying(client: GatewayClient) -> Awaitable[Copied]:
                return export_keys(client, prefix.encode(), lines)

            files = TlsFiles(ca_file, cert_file, key_file)
            server = _Server(endpoint, files, user, password_file)
            status = await _copy("exported", server, copying, as_json=as_json)
    finally:
        if status != DONE and out is not None:
            _remove(out)
    return status


async def import_from(
    *,
    endpoint: Endpoint,
    source: Annotated[Path | None, Parameter(name="--from", show_default=False)] = None,
    overwrite: Flag = False,
    ca_file: File = None,
    cert_file: File = None,
    key_file: File = None,
    user: Text = "",
    password_file: File = None,
    as_json: AsJson = False,
) -> int:
    """Write the keys of an export into etcd, or into a cluster by a member's etcd port.

    Keys get new revisions. A lease gets the id that it had, and its whole time to live. So clients
    that still renew it keep their keys, and keys that nobody renews go.

    Exit status: 0 - done; 1 - a key exists already, or the server refuses something; 2 - the server
    does not answer; 78 - the export is damaged or not whole.

    Args:
        endpoint: URL of the server, such as http://127.0.0.1:2379.
        source: File of the export; standard input if left out.
        overwrite: Replace keys that exist.
        ca_file: Certificates to trust, for https; the system's if left out.
        cert_file: Certificate to show, for https, if the server asks for one.
        key_file: Its key, if that is in a file of its own.
        user: Name to log in with, if the server has users.
        password_file: File with the password.
        as_json: Report for programs, on standard error.
    """
    with _opened(source) as file:

        def copying(client: GatewayClient) -> Awaitable[Copied]:
            return import_keys(client, _lines_of(file), overwrite=overwrite)

        server = _Server(endpoint, TlsFiles(ca_file, cert_file, key_file), user, password_file)
        return await _copy("imported", server, copying, as_json=as_json)


@attrs.frozen
class _Server:
    """A server, and how to log in."""

    endpoint: str
    files: TlsFiles
    user: str
    password_file: Path | None

    @asynccontextmanager
    async def connected(self) -> AsyncGenerator[GatewayClient]:
        """Connect, and log in if there is a user."""
        async with GatewayClient(self.endpoint, self.files) as client:
            if self.user:
                password = _password_in(self.password_file)
                request = rpc.AuthenticateRequest(name=self.user, password=password)
                answer = await client("/v3/auth/authenticate", request, rpc.AuthenticateResponse)
                client.authorize(answer.token)
            yield client


def _remove(file: Path) -> None:
    file.unlink()  # it is not whole


def _password_in(file: Path | None) -> str:
    return "" if file is None else file.read_text().rstrip("\n")


async def _copy(
    done: str,
    server: _Server,
    copying: Callable[[GatewayClient], Awaitable[Copied]],
    *,
    as_json: bool,
) -> int:
    """Copy, and say on standard error how it went: standard output has the keys."""
    try:
        async with server.connected() as client:
            copied = await copying(client)
    except (RefusedError, EtcdRefusedError) as refusal:
        print(refusal, file=sys.stderr)
        return REFUSED
    except TransportError as error:
        print(error, file=sys.stderr)
        return UNKNOWN
    if as_json:
        print(json.dumps(attrs.asdict(copied)), file=sys.stderr)
    else:
        print(
            f"{done}: {counted(copied.keys, 'key', 'keys')}, "
            f"{counted(copied.leases, 'lease', 'leases')}, revision {copied.revision}",
            file=sys.stderr,
        )
    return DONE


def _opened(source: Path | None) -> IO[str]:
    """Open an export. What is no UTF-8 is replaced: the error is about the line, then."""
    if source is None:
        return io.TextIOWrapper(sys.stdin.buffer, "utf-8", errors="replace")
    return source.open(encoding="utf-8", errors="replace")


def _lines_of(file: IO[str]) -> Iterator[str]:
    """Yield the lines of a file; what is longer than any may be comes in pieces."""
    while line := file.readline(MAX_LINE_BYTES + 1):
        yield line
