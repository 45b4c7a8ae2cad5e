"""TLS between members, and for those who read from them.

`TlsNetwork` wraps any `Network`: links and streams above it are the same with TLS and without, and
the simulation runs it over its network in memory. Both ends show a certificate, whose URI says who
they are (`transport/identity.py`). This room proves that the certificate is of our CA. What its
owner may do is judged where the hello is (`transport/authentication.py`).

It has no cryptography of its own: that is OpenSSL's, through Python's `ssl`. It looks at no host
names and keeps no sessions. For the port of clients it makes a context, and no more
(`keyvalue/tls/` uses it).

Read `connection` first, then `network`. `files` loads certificates and keys, and checks them.
`switching` has both kinds of connections at one port, while a cluster goes from plain to TLS.
"""

from .connection import TlsConnection
from .files import ClientCertificates, Material, Minimum, Stamp, TlsFiles, load_material
from .network import TlsNetwork
from .switching import SwitchingNetwork

__all__ = [
    "ClientCertificates",
    "Material",
    "Minimum",
    "Stamp",
    "SwitchingNetwork",
    "TlsConnection",
    "TlsFiles",
    "TlsNetwork",
    "load_material",
]
