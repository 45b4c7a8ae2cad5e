"""Identities: the URIs that certificates may have, and what each may open."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from quorate.errors import WireError
from quorate.keyvalue.slots.cluster_map import META, group_name
from quorate.transport import StreamPurpose
from quorate.transport.identity import (
    Identity,
    Purpose,
    identity_untrusted,
    parse_identity_untrusted,
)

NAMES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", fullmatch=True)


@given(NAMES, st.sampled_from(list(Purpose)), NAMES, st.integers(0, 2**31 - 1))
def test_an_identity_is_written_and_read(
    cluster: str, purpose: Purpose, name: str, member: int
) -> None:
    made = Identity(cluster, purpose, str(member) if purpose is Purpose.MEMBER else name)
    assert parse_identity_untrusted(str(made)) == made
    assert made.member_id == (member if purpose is Purpose.MEMBER else None)


@given(st.text(max_size=80) | st.text(max_size=20).map("quorate://c/member/".__add__))
@example("quorate://c/member/01")
@example("quorate://c/member/2147483648")
@example("quorate://c/member/\u0661")
@example("quorate://c/member/1\n")
@example("quorate://c/root/1")
@example("quorate://c/member/")
@example("quorate:///member/1")
@example("quorate://c/member/1/2")
def test_any_other_text_is_refused_or_comes_back_as_it_was(text: str) -> None:
    try:
        found = parse_identity_untrusted(text)
    except WireError:
        return
    assert str(found) == text


def test_a_certificate_has_one_name_of_ours() -> None:
    one, other = "quorate://c/member/1", "quorate://c/member/2"
    assert identity_untrusted(["https://example.org", one]).name == "1"
    for names in ([], ["https://example.org"], [one, other], [one, one]):
        with pytest.raises(WireError, match=r"names quorate://\.\.\., expected one"):
            identity_untrusted(names)


def test_what_each_purpose_may_open() -> None:
    def opens(purpose: Purpose) -> set[StreamPurpose]:
        return {each for each in StreamPurpose if Identity("c", purpose, "1").may_open(each)}

    assert opens(Purpose.MEMBER) == set(StreamPurpose)
    for purpose in (Purpose.READER, Purpose.BACKUP):
        assert not opens(purpose) & {StreamPurpose.CONSENSUS, StreamPurpose.CATCHUP}
        assert opens(purpose) >= {
            StreamPurpose.REPLAY,
            StreamPurpose.SNAPSHOT,
            StreamPurpose.BACKUP,
        }
    assert not opens(Purpose.CLIENT)


def test_a_certificate_of_a_cluster_is_one_of_each_of_its_groups() -> None:
    own = Identity.member("orders", 1)
    assert own.is_of("orders")
    for partition in (META, 0, 63):
        assert own.is_of(group_name("orders", partition))
        assert not own.is_of(group_name("order", partition))
    for other in ("orders.p", "orders.p100", "orders.meta.p1", "orders.px", "ordersXmeta", ""):
        assert not own.is_of(other)
    # One of a group is none of the others, nor of the cluster.
    group = Identity.member("orders.p1", 1)
    assert [group.is_of(name) for name in ("orders.p1", "orders.p2", "orders")] == [
        True,
        False,
        False,
    ]
