"""What the system refuses is an error of its own: neither damage nor want of room."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import pytest

from quorate.errors import StorageError, StoreAccessError, StoreFullError
from quorate.storage.lmdb.environment import translating_errors

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.EACCES, StoreAccessError),
        (errno.EPERM, StoreAccessError),
        (errno.EROFS, StoreAccessError),
        (errno.ENOTDIR, StoreAccessError),
        (errno.ENOSPC, StoreFullError),
        (errno.EIO, StorageError),
    ],
    ids=lambda value: errno.errorcode[value] if isinstance(value, int) else "",
)
def test_each_error_of_the_system_is_one_of_the_tree(
    tmp_path: Path, number: int, kind: type[StorageError]
) -> None:
    with pytest.raises(StorageError, match=str(tmp_path)) as caught, translating_errors(tmp_path):
        raise OSError(number, os.strerror(number))
    assert type(caught.value) is kind
