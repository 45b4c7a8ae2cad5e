"""Error replies to clients whose request the member could not answer."""

from ...errors import NoLeaderError, OversizedRequestError, RefusedError, RequestError

__all__ = ["DeniedError", "error_text"]


class DeniedError(RefusedError):
    """The rules changed while the request waited; the text is an error reply. Nothing was done."""


def error_text(error: RequestError) -> str:
    """Return the text of an error reply. Programs distinguish errors by the first word."""
    match error:
        case NoLeaderError():
            return "CLUSTERDOWN no leader was found in time; nothing was done"
        case DeniedError():
            return str(error)
        case RefusedError():
            return f"REFUSED {error}"
        case OversizedRequestError():
            return f"ERR {error}" if str(error) else "ERR the request is too large"
        case _:
            return (
                "UNKNOWN the outcome of this request is not known: "
                "it was sent, and may or may not take effect"
            )
