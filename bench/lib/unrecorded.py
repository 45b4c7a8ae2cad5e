"""Runs a member without its flight recorder, which has no switch: the launcher of a bench.

python -m bench.lib.unrecorded PYTHON -m quorate run FILE
"""

import sys
from contextlib import AbstractAsyncContextManager, nullcontext

from quorate.cli.app import run
from quorate.node import member


def _not_recording(*_: object) -> AbstractAsyncContextManager[None]:
    return nullcontext()


if __name__ == "__main__":
    setattr(member, "recording_flight", _not_recording)  # noqa: B010
    sys.exit(run(sys.argv[4:]))
