from __future__ import annotations
import trio
from .script import *
async def test_follow(tmp_path, autojump_clock):
    async with open_script(tmp_path) as s:
        print(trio.current_time())
        await s.follow(s.peers[1], 0)
        for t in s.transitions: print(t)
