"""The errors of the one tree."""

import pytest

from quorate.errors import DamagedRecordError


@pytest.mark.parametrize("reason", ["", "checksum 7, expected 8", "at: member 1"])
def test_damage_is_read_back_from_a_traceback(reason: str) -> None:
    error = DamagedRecordError(member_id=2, term=-1, position=3264, reason=reason)
    quoted = f"Traceback:\n  File x\nquorate.errors.DamagedRecordError: {error}\n\tat java.lang\n"
    found = DamagedRecordError.quoted_in(quoted)
    assert found is not None
    assert (found.member_id, found.term, found.position, found.reason) == (2, -1, 3264, reason)
    assert str(found) == str(error)
    assert DamagedRecordError.quoted_in("member 2: nothing") is None
