"""`quorate view`: a recording is shown in the page, from this machine or as a single file."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import trio
from cyclopts import Parameter
from cyclopts.validators import Number

from ...transport import Address, TcpNetwork
from ...web.server import WebServer
from ...web.viewing import Viewer, single_file_untrusted
from .paths import as_one_file, other_than, recordings_at

__all__ = ["view"]

LOOPBACK = "127.0.0.1"


async def view(
    files: Annotated[Sequence[Path], Parameter(negative="", name="FILE")],
    /,
    *,
    port: Annotated[int, Parameter(validator=Number(gte=0, lt=1 << 16))] = 0,
    html: Annotated[Path | None, Parameter(show_default=False)] = None,
) -> int:
    """Show a recording in a browser: play it, step through it, look at any moment.

    It is served on this machine only, until Ctrl-C. With several files, or a directory of a member,
    they are merged first.

    Args:
        files: The recording, or several, or directories of members.
        port: Port of the server; with 0 the system chooses one.
        html: Write a single file that shows the recording and needs nothing else, and serve
            nothing. It can be attached to an issue.
    """
    if html is not None:
        other_than(html, recordings_at(files))
    with as_one_file(files) as path:
        if html is not None:
            with html.open("w", encoding="utf-8") as file:
                file.writelines(single_file_untrusted(path))
            print(f"{html}: {html.stat().st_size / 1e6:.1f} MB")
            return 0
        server = WebServer(Viewer(path).answer)
        async with trio.open_nursery() as nursery:
            address: Address = await nursery.start(
                server.run, TcpNetwork(), Address(LOOPBACK, port)
            )
            print(f"http://{address.host}:{address.port}/ (Ctrl-C ends it)", flush=True)
    return 0
