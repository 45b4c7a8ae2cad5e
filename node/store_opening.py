"""Opens the store of a member, and checks what it is opened with.

Damage is repaired where that is safe (:mod:`quorate.storage.log.mending`); nothing is guessed. A
member never acts on damaged bytes. And if it has lost what it may have acknowledged, it does not
vote as if nothing had happened: it stops. The error names the record, and the command by which the
other members make the store again.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from ..errors import (
    ConfigurationError,
    DamagedRecordError,
    LostStoreError,
    RemovedError,
    StorageError,
    StoreMismatchError,
    check_interpreter,
)
from ..storage import (
    EMPTY_LOG,
    Identity,
    Store,
    VotingRight,
    VotingStatus,
    make_store,
    open_readonly,
)
from ..storage.lmdb.file_check import DATA_FILE
from .config.config import NodeConfig
from .configurations import Configurations
from .state_machine.service import KEY_VALUE, Service, kind_of
from .state_machine.witness import WitnessService, check_role

if TYPE_CHECKING:
    from collections.abc import Generator
    from random import Random

    from ..storage import ExecutorFactory, Write


def has_others(config: NodeConfig, *, read: bool = True) -> bool:
    """Say whether another member has what this one has committed: another voter, or all of them.

    Args:
        config: of the member.
        read: read the store, which may know better than the file.
    """
    by_file = config.own.standby or config.join or len(config.voters) > 1
    log = config.directory / "log"
    if not read or not (log / DATA_FILE).exists():
        return by_file
    try:
        with open_readonly(log) as store:
            if store.voting_status.kind is VotingRight.RECOVERING:
                return True
            voters = Configurations(config, store).at(store.append_position).quorums.voters
    except StorageError:
        return by_file  # opening it will say what is wrong
    return {voter.member_id for voter in voters} != {config.member_id}


def way_out(config: NodeConfig, *, read: bool = True) -> str:
    """Return what an operator can do about a store that is damaged beyond repair.

    Args:
        config: of the member.
        read: see `has_others`; False if reading the store would crash.
    """
    where = config.directory
    if not has_others(config, read=read):
        return (
            "No other member has it. From a backup, or from what is intact and committed in "
            f"{where}: quorate restore --from {where} --to DIRECTORY --new-cluster NAME"
        )
    return (
        f"Move {where} away and keep it, put its node.toml into an empty directory there, and "
        f"type: quorate recover {where}/node.toml"
    )


@contextmanager
def advising_recovery(config: NodeConfig) -> Generator[None]:
    """Add to the errors of a damaged store what an operator can do.

    Raises:
        DamagedRecordError, LostStoreError: as in the block.
    """
    try:
        yield
    except DamagedRecordError as error:
        raise DamagedRecordError(
            member_id=error.member_id,
            term=error.term,
            position=error.position,
            reason=f"{error.reason}. {way_out(config)}",
        ) from error
    except LostStoreError as error:
        raise LostStoreError(f"{error}. {way_out(config)}") from error


def why_no_founder(config: NodeConfig) -> str:
    """Return why a file can't be that of a member that founds a cluster; nothing if it can.

    A cluster is founded by a new store, a restored one, and one with which a quorum was forced.
    """
    if not config.join:
        return ""
    # A joiner's file has the members of the time when it joined. So each such file has another
    # list, and founders with different lists are sets of voters that need not intersect.
    return (
        f"{config.directory}/node.toml: join = true: expected a file without it, since this member "
        "is to found a cluster. Write the same list of [[members]], the members of the new "
        "cluster, into the node.toml of each of them, and delete the line join = true in all"
    )


def open_store(config: NodeConfig, rng: Random, executor: ExecutorFactory[Write]) -> Store:
    """Open the store of a member.

    Raises:
        StorageError: it is another member's, is in use, or is damaged beyond repair.
        RemovedError: its member was removed from the cluster.
        ConfigurationError: it is to found a cluster, and its file is that of a joiner.
    """
    others = has_others(config)
    with advising_recovery(config):
        if config.join and not (config.directory / "log" / DATA_FILE).exists():
            # It comes to a cluster that runs, so it is no founder.
            identity = Identity(config.cluster, config.member_id, rng.getrandbits(64))
            status = VotingStatus(VotingRight.RECOVERING)
            make_store(config.directory / "log", identity, status)
        store = Store.open(
            config.directory / "log",
            cluster=config.cluster,
            member_id=config.member_id,
            rng=rng,
            executor=executor,
            peers=others,
            journal_bytes=config.limits.journal_bytes,
        )
        if store.voting_status.kind is VotingRight.REMOVED:
            store.close()
            raise RemovedError(
                f"member {config.member_id} was removed from cluster {config.cluster!r}; its data "
                f"in {config.directory} is not needed there any more"
            )
        why_not = why_no_founder(config)
        if store.voting_status.kind is VotingRight.NEW and why_not:
            store.close()
            raise ConfigurationError(
                f"{why_not}. If it is to join a cluster that runs, empty its directory instead, "
                "except for node.toml"
            )
        lost = store.recorded.lost
        if lost == EMPTY_LOG or others:
            return store
        store.close()
        raise DamagedRecordError(
            member_id=config.member_id,
            term=lost[0],
            position=lost[1] - 1,
            reason="the end of the log, which was damaged, has not come back",
        )


def check_arguments(config: object, service: object) -> None:
    """Refuse arguments that are no configuration or no service, and Python without assertions.

    None is the key-value service.

    Raises:
        ConfigurationError: it names what is missing.
    """
    check_interpreter()
    if not isinstance(config, NodeConfig):
        raise ConfigurationError(f"config = {config!r:.80}: expected a NodeConfig; see load_config")
    needed = [name for name in vars(Service) if not name.startswith("_")]
    missing = [name for name in needed if not hasattr(service, name)]
    if service is not None and (missing or isinstance(service, type)):
        what = f"it has no {', '.join(missing)}" if missing else "this is the class"
        raise ConfigurationError(f"service = {service!r:.80}: expected a Service, but {what}")


def service_of(config: NodeConfig, store: Store, service: Service) -> Service:
    """Return the state machine that a member runs: the given one, unless it is a witness.

    Raises:
        ConfigurationError: it is a witness by its file, and not by its log.
    """
    if not config.own.witness:
        return service
    known = max(store.start_position, store.last_commit_position)
    check_role(config, Configurations(config, store).at(known))
    return WitnessService.in_place_of(service, store)


def check_service(config: NodeConfig, store: Store, service: Service) -> None:
    """Refuse a service of another kind than the log's, or one that is ahead of the log.

    Raises:
        StoreMismatchError: the log is of another service.
        StorageError: it is ahead.
        ConfigurationError: its kind is no name.
    """
    kind, known = kind_of(service), store.recorded.service
    if not known and (config.directory / "tables" / DATA_FILE).exists():
        known = KEY_VALUE  # made by an older version, which did not note the kind
    if known and known != kind:
        raise StoreMismatchError(
            f"{config.directory}: this is the directory of {known!r}, opened with {kind!r}. Give "
            "each service a directory, and a cluster, of its own"
        )
    # A log that has lost its end may be behind the service: other members have that end.
    if service.position > store.append_position and store.recorded.lost == EMPTY_LOG:
        raise StorageError(
            f"member {config.member_id}: the service is at {service.position}, but the log "
            f"ends at {store.append_position}: they do not belong together"
        )
