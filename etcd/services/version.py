"""The version of etcd that we say we are."""

from typing import Final

__all__ = ["CLUSTER_VERSION", "VERSION"]

VERSION: Final = "3.5.21"
"""Programs take each part for a number. Older than 3.5.13, and kine refuses us; newer than 3.5, and
clients expect methods that are not here, and errors of another form."""

CLUSTER_VERSION: Final = "3.5.0"
