"""Consensus metadata for the tests of the log."""

from nyala.common.ids import OpId, ServerUuid
from nyala.raft.membership import Configuration, Member
from tests.unit.wal.support.wal_harness import UUID

CONFIG = Configuration(
    (
        Member(UUID, "127.0.0.1:9050", "127.0.0.1:7050"),
        Member(ServerUuid("cd" * 16), "127.0.0.1:9150", voter=False, promote=True, electable=False),
    ),
    OpId(2, 17),
)
