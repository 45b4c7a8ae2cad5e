"""Replicated objects: a bank on three members in one program.

Run it with ``python examples/bank.py``; it prints what each member holds. docs/objects.md explains.
"""

import sys
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path

import trio

import quorate
from quorate import objects


class Bank(objects.Replicated):
    """Accounts that are never below 0."""

    accounts: dict[str, int]

    def __init__(self, name: str = "bank") -> None:
        super().__init__(name)
        self.accounts = {}

    @objects.replicated
    def pay(self, who: str, amount: int) -> int:
        """Add to an account; return what is on it."""
        self.accounts[who] = self.accounts.get(who, 0) + amount
        if self.accounts[who] < 0:
            raise ValueError(f"{who} has too little")  # undoes the line above, on all members
        return self.accounts[who]

    @objects.query
    def balance(self, who: str) -> int:
        """Return what is on an account."""
        return self.accounts.get(who, 0)


async def main(directory: Path) -> list[int]:
    """Run three members, pay through all of them; return what each says that Ann has."""
    banks = [Bank() for _ in range(3)]
    async with AsyncExitStack() as stack:
        for config, bank in zip(quorate.local_configs(3, directory), banks, strict=True):
            await stack.enter_async_context(objects.open_objects(config, [bank]))
        for number in range(1, 11):
            await banks[number % 3].pay("ann", number)
        try:
            await banks[0].pay("ann", -100)
        except quorate.CallError as error:
            sys.stdout.write(f"{error}\n")
        return [await bank.balance("ann") for bank in banks]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        sys.stdout.write(f"every member holds {trio.run(main, Path(folder))}\n")
