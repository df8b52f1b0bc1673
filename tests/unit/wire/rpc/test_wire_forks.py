"""A process with a working client may fork, as Spark's driver does to start its JVM."""

import subprocess
import sys

from tests.waiting import within

SCRIPT = """
import asyncio, subprocess, sys, threading
from nyala.wire.channels import GrpcRpc
from nyala.wire import methods
from nyala.wire.proto import nyala_pb2 as pb
from nyala.common.errors import NyalaError

async def busy(stop):
    rpc = GrpcRpc()
    while not stop.is_set():
        try:
            await rpc.call("127.0.0.1:1", methods.SERVER_INFO, pb.ServerInfoRequest(), timeout_ms=50)
        except NyalaError:
            pass
    await rpc.close()

stop = threading.Event()
thread = threading.Thread(target=lambda: asyncio.run(busy(stop)))
thread.start()
# preexec_fn makes it a real fork, as PySpark's gateway uses it
ends = [subprocess.run(["true"], preexec_fn=lambda: None).returncode for _ in range(60)]
stop.set()
thread.join()
sys.exit(any(ends))
"""


def test_fork_during_calls_leaves_child_process_unaffected():
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=within(180)
    )
    assert run.returncode == 0, run.stderr[-1000:]
