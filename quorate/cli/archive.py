"""`quorate archive`: an encrypted copy of a backup, in one file."""

import json
import random
from pathlib import Path
from typing import Annotated, Final

import attrs
from cyclopts import Parameter

from ..local.stores import store_of, whose
from ..local.words import size
from ..node.upkeep.access import read_secret
from ..storage.tools.restore import moment
from .params import AsJson, needing_certs

__all__ = ["archive"]

DONE: Final = 0

From = Annotated[Path, Parameter(name="--from", show_default=False)]
To = Annotated[Path, Parameter(show_default=False)]
KeyFile = Annotated[Path, Parameter(show_default=False)]


async def archive(*, source: From, to: To, key_file: KeyFile, as_json: AsJson = False) -> int:
    """Write the newest snapshot of a backup, and the log behind it, into one encrypted file.

    The file may be kept where others can read it. `quorate restore` takes it in place of the
    directory of a backup. Without the key nothing of it can be read, ever.

    While it is written, a copy of what it holds lies in the directory of the backup.

    Exit status: 0 - done; 74 - something of the backup is damaged; 78 - the file exists, or the key
    file is not one.

    Args:
        source: Directory of the backup, or of a member; either may be in use.
        to: The new file.
        key_file: File with 32 random bytes or more, which nobody else can read. Keep a copy of it
            elsewhere.
        as_json: For programs.
    """
    with needing_certs():
        from ..local.archive import write_archive  # noqa: PLC0415 - an extra
    secret = read_secret(key_file, f"--key-file {key_file}")
    rng = random.Random(random.SystemRandom().getrandbits(64))  # noqa: S311 - not for secrets
    made = await write_archive(store_of(source).parent, to, secret, rng)
    plan = made.plan
    if as_json:
        found = {"file": str(to), "bytes": made.size, "cluster": plan.identity.cluster}
        print(json.dumps(found | attrs.asdict(plan.point)))
    else:
        when = moment(plan.point.timestamp_ms)
        print(f"{to}: {whose(plan.identity)} as of {when}, {size(made.size)}, encrypted")
    return DONE
