"""Invalid input at the peer port of a real tablet server: refused, counted by kind, no state changed."""

import socket
import urllib.request

import pyarrow as pa
import pytest

from nyala.common.ids import OpId, ServerUuid, TabletId
from nyala.raft.messages import (
    AppendEntries,
    AppendReply,
    Entry,
    EntryKind,
    PeerBatch,
    RequestVote,
)
from nyala.wire import methods
from nyala.wire.frames import HEADER, MAX_NUMBER, FrameKind, encode_frame
from nyala.wire.proto import nyala_pb2 as pb
from tests.cluster.support import leading
from tests.cluster.support.direct import Direct
from tests.waiting import wait_until, within

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])


def op(index, term=1):
    return Entry(OpId(term, index), 1 << 62, EntryKind.OPERATION, b"")


class Target:
    """A follower of a table's tablet, and messages to it from an unknown server or the other follower."""

    def __init__(self, cluster, direct, table):
        self.leader = leading.leader(cluster, table.name)
        others = (n for n in cluster.names if n.startswith("tserver") and n != self.leader)
        self.name, other = others
        self.cluster, self.direct = cluster, direct
        info, member = (
            direct.ask(cluster.address(name), methods.SERVER_INFO, pb.ServerInfoRequest())
            for name in (self.name, other)
        )
        self.peer_address, self.cluster_id = info.peer_address, info.cluster_id
        self.uuid, self.unknown = ServerUuid(info.uuid), ServerUuid("9" * 32)
        self.member = ServerUuid(member.uuid)
        (self.tablet,) = (TabletId(t.id) for t in table.tablets())

    def told_by(self, name):
        request = pb.ListTabletsRequest(tablet_ids=[self.tablet])
        answer = self.direct.ask(self.cluster.address(name), methods.LIST_TABLETS, request)
        (found,) = answer.tablets
        return found

    def until_level(self):
        """Wait until the follower has all that the leader has: from then on its state is constant."""

        def level():
            mine, leaders = self.told_by(self.name), self.told_by(self.leader)
            return mine.last_index == leaders.last_index == mine.applied_index

        wait_until(level, "the follower has all entries")

    def status(self):
        found = self.told_by(self.name)
        consensus = found.report.consensus
        return (
            found.report.state, found.report.role, consensus.term, found.vote, found.last_index,
            consensus.leader,
        )  # fmt: skip

    def frame(self, message=None, *, group=None, to=None, cluster=None, sender=None):
        messages = () if message is None else ((group or self.tablet, message),)
        kind = FrameKind.HELLO if message is None else FrameKind.BATCH
        batch = PeerBatch(sender or self.unknown, to or self.uuid, 0, messages)
        return encode_frame(batch, self.cluster_id if cluster is None else cluster, kind)

    def send_frames(self, *frames):
        """Send frames on a connection of their own, and close it."""
        host, _, port = self.peer_address.rpartition(":")
        with socket.create_connection((host, int(port)), timeout=within(60)) as connection:
            connection.sendall(b"".join(frames))

    def counted(self, why):
        url = f"http://{self.cluster.web_address(self.name)}/metrics"
        with urllib.request.urlopen(url, timeout=within(60)) as answer:
            lines = answer.read().decode().splitlines()
        found = [
            float(line.split()[-1])
            for line in lines
            if "_refused_" in line and "_total{" in line and f'why="{why}"' in line
        ]
        return sum(found)


def cases(t):
    """Return bytes sent after a proper hello (or instead of one), by the reason counted."""
    names = {"sender": t.unknown, "to": t.uuid}
    beat = AppendEntries(**names, term=1)
    good = t.frame()
    members = {"sender": t.member, "to": t.uuid}
    hello = t.frame(sender=t.member)
    gap = AppendEntries(**members, term=9, previous=OpId(1, 1), entries=(op(7, 9),))
    falls = AppendEntries(**members, term=9, previous=OpId(9, 1), entries=(op(2, 3),))
    return [
        ("cluster", [t.frame(cluster="d" * 32)]),
        ("destination", [t.frame(to=ServerUuid("8" * 32))]),
        ("group", [good, t.frame(RequestVote(**names, term=99, last=OpId(9, 9)), group="5" * 32)]),
        ("number", [good, t.frame(RequestVote(**names, term=MAX_NUMBER + 1, last=OpId(9, 9)))]),
        (
            "number",
            [good, t.frame(AppendEntries(**names, term=9, previous=OpId(1, -1 % (1 << 64))))],
        ),
        ("number", [good, t.frame(AppendReply(**names, term=1, success=True, match=1 << 63))]),
        ("corrupt", [hello, t.frame(gap, sender=t.member)]),
        ("corrupt", [hello, t.frame(falls, sender=t.member)]),
        ("truncated", [good, t.frame(beat)[:-3]]),
        ("checksum", [good, t.frame(beat)[:-1] + b"\xff"]),
        ("oversized", [good, HEADER.pack(b"NYPF", 3, 2, 0, 0xFFFF_FFFF, 0)]),
        ("malformed", [b"GET / HTTP/1.1\r\n\r\n" * 2]),
        ("no hello", [t.frame(beat)]),
        ("sender", [good, t.frame(beat, sender=ServerUuid("7" * 32))]),
        ("sender", [good, t.frame(AppendEntries(**names, term=9))]),
    ]


@pytest.mark.parametrize("number", range(15))
def test_invalid_peer_messages_change_nothing_and_are_counted(bad_peers, number):
    target, table = bad_peers
    why, frames = cases(target)[number]
    target.until_level()
    before, counted = target.status(), target.counted(why)
    target.send_frames(*frames)
    wait_until(lambda: target.counted(why) > counted, f"{why} is counted")
    assert target.status() == before
    table.upsert([{"k": number, "v": number}]).raise_for_errors()
    assert table.get({"k": number}) == {"k": number, "v": number}


@pytest.mark.full
def test_silent_peer_connection_is_closed(bad_peers):
    target, _ = bad_peers
    counted = target.counted("silent")
    host, _, port = target.peer_address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=within(60)) as connection:
        assert connection.recv(1) == b""
    wait_until(lambda: target.counted("silent") > counted, "the silent connection is counted")


@pytest.fixture(scope="module")
def bad_peers(cluster):
    with cluster.connect() as client, Direct() as direct:
        table = client.create_table("bad_peers", SCHEMA, ["k"])
        table.upsert([{"k": 1, "v": 1}]).raise_for_errors()
        yield Target(cluster, direct, table), table
