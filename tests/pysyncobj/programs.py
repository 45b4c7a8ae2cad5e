"""The classes of PySyncObj's example programs, with its import replaced and types added.

Shortened from examples/counter.py, kvstorage.py, kvstorage_http.py and lock.py of PySyncObj 0.3.14
(https://github.com/bakwc/PySyncObj), which are:

    The MIT License (MIT). Copyright (c) 2016 Filipp Ozinov

    Permission is hereby granted, free of charge, to any person obtaining a copy of this software
    and associated documentation files (the "Software"), to deal in the Software without
    restriction, including without limitation the rights to use, copy, modify, merge, publish,
    distribute, sublicense, and/or sell copies of the Software, and to permit persons to whom the
    Software is furnished to do so, subject to the following conditions: The above copyright notice
    and this permission notice shall be included in all copies or substantial portions of the
    Software. THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED.
"""
# ruff: noqa: N802, N803, N806, UP008, SIM102

from typing import Any

from quorate.pysyncobj import SyncObj, SyncObjConf, replicated


class TestObj(SyncObj):
    """Of counter.py."""

    __test__ = False  # its name is that of the example, and pytest must not take it

    def __init__(self, selfNodeAddr: str, otherNodeAddrs: list[str]) -> None:
        super(TestObj, self).__init__(selfNodeAddr, otherNodeAddrs)
        self.__counter = 0

    @replicated
    def incCounter(self) -> int:
        self.__counter += 1
        return self.__counter

    @replicated
    def addValue(self, value: int, cn: int) -> tuple[int, int]:
        self.__counter += value
        return self.__counter, cn

    def getCounter(self) -> int:
        return self.__counter


class KVStorage(SyncObj):
    """Of kvstorage.py and kvstorage_http.py."""

    def __init__(self, selfAddress: str, partnerAddrs: list[str], dumpFile: str) -> None:
        conf = SyncObjConf(fullDumpFile=dumpFile, dynamicMembershipChange=True)
        super(KVStorage, self).__init__(selfAddress, partnerAddrs, conf)
        self.__data: dict[str, str] = {}

    @replicated
    def set(self, key: str, value: str) -> None:
        self.__data[key] = value

    @replicated
    def pop(self, key: str) -> None:
        self.__data.pop(key, None)

    def get(self, key: str) -> str | None:
        return self.__data.get(key, None)


class LockImpl(SyncObj):
    """Of lock.py."""

    def __init__(self, selfAddress: str, partnerAddrs: list[str], autoUnlockTime: float) -> None:
        super(LockImpl, self).__init__(selfAddress, partnerAddrs)
        self.__locks: dict[str, tuple[str, float]] = {}
        self.__autoUnlockTime = autoUnlockTime

    @replicated
    def acquire(self, lockPath: str, clientID: str, currentTime: float) -> bool:
        existingLock = self.__locks.get(lockPath, None)
        # Auto-unlock old lock
        if existingLock is not None:
            if currentTime - existingLock[1] > self.__autoUnlockTime:
                existingLock = None
        # Acquire lock if possible
        if existingLock is None or existingLock[0] == clientID:
            self.__locks[lockPath] = (clientID, currentTime)
            return True
        # Lock already acquired by someone else
        return False

    @replicated
    def ping(self, clientID: str, currentTime: float) -> None:
        for lockPath in self.__locks.keys():  # noqa: SIM118
            lockClientID, lockTime = self.__locks[lockPath]

            if currentTime - lockTime > self.__autoUnlockTime:
                del self.__locks[lockPath]
                continue

            if lockClientID == clientID:
                self.__locks[lockPath] = (clientID, currentTime)

    @replicated
    def release(self, lockPath: str, clientID: str) -> None:
        existingLock = self.__locks.get(lockPath, None)
        if existingLock is not None and existingLock[0] == clientID:
            del self.__locks[lockPath]

    def isAcquired(self, lockPath: str, clientID: str, currentTime: float) -> bool:
        existingLock = self.__locks.get(lockPath, None)
        if existingLock is not None:
            if existingLock[0] == clientID:
                if currentTime - existingLock[1] < self.__autoUnlockTime:
                    return True
        return False


def onAdd(res: Any, err: Any, cnt: int) -> None:
    """Of counter.py."""
    print("onAdd %d:" % cnt, res, err)  # noqa: T201, UP031
