"""A wrong argument is named, with what was expected."""

from pathlib import Path
from typing import Any

import pytest

import quorate
from quorate.client.settings import members_of
from quorate.errors import ConfigurationError
from quorate.transport import Address


def test_members_are_texts_or_pairs() -> None:
    given: list[str | tuple[str, int]] = ["a:1", ("b", 2), "[::1]:3", ("a", 1)]
    assert members_of(given) == (Address("a", 1), Address("b", 2), Address("::1", 3))


@pytest.mark.parametrize(
    "members",
    [
        *([], "10.0.0.1:7000", None, 7, b"a:1", {}),
        *(["a"], ["a:0"], ["a:70000"], [("a", "1")], [("", 1)], [("a", 1, 2)], [7], [("a", True)]),
    ],
)
async def test_members_that_are_none(members: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"members.* expected the client ports"):
        async with quorate.connect(members):
            pass


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"tls": "ca.crt"}, r"tls = 'ca.crt': expected ClientTls"),
        ({"user": ""}, "user = '': expected the name"),
        ({"user": "a"}, "user = 'a', password = None: expected both"),
        ({"password": b"secret"}, "^password: expected a str or None, found bytes$"),
        ({"patience_s": -1}, "patience_s = -1: expected seconds, 0 to 86400"),
        ({"patience_s": "1"}, "patience_s = '1': expected seconds"),
        ({"session_timeout_s": 0.5}, r"session_timeout_s = 0.5: expected seconds, 1 to 86400"),
        ({"session_timeout_s": True}, "session_timeout_s = True"),
    ],
)
async def test_options_that_are_none(options: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=words):
        async with quorate.connect(["127.0.0.1:1"], **options):
            pass
