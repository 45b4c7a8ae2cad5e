"""Certificates and cluster keys, as `quorate certs check` judges them."""

from collections.abc import Iterator
from pathlib import Path

from ..errors import ConfigurationError
from ..node.config.config import NodeConfig
from .finding import Finding, ok, problem, unknown

__all__ = ["check_certificates"]


def check_certificates(path: Path, config: NodeConfig) -> Iterator[Finding]:
    """Look at what a member's file names in its table [security].

    Args:
        path: of the file.
        config: what it says.
    """
    security = config.security
    if security.tls is None and not security.cluster_key_file:
        yield ok("certificates", "none, and no cluster key: [security] asks for neither")
        return
    try:
        from ..local.certificate_check import check  # noqa: PLC0415 - of the extra certs
    except ImportError as error:
        what = "the extra certs, which reads certificates"
        remedy = 'pip install ".[certs]" in a checkout of quorate'
        yield unknown("certificates", str(error), what, remedy)
        return
    try:
        found = check(path)
    except ConfigurationError as error:
        yield problem("certificates", str(error), "certificates that can be read")
        return
    remedy = "quorate certs issue member ID --renew, or chmod 600 its key: docs/security.md"
    for one in found:
        for words in one.problems:
            what, _, expected = words.partition(": expected ")
            yield problem("certificates", f"{one.what}: {what}", expected or "no such line", remedy)
        if not one.problems:
            yield ok("certificates", f"{one.what}: {'; '.join(one.lines)}")
