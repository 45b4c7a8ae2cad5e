"""TLS of the command line: what is wrong with its environment variables is said in words."""

from pathlib import Path

import pytest
import trio

from quorate.client.secure import (
    CA_VARIABLE,
    CERTIFICATE_VARIABLE,
    KEY_VARIABLE,
    ClientTls,
    tls_of_environment,
)
from quorate.doctor.finding import Level
from quorate.doctor.peers import judge_answer
from quorate.errors import ConfigurationError
from quorate.local.cluster import HOST
from quorate.local.survey import ask
from quorate.node.requests.status import MemberAddress
from tests.support.certificates import authority, uri


def test_a_key_that_was_not_named_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = authority().write(tmp_path, uri(0))
    ca, certificate, key = map(str, (files.ca, files.certificate, files.key))
    for variable, value in ((CA_VARIABLE, ca), (CERTIFICATE_VARIABLE, certificate)):
        monkeypatch.setenv(variable, value)
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    with pytest.raises(ConfigurationError, match="QUORATE_KEY is not set") as raised:
        tls_of_environment()
    assert certificate in str(raised.value)
    with pytest.raises(
        ConfigurationError, match=f'key is not set, and certificate = "{certificate}'
    ):
        ClientTls(ca, certificate)
    together = tmp_path / "both.pem"
    together.write_bytes(files.certificate.read_bytes() + files.key.read_bytes())
    ClientTls(ca, str(together))
    ClientTls(ca, certificate, key)
    with pytest.raises(ConfigurationError, match="expected a certificate and its key") as raised:
        ClientTls(ca, certificate, ca)
    assert "_ssl" not in str(raised.value)


@pytest.mark.parametrize("tls", [False, True])
async def test_a_port_of_the_other_kind_is_said_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, tls: bool
) -> None:
    """A port without TLS answers a hello of TLS with an error of its own, one with TLS ends."""
    files = authority().write(tmp_path, uri(0))

    async def answer(stream: trio.SocketStream) -> None:
        async with stream:
            await stream.receive_some()
            if tls:
                await stream.send_all(b"-ERR Protocol error\r\n")

    if tls:
        monkeypatch.setenv(CA_VARIABLE, str(files.ca))
    else:
        monkeypatch.delenv(CA_VARIABLE, raising=False)
    async with trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host=HOST)
        nursery.start_soon(trio.serve_listeners, answer, [listener])
        port = listener.socket.getsockname()[1]
        found = await ask(MemberAddress(1, HOST, port))
        nursery.cancel_scope.cancel()
    words = f"is it a port without TLS? {CA_VARIABLE} is set" if tls else "One with TLS needs QUOR"
    assert words in (found.error or "")
    finding = judge_answer("orders", 1, found)
    assert finding.level is Level.UNKNOWN
    assert finding.remedy.startswith("unset" if tls else "set")
