"""Clients and forks: refused in the child at once, and never waited for."""

import os

from nyala.common.errors import InvalidArgument
from nyala.env import loop_thread
from nyala.env.loop_thread import LoopThread


def in_child(work):
    """Return the result or the error message of `work` in a forked child."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            results = work()
        except InvalidArgument as err:
            results = err.message
        os.write(writer, results.encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as stream:
        results = stream.read()
    os.waitpid(child, 0)
    return results


def use(loop):
    async def run():
        return "it ran"

    return loop.run(run())


def make():
    LoopThread("another")
    return "one was made"


def test_forked_child_of_process_with_client_gets_error_with_remedy():
    loop = LoopThread("test")
    try:
        assert use(loop) == "it ran"
        results = [in_child(lambda: use(loop)), in_child(make)]
    finally:
        loop.close()
    for words in (*results, in_child(make)):  # closed or not
        assert "forked from one that had a client" in words
        assert "get_context('spawn')" in words


def test_forked_child_of_process_without_client_may_connect(monkeypatch):
    monkeypatch.setattr(loop_thread, "_first_pid", [])
    assert in_child(make) == "one was made"
