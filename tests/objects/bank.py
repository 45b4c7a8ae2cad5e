"""A bank with replicated accounts, for the tests and for the simulation."""

from random import Random

import attrs
import msgspec

from quorate import Command
from quorate.objects import Counter, LockManager, Replicated, ReplicatedDict, query, replicated
from quorate.objects.caller import Caller
from quorate.objects.machine import ObjectsMachine
from quorate.objects.sessions import Session
from quorate.objects.wire import Batch, Call, batch_untrusted, encode
from quorate.simulation import Sample


class Entry(msgspec.Struct, frozen=True):
    who: str
    amount: int


class Bank(Replicated):
    """Accounts, which are never below 0, and the last entries."""

    accounts: dict[str, int]
    entries: list[Entry]
    notes: dict[str, dict[str, list[int]]]
    best: str | None = None

    def __init__(self, name: str = "bank") -> None:
        super().__init__(name)
        self.accounts = {}
        self.entries = []
        self.notes = {}

    @replicated(version=2)
    def pay(self, who: str, amount: int, fee: int = 0) -> int:
        self.entries.append(Entry(who, amount))
        del self.entries[:-10]
        self.accounts[who] = self.accounts.get(who, 0) + amount - fee
        self.best = max(self.accounts, key=lambda each: (self.accounts[each], each))
        self.notes.setdefault(who, {}).setdefault("paid", []).append(amount)
        del self.notes[who]["paid"][:-3]
        if self.accounts[who] < 0:
            raise ValueError(f"{who} has too little")
        return self.accounts[who]

    @replicated(version=1, name="pay")
    def pay_1(self, who: str, amount: int) -> int:
        self.accounts[who] = self.accounts.get(who, 0) + amount
        return self.accounts[who]

    @replicated
    def close(self, who: str) -> int:
        self.notes.pop(who, None)
        return self.accounts.pop(who, 0)

    @query
    def balance(self, who: str) -> int:
        return self.accounts.get(who, 0)

    @query
    def cheat(self, who: str) -> int:
        self.notes[who]["paid"].append(1_000_000)
        return 0


class Machine(ObjectsMachine):
    """The state machine of such a bank; `sample` draws what callers of it send."""

    def __init__(self) -> None:
        self.bank = Bank()
        self.hits = Counter("hits")
        self.names: ReplicatedDict[str, int] = ReplicatedDict("names", str, int)
        super().__init__([self.bank, self.hits, self.names, LockManager("locks")], Caller(60.0))
        self._sessions.by_id[1] = Session()

    def apply(self, command: Command) -> bytes:
        """Apply a batch; a sequence counts from the last one of session 1, so 0 repeats it."""
        batch = batch_untrusted(command.payload)
        if batch.session:
            last = self._sessions.by_id[1].sequence
            batch = Batch(1, last + batch.sequence, batch.calls)
            command = attrs.evolve(command, payload=encode(batch))
        return super().apply(command)

    @staticmethod
    def sample(rng: Random) -> Sample:
        """Draw a batch of calls: of a session that may exist, opened by one of these."""
        who = rng.choice("abc")
        if rng.randrange(4) == 0:
            arguments = msgspec.msgpack.encode([who])
            return Sample(encode(Call("bank", "balance", 0, arguments)), query=True)
        calls = rng.choice(
            [
                Call("bank", "pay", 2, msgspec.msgpack.encode([who, rng.randrange(-20, 20), 1])),
                Call("bank", "pay", 1, msgspec.msgpack.encode([who, rng.randrange(20)])),
                Call("bank", "close", 1, msgspec.msgpack.encode([who])),
                Call("hits", "add", 1, msgspec.msgpack.encode([rng.choice([1, 2**62])])),
                Call("names", "set", 1, msgspec.msgpack.encode([who, 1])),
                Call("locks", "acquire", 1, msgspec.msgpack.encode(["l", who, 2000])),
                Call("bank", "pay", 2, b"nonsense"),
            ]
        )
        session, step = rng.choice([0, 1, 1, 1]), rng.choice([0, 1, 1, 1, 2])
        return Sample(encode(Batch(session, step, (calls, calls))))
