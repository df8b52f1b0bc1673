"""Freed memory beyond a bound is returned to the system, and kept below it."""

import os
import subprocess
import sys

import pytest

from nyala.env.allocator import Allocator
from nyala.testing.forkserver import MALLOC
from tests.waiting import within

pytestmark = pytest.mark.skipif(
    not Allocator().free_bytes(), reason="this C library does not tell how much memory is free"
)
LIFE = """
import asyncio, re, sys
from nyala.env import allocator
from nyala.env.env import system_env
from nyala.wire.channels import GrpcRpc

allocator.CHECK_INTERVAL_MS = 1

def resident():
    return int(re.search(r"RssAnon:\\s+(\\d+)", open("/proc/self/status").read())[1]) << 10

async def main(most):
    env = system_env(GrpcRpc())
    held = [b"x" * 100_000 for _ in range(2000)]
    full = resident()
    del held
    if most:
        env.tasks.spawn(allocator.bound_free_memory(env, most), "bound free memory")
        for _ in range(60_000):
            if full - resident() > 150_000_000:
                break
            await env.tasks.sleep_ms(1)
    print(full - resident())

asyncio.run(main(int(sys.argv[1])))
"""


def returned(most_bytes: int) -> int:
    """Return the MB of 200 freed ones that a process has returned; 0: without the bound."""
    done = subprocess.run(
        [sys.executable, "-c", LIFE, str(most_bytes)],
        env={**os.environ, **MALLOC}, capture_output=True, text=True, timeout=within(120), check=True,
    )  # fmt: skip
    return int(done.stdout)


@pytest.mark.full
def test_freed_memory_beyond_bound_is_returned_to_system():
    assert returned(0) < 50_000_000, "without the bound the allocator keeps freed memory"
    assert returned(50_000_000) > 150_000_000


def test_freed_memory_below_bound_is_kept():
    looked = """
import asyncio
from nyala.env import allocator
from nyala.env.env import system_env
from nyala.wire.channels import GrpcRpc

trims, looks = [], []
class Counted(allocator.Allocator):
    def free_bytes(self):
        looks.append(1)
        return 100
    def trim(self):
        trims.append(1)

allocator.Allocator, allocator.CHECK_INTERVAL_MS = Counted, 1

async def main():
    env = system_env(GrpcRpc())
    env.tasks.spawn(allocator.bound_free_memory(env, 100), "bound free memory")
    for _ in range(60_000):
        if len(looks) > 3:
            break
        await env.tasks.sleep_ms(1)
    print(len(looks) > 3, len(trims))

asyncio.run(main())
"""
    done = subprocess.run(
        [sys.executable, "-c", looked],
        capture_output=True,
        text=True,
        timeout=within(120),
        check=True,
    )
    assert done.stdout.split() == ["True", "0"]
