"""Members that decode entries with another library do not apply them."""

import pytest
from google.protobuf.internal import api_implementation

from quorate.errors import ConfigurationError
from tests.support.etcd_tables import Machine


def test_a_member_with_another_library_applies_nothing_and_names_the_way_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine = Machine()
    monkeypatch.setattr(api_implementation, "Type", lambda: "python")
    with pytest.raises(ConfigurationError, match=r"expected 'upb'.*install protobuf from a wheel"):
        machine.put(b"a")
    monkeypatch.undo()
    assert machine.state.revision == 1
