"""What is wrong with certificates, before a member finds out.

A member stops at the first thing that does not fit. An operator wants all of them at once, and the
days that are left. So the files are looked at one by one here, and at the end they are loaded as
a member loads them: what that refuses, is a problem too.
"""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import attrs

from ..errors import ConfigurationError, WireError
from ..node.config.config import load_config
from ..node.config.security import load_security
from ..node.config.settings import read_tables
from ..node.upkeep.access import READERS, read_cluster_keys
from ..transport import Identity, Purpose
from ..transport.identity import identity_untrusted
from ..transport.tls import TlsFiles, load_material
from .certificates import CA_FILE
from .pem import Certified, read_certificates, read_key
from .words import counted

__all__ = ["WARN_DAYS", "Expected", "Found", "check"]

WARN_DAYS: Final = 14
"""How many days before its end a certificate is a problem. Smaller: nobody is at work. Larger: it
is a problem for so long that nobody reads it any more."""


@attrs.frozen
class Expected:
    """What certificates should be for.

    Args:
        cluster: name of the cluster; None for the one that the certificate names.
        purposes: one of these.
        name: of the member, reader or user; None for any.
    """

    cluster: str | None = None
    purposes: tuple[Purpose, ...] = tuple(Purpose)
    name: str | None = None


@attrs.frozen
class Found:
    """What was found out about one certificate, or about a cluster key.

    Args:
        what: the file, and who it is for.
        lines: what it is, and until when.
        problems: what has to be mended; empty if nothing.
    """

    what: str
    lines: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()


def check(
    path: Path, *, key: Path | None = None, ca: Path | None = None, days: int = WARN_DAYS
) -> list[Found]:
    """Check what a path names.

    Args:
        path: a file with a table [security]; a certificate; or a folder with certificates, as
            `quorate certs` makes it.
        key: of a certificate; if left out, its name with ``.key``.
        ca: of a certificate; if left out, ``ca.crt`` next to it.
        days: one that ends sooner is a problem.

    Raises:
        ConfigurationError: a file with a table [security] has something else wrong with it, or
            there is no certificate in a folder.
    """
    if path.suffix == ".toml":
        return [_check_settings(path, days)]
    if path.is_dir():
        certificates = [each for each in sorted(path.glob("*.crt")) if each.name != CA_FILE]
        if not certificates:
            raise ConfigurationError(f"{path}: no certificates there: expected files NAME.crt")
    else:
        certificates = [path]
    return [
        check_files(
            TlsFiles(each, key or each.with_suffix(".key"), ca or each.with_name(CA_FILE)),
            Expected(),
            days=days,
        )
        for each in certificates
    ]


def _check_settings(path: Path, days: int) -> Found:
    """Check what a table [security] names."""
    tables = read_tables(path)
    if "machines" in tables:
        security = load_security(path)
        name, own = str(tables.get("cluster")), str(tables.get("machine_id"))
        expected = Expected(name, (Purpose.MEMBER,), own)
    elif "member_id" in tables:
        config = load_config(path)
        security, own = config.security, str(config.member_id)
        expected = Expected(config.cluster, (Purpose.MEMBER,), own)
    else:
        security, expected = load_security(path), Expected(None, READERS)
    if security.tls is not None:
        return check_files(security.tls, expected, days=days)
    if not security.cluster_key_file:
        problem = "[security] names no certificate and no cluster key: everybody is believed"
        return Found(str(path), (), (problem,))
    try:
        read_cluster_keys(security)
    except ConfigurationError as error:
        return Found(security.cluster_key_file, (), (str(error),))
    return Found(security.cluster_key_file, ("a cluster key; it does not end",))


