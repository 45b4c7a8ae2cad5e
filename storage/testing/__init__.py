"""What tests and simulations need of a store, and a member of a real cluster does not.

`InlineExecutor` writes without threads, in virtual time. `found_cluster` makes the stores of a new
cluster at once, without the election that founds one. Nothing in `storage/` outside this folder
imports it.
"""

from .founding import found_cluster
from .inline_executor import InlineExecutor

__all__ = ["InlineExecutor", "found_cluster"]
