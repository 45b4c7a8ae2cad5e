"""The member's file: every mistake of it, and ports that are open to everybody."""

from collections.abc import Iterator
from pathlib import Path

from ..errors import ConfigurationError
from ..node.config.config import NodeConfig, load_config
from ..node.upkeep.exposure import (
    check_client_exposure,
    check_etcd_exposure,
    check_exposure,
    is_loopback,
)
from ..web.opening import open_guard
from .finding import Finding, ok, problem, warning

__all__ = ["check_exposed", "read_configuration"]


def read_configuration(path: Path) -> tuple[NodeConfig | None, list[Finding]]:
    """Read a member's file.

    Returns:
        The configuration, None if it has mistakes; and a finding, or one for each mistake.
    """
    try:
        config = load_config(path)
    except ConfigurationError as error:
        if isinstance(error.__cause__, (OSError, ValueError)):
            return None, [_no_settings(path, error)]
        remedy = f"change {path}; all settings: docs/reference/settings.md"
        lines = str(error).splitlines()
        return None, [_mistake(line, remedy) for line in lines]
    except OSError as error:
        return None, [problem("configuration", f"{path}: {error.strerror}", "a member's file")]
    count = len(config.members)
    words = f'member {config.member_id} of cluster "{config.cluster}", {count} listed'
    found = [ok("configuration", words, cluster=config.cluster, member_id=config.member_id)]
    return config, [*found, *_even(config)]


def _no_settings(path: Path, error: ConfigurationError) -> Finding:
    """Return that a file can't be read, or is something else."""
    if isinstance(error.__cause__, OSError):
        remedy = "name a member's file, as for quorate run; quorate cluster makes node.toml"
        return problem("configuration", str(error), "a file that can be read here", remedy)
    remedy = f"change {path}, or name a member's file; docs/reference/settings.md has an example"
    return problem("configuration", str(error), "settings in TOML", remedy)


def _mistake(line: str, remedy: str) -> Finding:
    found, _, expected = line.partition(": expected ")
    return problem("configuration", found, expected or "no such line", remedy)


def _even(config: NodeConfig) -> Iterator[Finding]:
    """Yield a warning if one voter costs more than it gives."""
    voters = len(config.voters)
    if voters % 2 == 0 and not config.join:
        yield warning(
            "configuration",
            f"{voters} members have a vote: no more may fail than of {voters - 1}",
            "an odd number of voters",
            "add a member with a vote, or give one of them: witness = true or standby = true",
        )


async def check_exposed(config: NodeConfig) -> list[Finding]:
    """Look for ports that everybody can use."""
    found: list[Finding] = []
    checks = (check_exposure, check_client_exposure, check_etcd_exposure, open_guard)
    for check in checks:  # the last: of [web]
        try:
            await check(config)
        except OSError:
            continue  # a host without an address, which the addresses' own check reports
        except ConfigurationError as error:
            what, _, remedy = str(error).partition("\n")
            words, _, expected = what.partition(": expected ")
            # The error ends with the sentence that announces the lines.
            expected, _, _ = expected.partition("; add")
            found.append(problem("exposure", words, expected, remedy))
    security = config.security
    hosts = {config.member_listen_host, config.client_listen_host}
    hosts |= {config.web.host} if config.web.port else set()
    hosts |= {config.etcd_host} if config.etcd.port else set()
    open_to = sorted({host for host in hosts if await _is_open(host)})
    if security.insecure_network and open_to:
        words = f"insecure_network = true at {', '.join(open_to)}: who reaches a port can do all"
        remedy = "certificates for members and users: docs/security.md"
        found.append(warning("exposure", words, "certificates, or a cluster key", remedy))
    if security.accept_plain:
        words = "accept_plain = true: members without TLS are let in"
        remedy = "once all members have certificates, remove the line, and restart each"
        found.append(warning("exposure", words, "it only while TLS is turned on", remedy))
    if not found:
        where = ", ".join(open_to)
        how = f"secured at {where}" if where else "only this machine reaches its ports"
        found.append(ok("exposure", how))
    return found


async def _is_open(host: str) -> bool:
    try:
        return not await is_loopback(host)
    except OSError:
        return False  # as above