def check_files(files: TlsFiles, expected: Expected, *, days: int = WARN_DAYS) -> Found:
    """Check a certificate, its key and its CA.

    Args:
        files: where they are.
        expected: what they should be for.
        days: what ends sooner is a problem.
    """
    what = str(files.certificate)
    lines: list[str] = []
    try:
        chain = read_certificates(files.certificate)
    except ConfigurationError as error:
        return Found(what, (), (str(error),))
    problems = [*_key_problems(files, chain[0])]
    identity: Identity | None = None
    try:
        identity = named = identity_untrusted(chain[0].uris)
        what = f"{what}: {named}"
        problems += _identity_problems(named, expected)
    except WireError as error:
        problems.append(str(error))
    lines.append(_life("certificate", chain[0]))
    if chain[0].hosts:
        lines.append(f"clients reach it as {', '.join(chain[0].hosts)}")
    for each in chain:
        problems += _life_problems("the certificate", each, days)
    for line, found in _signers(files, chain, days):
        lines += [line] * bool(line)
        problems += found
    if not problems and identity is not None:
        problems += _as_a_member_does(files, identity)
    return Found(what, tuple(lines), tuple(problems))


def _key_problems(files: TlsFiles, own: Certified) -> Iterator[str]:
    try:
        key = read_key(files.key)
    except ConfigurationError as error:
        yield str(error)
        return
    if Certified.public_bytes(key.public_key()) != own.public_key:
        yield f"{files.key}: it is not the key of {files.certificate}"


def _identity_problems(identity: Identity, expected: Expected) -> Iterator[str]:
    if expected.cluster is not None and not identity.is_of(expected.cluster):
        yield f"it is for cluster {identity.cluster!r}: expected {expected.cluster!r}"
    if identity.purpose not in expected.purposes:
        kinds = " or ".join(each.value for each in expected.purposes)
        yield f"it is for a {identity.purpose.value}: expected one for a {kinds}"
    elif expected.name not in {None, identity.name}:
        yield f"it is for {identity.purpose.value} {identity.name}: expected {expected.name}"


def _signers(
    files: TlsFiles, chain: tuple[Certified, ...], days: int
) -> Iterator[tuple[str, list[str]]]:
    """Yield a line for each CA that is trusted, and what is wrong with them."""
    try:
        trusted = read_certificates(files.ca)
    except ConfigurationError as error:
        yield "", [str(error)]
        return
    signers = [each for each in trusted if each.has_signed(chain[-1])]
    if not signers:
        problem = f"{files.ca}: none of its {counted(len(trusted), 'certificate', 'certificates')} "
        yield "", [f"{problem}has signed it; it was signed by {chain[-1].issuer}"]
    for each in trusted:
        if each in signers:
            yield _life("signed by", each), [*_life_problems("the CA", each, days)]
        else:
            yield _life("also trusted", each), []


def _life(what: str, certified: Certified) -> str:
    left = certified.ends - datetime.now(UTC)
    days = counted(max(left.days, 0), "day", "days")
    return f"{what} {certified.name}, until {certified.ends:%Y-%m-%d %H:%M} UTC, {days}"


def _life_problems(what: str, certified: Certified, days: int) -> Iterator[str]:
    now = datetime.now(UTC)
    if now < certified.begins:
        begins = f"{certified.begins:%Y-%m-%d %H:%M}"
        yield f"{what} begins at {begins} UTC, and this clock says {now:%Y-%m-%d %H:%M}"
    elif certified.ends <= now:
        yield f"{what} ended at {certified.ends:%Y-%m-%d %H:%M} UTC: replace it"
    elif certified.ends - now < timedelta(days=days):
        yield f"{what} ends in less than {counted(days, 'day', 'days')}: replace it"


def _as_a_member_does(files: TlsFiles, identity: Identity) -> Iterator[str]:
    # A client's is loaded by programs that are not ours, and can't serve.
    if identity.purpose is Purpose.CLIENT:
        return
    try:
        load_material(files, cluster=identity.cluster, purposes=(identity.purpose,))
    except ConfigurationError as error:
        yield str(error)
