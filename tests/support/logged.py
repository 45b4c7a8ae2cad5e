"""What was logged, as events with their fields."""

from typing import Any

import pytest


def events(caplog: pytest.LogCaptureFixture, name: str) -> list[dict[str, Any]]:
    """The fields of each event of a name, in the order of time."""
    found = [record for record in caplog.records if getattr(record, "event", "") == name]
    return [getattr(record, "fields", {}) for record in found]
