"""The suites, where they come from, and what fails here for a reason."""

from collections.abc import Mapping
from typing import Final

import attrs

USERS = "users and roles are those of the replicated ACL, set by ACL SETUSER"
TLS = "the shim has no TLS"
ALARMS = "members raise and end their alarms themselves"
FILE = "a snapshot of etcd is a bbolt file; here `quorate backup` makes backups"
NAMES = "the test compares the names of members; here they are member-0, member-1, ..."
MEMBERS = "`quorate member add` adds members; URLs are those of the configuration"
ORDER = "the fields of an error in JSON are in the order of etcd 3.5, not of 3.4"
OWN = "it fails next to etcd, too: the suite is older than its libraries"
FIXED = "it fails next to etcd, too: it asks localhost:2379, whatever the URL is"


@attrs.frozen
class Suite:
    """A suite in Python.

    Args:
        source: requirement of the package that has the tests.
        requirements: what else is installed, with versions where newer ones break the suite.
        tests: path of the tests, in the folder of the unpacked archive.
        variables: of the environment; ``{url}`` and ``{port}`` stand for a member.
        options: of pytest.
        known: what fails, and why.
    """

    source: str
    requirements: tuple[str, ...]
    tests: str
    variables: Mapping[str, str]
    options: tuple[str, ...] = ()
    known: Mapping[str, str] = attrs.field(factory=dict[str, str])


_COMMON: Final = ("pytest", "pytest-timeout", "pytest-asyncio", "pytest-mock", "mock")

SUITES: Final = {
    "etcd3gw": Suite(
        "etcd3gw==2.7.0",
        (*_COMMON, "oslotest", "ddt"),
        "etcd3gw/tests",
        {"TOOZ_TEST_ETCD_PORT": "{port}", "TOOZ_TEST_HTTP_URL": "{url}"},
    ),
    "tooz": Suite(
        "tooz==9.1.0",
        (*_COMMON, "etcd3gw==2.7.0", "oslotest", "ddt", "sysv_ipc", "zake", "pymemcache", "redis"),
        "tooz/tests/test_coordination.py",
        {"TOOZ_TEST_URL": "etcd3+{url}"},
    ),
    "aetcd": Suite(
        "aetcd==1.0.0",
        _COMMON,
        "tests",
        {"TEST_ETCD_HTTP_URL": "{url}", "ETCDCTL_API": "3"},
        ("--with-cluster", "-o", "addopts=", "-o", "asyncio_mode=auto"),
        {
            "test_auth": USERS,
            "test_member_list": NAMES,
            "test_create_alarm_all_members": ALARMS,
            "test_create_alarm_specific_member": ALARMS,
            "test_list_alarms": ALARMS,
            "test_disarm_alarm": ALARMS,
            "test_snapshot": FILE,
        },
    ),
    "etcd3": Suite(
        "etcd3==0.12.0",
        (*_COMMON, "hypothesis", "protobuf==3.20.3"),
        "tests",
        {"PYTHON_ETCD_HTTP_URL": "{url}", "ETCDCTL_API": "3", "TEST_ETCD_VERSION": "v3.4.23"},
        known={
            "test_get_key": OWN,
            "test_get_random_key": OWN,
            "test_get_key_serializable": OWN,
            "test_get_have_cluster_revision": OWN,
            "test_put_key": OWN,
            "test_put_has_cluster_revision": OWN,
            "test_put_has_prev_kv": OWN,
            "test_put_if_not_exists": OWN,
            "test_lock_acquire": OWN,
            "test_lock_contended": OWN,
            "test_lock_double_acquire_release": OWN,
            "test_lock_acquire_none": OWN,
            "test_compact": FIXED,
            "test_member_list": NAMES,
            "test_create_alarm_all_members": FIXED,
            "test_create_alarm_specific_member": FIXED,
            "test_list_alarms": FIXED,
            "test_disarm_alarm": FIXED,
            "test_snapshot": FILE,
            "test_user_pwd_auth": OWN,
        },
    ),
}

LEFT_OUT: Final = (
    (
        "CertCN|ClientTLS|AutoTLS|AllTLS|_TLS_|CipherSuites|RevokedCRL|HTTPScheme|MoveLeader.*s$",
        TLS,
    ),
    ("Auth|User|Role", USERS),
    ("Migrate", "it moves data of the API of version 2"),
)
"""Tests of etcd's own that are not run: a pattern of names, and why."""

WITHOUT_TLS: Final = ["TestCtlV3MoveLeaderScenarios/Insecure"]
"""Parts of tests whose other parts need TLS."""

KNOWN_END_TO_END: Final = {
    "TestCtlV3Alarm": "the store has no quota of its own that a test could exceed",
    "TestCtlV3GetFormat": "the test has etcd's ids of the cluster and its members, as bytes",
    "TestCtlV3MemberAdd": MEMBERS,
    "TestCtlV3MemberAddNoTLS": MEMBERS,
    "TestCtlV3MemberAddPeerTLS": MEMBERS,
    "TestCtlV3MemberAddForLearner": MEMBERS,
    "TestCtlV3MemberUpdate": MEMBERS,
    "TestCtlV3MemberUpdateNoTLS": MEMBERS,
    "TestCtlV3MemberUpdatePeerTLS": MEMBERS,
    "TestCtlV3Snapshot": FILE,
    "TestCtlV3SnapshotCorrupt": FILE,
    "TestCtlV3SnapshotStatusBeforeRestore": FILE,
    "TestV3CurlProclaimMissiongLeaderKeyNoTLS": ORDER,
    "TestV3CurlResignMissiongLeaderKeyNoTLS": ORDER,
    "TestV3Curl_MaxStreams_ReachLimit_NoTLS_Small": "there is no --max-concurrent-streams",
    "TestV3Curl_MaxStreams_ReachLimit_NoTLS_Medium": "there is no --max-concurrent-streams",
}
