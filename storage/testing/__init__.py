"""What tests and simulations need of a store, and a member does not.

`found_cluster` makes the stores of a new cluster at once, without the election that founds one.
Nothing in `storage/` outside this folder imports it.
"""

from .founding import found_cluster

__all__ = ["found_cluster"]
