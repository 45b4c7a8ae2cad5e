"""The words in which a client is told that its request was not answered."""

from ...errors import NoLeaderError, OversizedRequestError, RefusedError, RequestError

__all__ = ["in_words"]


def in_words(error: RequestError) -> str:
    """Word an error for a client; what a program tells apart is the first word."""
    match error:
        case NoLeaderError():
            return "CLUSTERDOWN no leader was found in time; nothing was done"
        case RefusedError():
            return f"REFUSED {error}"
        case OversizedRequestError():
            return f"ERR {error}" if str(error) else "ERR the request is too large"
        case _:
            return (
                "UNKNOWN the outcome of this request is not known: "
                "it was sent, and may or may not take effect"
            )
