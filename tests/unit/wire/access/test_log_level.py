"""SetLogLevel on a real port: the level changes, only for administrators, with a line in the audit log."""

import asyncio
import json
import logging

import pytest
import uvloop

from nyala.admin import log_level
from nyala.admin.auditing import Auditor
from nyala.common.errors import Forbidden, InvalidArgument
from nyala.env.env import system_env
from nyala.security.principal import AccessRole
from nyala.wire import methods
from nyala.wire.channels import GrpcRpc
from nyala.wire.proto import nyala_pb2 as pb
from nyala.wire.server import GrpcServer
from tests.unit.security.certificates import server, user

pytestmark = pytest.mark.row("A18")

NAME = "nyala.test_log_level"


@pytest.fixture
def logger():
    """A logger whose level is restored."""
    found = logging.getLogger(NAME)
    yield found
    found.setLevel(logging.NOTSET)


def ask(request, credentials, folder):
    """Call the method; return its answer, or raise its error."""

    async def scenario():
        (folder / "instance").touch()
        rpc = GrpcRpc(credentials=credentials)
        env = system_env(rpc)
        audit = Auditor(env, str(folder))
        made = GrpcServer(log_level.handlers(), "127.0.0.1:0", credentials=server(), audit=audit)
        address = await made.start()
        try:
            return await rpc.call(address, methods.SET_LOG_LEVEL, request, timeout_ms=10_000)
        finally:
            await rpc.close()
            await made.stop(0)
            await audit.close()
            await env.tasks.close()

    return uvloop.run(scenario())


def test_level_is_changed_by_an_administrator_and_audited(logger, tmp_path):
    request = pb.SetLogLevelRequest(name=NAME, level="debug")
    before = logging.getLevelName(logger.getEffectiveLevel())
    assert ask(request, user(AccessRole.ADMIN), tmp_path).previous == before
    assert logger.level == logging.DEBUG
    lines = (tmp_path / "audit" / "audit.log").read_text().splitlines()
    called, result = (json.loads(line) for line in lines)
    assert called["about"] == {"name": NAME, "level": "debug"}
    assert (called["method"], called["who"]) == (methods.SET_LOG_LEVEL.path, "admin admin")
    assert result["result"] == "OK"


@pytest.mark.parametrize("caller", [AccessRole.READER, AccessRole.OWNER, "server"])
def test_others_are_refused(logger, tmp_path, caller):
    credentials = server() if caller == "server" else user(caller)
    with pytest.raises(Forbidden):
        ask(pb.SetLogLevelRequest(name=NAME, level="DEBUG"), credentials, tmp_path)
    assert logger.level == logging.NOTSET


@pytest.mark.parametrize(
    ("name", "level", "expected"),
    [("asyncio", "DEBUG", "no logger of a server"), ("nyalax", "DEBUG", "no logger of a server"),
     ("nyala.test_log_levle", "DEBUG", f"has no logger 'nyala.test_log_levle'; .* {NAME}"),
     ("nyala.x" + "y" * 5000, "DEBUG", "has no logger"),
     (NAME, "LOUD", "no level; use one of DEBUG, INFO, WARNING, ERROR"), (NAME, "", "no level")],
)  # fmt: skip
def test_other_loggers_and_levels_are_refused(logger, name, level, expected):
    with pytest.raises(InvalidArgument, match=expected):
        asyncio.run(log_level.set_log_level(pb.SetLogLevelRequest(name=name, level=level)))
    assert logger.level == logging.NOTSET
