"""How a supervisor, which is a client, proves who it is: as the command line does."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, TypedDict

from ..client.resp import PASSWORD_VARIABLE, USER_VARIABLE
from ..client.secure import tls_of_environment

if TYPE_CHECKING:
    from ..client.secure import ClientTls

__all__ = ["Login", "login_of_environment"]


class Login(TypedDict):
    """Arguments of `quorate.connect`."""

    tls: ClientTls | None
    user: str | None
    password: str | None


def login_of_environment() -> Login:
    """Return what `QUORATE_CA`, `QUORATE_USER` and so on say.

    Raises:
        ConfigurationError: a file of TLS is wrong.
    """
    password = os.environ.get(PASSWORD_VARIABLE)
    user = None if password is None else os.environ.get(USER_VARIABLE, "default")
    return {"tls": tls_of_environment(), "user": user, "password": password}
