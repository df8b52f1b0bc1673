"""`nyala local_replica cmeta ...`: rewritten once, with a backup, and only to valid configurations."""

import asyncio
import json
import os

import pytest
from typer.testing import CliRunner

from nyala.cli.main import app
from nyala.common.ids import SYS_CATALOG, OpId, ServerUuid, TabletId
from nyala.datadir.instance import format_instance
from nyala.env.files import SystemFiles
from nyala.env.tasks import LoopTasks
from nyala.raft import membership
from nyala.raft.membership import Configuration, Member
from nyala.raft.messages import Entry, EntryKind, HardState
from nyala.raft.unsafe_recovery import TERM_GAP
from nyala.replica.superblock import ReplicaStage, Superblock, Superblocks
from nyala.wal.cmeta import ConsensusMetadata
from tests.unit.wal.support.wal_harness import durable, entry, open_wal

pytestmark = pytest.mark.usefixtures("held")

U1, U2, U3 = (ServerUuid(str(n) * 32) for n in (1, 2, 3))
GROUP = TabletId("a" * 32)


def member(uuid, port):
    return Member(uuid, f"127.0.0.1:{port + 2000}", f"127.0.0.1:{port}")


def peer(uuid, port):
    return f"{uuid}:127.0.0.1:{port}/127.0.0.1:{port + 2000}"


ONE = Configuration((member(U1, 7051),), OpId(1, 4))
THREE = [peer(U1, 7051), peer(U2, 7151), peer(U3, 7251)]


@pytest.fixture
def folder(tmp_path):
    """The directory of a stopped server with the catalog's replica and a tablet's."""
    files, directory = SystemFiles(), str(tmp_path)
    format_instance(files, directory, "master", U1, replaces=False)
    for group in (SYS_CATALOG, GROUP):
        Superblocks(files, directory).save(Superblock(group, ReplicaStage.READY))
        ConsensusMetadata(files, directory).save(group, HardState(3, U1), ONE)
    return tmp_path


def logged(folder, entries, hard_state=None, group=SYS_CATALOG):
    """Write entries into the directory's log."""

    async def main():
        tasks = LoopTasks()
        wal, _ = await open_wal(SystemFiles(), tasks, directory=str(folder), uuid=U1)
        await durable(wal, group, entries, hard_state)
        await wal.close()
        await tasks.close()

    asyncio.run(main())


def changed(index, *members, term=3):
    config = membership.initial(members)
    return Entry(
        OpId(term, index), 1000 * term + index, EntryKind.CONFIG, membership.encode(config)
    )


def cmeta(folder, verb, *words):
    """(exit status, standard output, standard error)"""
    done = CliRunner().invoke(
        app, ["local_replica", "cmeta", verb, *map(str, words), "--dir", str(folder)]
    )
    return done.exit_code, done.stdout, done.stderr


def saved(folder, group=SYS_CATALOG):
    return ConsensusMetadata(SystemFiles(), str(folder)).load(group)


