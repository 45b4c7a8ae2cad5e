"""All checks, in the order in which an operator mends things."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import attrs

from ..local.survey import Survey
from ..node.config.config import NodeConfig
from ..node.requests.status import MemberAddress
from .certificates import check_certificates
from .clock import check_clock
from .cluster import check_cluster
from .configuration import check_exposed, read_configuration
from .directory import check_directory
from .finding import Finding, Verdict, verdict
from .limits import check_limits
from .peers import check_peers
from .ports import check_ports
from .software import check_software
from .store import check_process, check_store, running_process
from .sync_speed import check_sync_speed

__all__ = ["Examination", "examine"]


@attrs.frozen
class Examination:
    """What the doctor has found.

    Args:
        findings: in the order of the checks.
        config: of the member; None without a file, or with mistakes in it.
        seen: what the members answered; None if none was asked.
    """

    findings: tuple[Finding, ...]
    config: NodeConfig | None = None
    seen: Survey | None = None

    @property
    def verdict(self) -> Verdict:
        """The verdict on all findings."""
        return verdict(self.findings)

    def plain(self) -> dict[str, object]:
        """Return all of it for programs."""
        findings = [attrs.asdict(each) for each in self.findings]
        return {"verdict": self.verdict.name.lower(), "findings": findings}


async def examine(
    file: Path | None, connect: Sequence[MemberAddress] = (), *, probe: bool = True
) -> Examination:
    """Make all checks.

    Args:
        file: of the member; without one only the machine and the cluster are looked at.
        connect: client ports of members that an operator has named.
        probe: measure the disk, which writes to it.
    """
    # What blocks comes first: during a measurement of the disk no answer would be read.
    found = [*check_software(), check_clock()]
    config: NodeConfig | None = None
    if file is not None:
        config, mistakes = read_configuration(file)
        found += mistakes
    if config is not None and file is not None:
        found += _machine(file, config, probe=probe)
        found += await check_exposed(config)
        found += await check_peers(config)
    seen: Survey | None = None
    addresses = [*connect] or ([*_addresses(config)] if config is not None else [])
    if addresses:
        answers, seen = await check_cluster(addresses, asked=bool(connect))
        found += answers
    return Examination(tuple(found), config, seen)


def _machine(file: Path, config: NodeConfig, *, probe: bool) -> Iterator[Finding]:
    """Look at what a member has on its machine."""
    yield from check_directory(config)
    if probe:
        yield check_sync_speed(config.directory, config.timeouts)
    checks: Iterable[Iterable[Finding]] = (
        check_limits(config),
        check_certificates(file, config),
        [check_process(config.directory)],
        check_store(file, config),
        check_ports(config, running_process(config.directory)),
    )
    for each in checks:
        yield from each


def _addresses(config: NodeConfig) -> Iterator[MemberAddress]:
    """Yield where clients reach the members of a file, this one first."""
    for one in (config.own, *config.peers):
        yield MemberAddress(
            one.member_id, one.host, one.client_port, one.member_port, tls_port=one.tls_port
        )
