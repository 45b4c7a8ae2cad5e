"""What the clients of a simulated cluster do, and what they check by themselves."""

from .bank import Bank
from .base import Workload
from .expiry import Expiry
from .samples import Sample, Samples, Sampling
from .sessions import Sessions
from .strings import Strings

__all__ = ["Bank", "Expiry", "Sample", "Samples", "Sampling", "Sessions", "Strings", "Workload"]
