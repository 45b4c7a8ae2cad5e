"""`quorate certs`: a small CA, and a check of certificates that any CA has made."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final, Literal

from cyclopts import App, Parameter
from cyclopts.validators import Number

from .params import AsJson, needing_certs

__all__ = ["certs", "check", "init", "issue", "rotate"]

DONE: Final = 0
FOUND: Final = 1

Kind = Literal["member", "reader", "backup", "client"]
_MAX_DAYS: Final = 20 * 365
Days = Annotated[int | None, Parameter(validator=Number(gte=1, lte=_MAX_DAYS), show_default=False)]
Directory = Annotated[Path, Parameter(name=("--dir", "-d"))]
Hosts = Annotated[Sequence[str], Parameter(name="--host", negative="", show_default=False)]
Flag = Annotated[bool, Parameter(negative="", show_default=False)]
File = Annotated[Path | None, Parameter(show_default=False)]

_HERE: Final = Path("certs")

certs = App(
    name="certs",
    help="A small CA (an extra), and a check of certificates.",
    help_epilogue="Exit status: 0 - done; 1 - there is a problem, one line for each; 78 - a file "
    "is missing, malformed, or there already.",
)


@certs.command(help_epilogue="")
def init(cluster: str, /, *, directory: Directory = _HERE, days: Days = None) -> int:
    """Make a CA for a cluster: ca.crt, which all members trust, and ca.key, which is secret.

    Args:
        cluster: Name of the cluster, as in node.toml.
        directory: Directory for the CA and what it issues; made if it is missing.
        days: How long it lasts; ten years if left out.
    """
    with needing_certs():
        from ..local.certificates import CA_DAYS, found_authority  # noqa: PLC0415
    made = found_authority(directory, cluster, days=days or CA_DAYS)
    print(f'{directory / "ca.crt"}: a CA for cluster "{cluster}", until {made.own.ends:%Y-%m-%d}')
    print(
        f"{directory / 'ca.key'}: its key. Whoever has it can pose as any member: keep this "
        "directory on a machine of its own, and a copy offline"
    )
    return DONE


@certs.command(help_epilogue="")
def issue(
    kind: Kind,
    name: str,
    /,
    *,
    directory: Directory = _HERE,
    host: Hosts = (),
    days: Days = None,
    renew: Flag = False,
) -> int:
    """Make a certificate and its key: KIND-NAME.crt and KIND-NAME.key.

    A member needs one for its id. A reader reads the log, for pipelines and monitors. A backup is
    for quorate backup. A client is a user of the client port.

    Args:
        kind: What its owner is.
        name: Id of the member, or name of the reader, backup or user.
        directory: Directory of the CA.
        host: Name or address under which clients reach this member; for clients that check it. May
            be given several times.
        days: How long it lasts; a year if left out, and never longer than the CA.
        renew: Replace the files by new ones, with a new key, for the same hosts.
    """
    with needing_certs():
        from ..local.certificates import DAYS, Authority, identity_of  # noqa: PLC0415
    authority = Authority.load(directory)
    identity = identity_of(authority.cluster, kind, name)
    made = authority.issue(identity, hosts=host, days=days or DAYS, renew=renew)
    print(f"{made.certificate}: {made.identity}, until {made.ends:%Y-%m-%d}")
    print(f"{made.key}: its key, for its owner only")
    return DONE


@certs.command(help_epilogue="")
def rotate(*, directory: Directory = _HERE, days: Days = None, finish: Flag = False) -> int:
    """Replace the CA in three steps, while members run. Each call says what the next step is.

    The first call makes the next CA, and adds it to ca.crt; new certificates are then signed by
    it. With --finish the old one is forgotten. That is refused while certificates of it are left.

    Args:
        directory: Directory of the CA.
        days: How long the next CA lasts; ten years if left out.
        finish: Forget the old CA.
    """
    with needing_certs():
        from ..local.certificates import (  # noqa: PLC0415
            CA_DAYS,
            begin_rotation,
            finish_rotation,
        )
    bundle = directory / "ca.crt"
    if not finish:
        made = begin_rotation(directory, days=days or CA_DAYS)
        print(f"{bundle}: it has both CAs, the new one until {made.own.ends:%Y-%m-%d}")
        print(f"1. Copy {bundle} to all members, readers and clients.")
        print("2. Replace all certificates: quorate certs issue ... --renew, and copy them.")
        print("3. Forget the old CA: quorate certs rotate --finish, and copy ca.crt again.")
        return DONE
    left = finish_rotation(directory)
    for file in left:
        print(f"{file}: still of the old CA: renew it, or delete it if it is not used any more")
    if left:
        return FOUND
    print(f"{bundle}: it has the new CA only: copy it to all members, readers and clients")
    return DONE


@certs.command(help_epilogue="")
def check(
    path: Path,
    /,
    *,
    key: File = None,
    ca: File = None,
    days: int = 14,
    as_json: AsJson = False,
) -> int:
    """Say who certificates are for, until when, and what is wrong with them.

    Exit status: 0 - nothing; 1 - there are problems, one line for each.

    Args:
        path: A node.toml, or another file with a table [security]; a certificate; or a directory
            with certificates.
        key: Key of the certificate; if left out, the file of the same name with .key.
        ca: The CAs that are trusted; if left out, ca.crt next to the certificate.
        days: A certificate that ends sooner is a problem.
        as_json: For programs.
    """
    with needing_certs():
        from ..local.certificate_check import check as find  # noqa: PLC0415
    found = find(path, key=key, ca=ca, days=days)
    if as_json:
        plain = [{"what": one.what, "lines": one.lines, "problems": one.problems} for one in found]
        print(json.dumps(plain, indent=2))
    else:
        for one in found:
            print("\n  ".join((one.what, *one.lines)))
            for problem in one.problems:
                print(f"  PROBLEM: {problem}")
    return FOUND if any(one.problems for one in found) else DONE
