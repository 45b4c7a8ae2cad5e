"""How a member logs: the table ``[log]`` of its file."""

from typing import Final, Literal, get_args

import attrs

from .settings import Expects

__all__ = ["LogFormat", "LogLevel", "LogLines"]

LogLevel = Literal["DEBUG", "INFO", "WARNING", "ERROR"]
LogFormat = Literal["human", "json"]


def _one_of(names: tuple[str, ...]) -> Expects:
    words = "one of " + ", ".join(f'"{name}"' for name in names)
    return Expects(lambda value: isinstance(value, str) and value in names, words)


_LEVEL: Final = _one_of(get_args(LogLevel))
_FORMAT: Final = _one_of(get_args(LogFormat))


@attrs.frozen
class LogLines:
    """What `quorate run` writes to standard error; a program that embeds a member sets up logging.

    Args:
        level: the least level that is logged: "DEBUG", "INFO" (the default), "WARNING" or "ERROR".
        format: "human" (the default) to read, or "json": one object a line, for programs.

    Raises:
        ConfigurationError: with the key, the value and what was expected.
    """

    level: LogLevel = attrs.field(default="INFO", validator=_LEVEL)
    format: LogFormat = attrs.field(default="human", validator=_FORMAT)