def everything(folder):
    return {p: p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.mark.row("S2.12")
def test_uuids_are_printed_with_addresses_also_beside_a_running_server(folder, held):
    held.add(f"{folder}/lock")
    status, stdout, _ = cmeta(folder, "print_replica_uuids", "catalog", "--format", "csv")
    assert (status, stdout.splitlines()[1]) == (
        0, f"{U1},127.0.0.1:7051,127.0.0.1:9051,True,True,True",
    )  # fmt: skip
    done = CliRunner().invoke(
        app, ["local_replica", "list", "--dir", str(folder), "--format", "json"]
    )
    assert [(r["tablet"], r["stage"], r["config"]) for r in json.loads(done.stdout)] == [
        (SYS_CATALOG, "READY", "1.4"), (GROUP, "READY", "1.4"),
    ]  # fmt: skip


@pytest.mark.row("S2.21", "S2.22")
def test_configuration_is_rewritten_once_with_backup(folder):
    before = (folder / "cmeta" / SYS_CATALOG).read_bytes()
    words = (peer(U1, 7999), *THREE[1:], "--format", "json")
    status, stdout, stderr = cmeta(folder, "rewrite_raft_config", "catalog", *words)
    assert (status, json.loads(stdout)["changed"]) == (0, True)
    assert f"to    {U1} 127.0.0.1:7999/127.0.0.1:9999" in stderr
    with open(json.loads(stdout)["backup"], "rb") as kept:
        assert kept.read() == before
    hard_state, config = saved(folder)
    assert (hard_state, config.id) == (HardState(3, U1), OpId(1, 4))
    assert [m.address[-4:] for m in config.members] == ["7999", "7151", "7251"]
    assert saved(folder, GROUP)[1] == ONE
    held = everything(folder)
    status, stdout, _ = cmeta(folder, "rewrite_raft_config", "catalog", *words)
    assert (status, json.loads(stdout)) == (0, {"changed": False, "backup": ""})
    assert everything(folder) == held


@pytest.mark.parametrize(
    ("peers", "why"),
    [
        (THREE[1:], "is not among those named"),
        (THREE[:2], "2 masters: choose an odd number"),
        ([*THREE, THREE[0]], "4 masters"),
        ([THREE[0], THREE[0], THREE[1]], "have one address"),
        ([THREE[0], peer(U2, 7051), THREE[2]], "have one address"),
        ([U1, U2, U3], "is no member now"),
        ([f"{U1}:127.0.0.1:7051"], "write UUID:HOST:PORT/PEER_HOST:PEER_PORT"),
        ([f"{U1}:nowhere/127.0.0.1:1"], "is not an address"),
        (["XY:127.0.0.1:1/127.0.0.1:2"], "32 lower-case hex digits"),
    ],
)
@pytest.mark.row("S2.18", "S2.21")
def test_invalid_configuration_is_refused_without_changes(folder, peers, why):
    before = everything(folder)
    status, _, stderr = cmeta(folder, "rewrite_raft_config", "catalog", *peers)
    assert (status, why in stderr) == (2, True), stderr
    assert everything(folder) == before


@pytest.mark.parametrize(
    ("verb", "words"),
    [("rewrite_raft_config", ("catalog", *THREE)), ("set_term", ("catalog", 9))],
)
@pytest.mark.row("S2.21", "S1.39")
def test_rewrite_beside_running_server_is_refused(folder, held, verb, words):
    held.add(f"{folder}/lock")
    before = everything(folder)
    status, _, stderr = cmeta(folder, verb, *words)
    assert (status, "stop that server first" in stderr) == (4, True)
    assert everything(folder) == before


@pytest.mark.row("S1.39")
def test_uncommitted_change_in_log_is_discarded_only_with_force(folder):
    """The pending change would be active again, and its majority may be lost."""
    logged(folder, [*map(entry, range(1, 5)), changed(5, member(U1, 7051), member(U2, 7151))])
    before = everything(folder)
    status, _, stderr = cmeta(folder, "rewrite_raft_config", "catalog", U1)
    assert (status, "a later configuration, of 3.5" in stderr) == (2, True)
    assert everything(folder) == before
    assert cmeta(folder, "rewrite_raft_config", "catalog", U1, "--force")[0] == 0
    config = saved(folder)[1]
    assert (config.id, [m.uuid for m in config.members], config.lost) == (OpId(3, 5), [U1], (U2,))
    assert saved(folder)[0] == HardState(3 + TERM_GAP), (
        "the new term is above those of the lost members"
    )


@pytest.mark.row("S2.17")
def test_single_member_has_all_committed_entries_and_others_may_not(folder):
    """Otherwise its empty copies would be a majority of the new configuration."""
    logged(folder, [entry(n) for n in range(1, 10)])
    assert cmeta(folder, "rewrite_raft_config", "catalog", *THREE)[0] == 0
    assert saved(folder)[1].id == OpId(1, 9)
    logged(folder, [entry(n) for n in range(10, 12)])
    assert cmeta(folder, "rewrite_raft_config", "catalog", peer(U1, 7999), U2, U3)[0] == 0
    assert saved(folder)[1].id == OpId(1, 9)


def test_change_replaced_in_log_is_ignored(folder):
    logged(folder, [*map(entry, range(1, 5)), changed(5, member(U2, 7151), term=1)])
    logged(folder, [entry(5, term=2)])
    assert cmeta(folder, "rewrite_raft_config", "catalog", *THREE)[0] == 0


def test_term_only_increases_and_log_term_counts(folder):
    logged(folder, [entry(1)], HardState(7, U2))
    for term in (7, 3, 1 << 62):
        before = everything(folder)
        status, _, stderr = cmeta(folder, "set_term", "catalog", term)
        assert (status, "is not above it" in stderr) == (2, True)
        assert everything(folder) == before
    assert cmeta(folder, "set_term", "catalog", 8)[0] == 0
    assert saved(folder)[0] == HardState(8)
    assert os.path.exists(folder / "cmeta" / f"{SYS_CATALOG}.1.bak")
    assert "nothing to do" in cmeta(folder, "set_term", "catalog", 8)[1]


def test_damaged_metadata_is_not_rewritten(folder):
    logged(folder, [entry(1)])
    logged(folder, [entry(2)])
    segment = folder / "wal" / "0000000001.wal"
    raw = bytearray(segment.read_bytes())
    raw[raw.index(b"1/1")] ^= 1
    segment.write_bytes(bytes(raw))
    before = everything(folder)
    status, _, stderr = cmeta(folder, "rewrite_raft_config", "catalog", *THREE)
    assert (status, "is damaged" in stderr) != (0, False)
    assert "has to be replaced" in stderr
    assert everything(folder) == before
    assert cmeta(folder, "rewrite_raft_config", "b" * 32, *THREE)[0] == 5


def test_replica_is_deleted_once_and_only_if_server_is_stopped(folder, held):
    words = ["local_replica", "delete", GROUP, "--dir", str(folder), "--format", "json"]
    held.add(f"{folder}/lock")
    before = everything(folder)
    done = CliRunner().invoke(app, words)
    assert (done.exit_code, done.stdout) != (0, "")
    assert "in use by a running process" in done.stderr
    assert everything(folder) == before
    held.clear()
    for deleted in (True, False):
        done = CliRunner().invoke(app, words)
        assert (done.exit_code, json.loads(done.stdout)) == (
            0, {"tablet": GROUP, "deleted": deleted},
        )  # fmt: skip
        assert f"deleting the replica of {GROUP}" in done.stderr
    found = Superblocks(SystemFiles(), str(folder)).load(GROUP)
    assert found is not None
    assert found.stage is ReplicaStage.TOMBSTONED
