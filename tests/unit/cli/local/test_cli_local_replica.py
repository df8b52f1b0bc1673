"""`nyala local_replica cmeta ...`: rewritten once, with a backup, and only to valid configurations."""

import asyncio
import json
import os
from dataclasses import dataclass
from pathlib import Path

import pytest
from typer.testing import CliRunner

from nyala.cli.main import app
from nyala.common.ids import SYS_CATALOG, OpId, ServerUuid, TabletId
from nyala.datadir.instance import format_instance
from nyala.env.clock import write_ceiling
from nyala.env.files import SystemFiles
from nyala.env.tasks import LoopTasks
from nyala.machines import registry
from nyala.raft import membership
from nyala.raft.membership import Configuration, Member
from nyala.raft.messages import Entry, EntryKind, HardState
from nyala.raft.reconfiguration.unsafe_recovery import TERM_GAP
from nyala.replica.superblock import ReplicaStage, Superblock, Superblocks
from nyala.wal.cmeta import ConsensusMetadata
from tests.unit.machines.support.kinds import KindDriver
from tests.unit.wal.support.wal_harness import durable, entry, open_wal

pytestmark = pytest.mark.usefixtures("held")

U1, U2, U3 = (ServerUuid(str(n) * 32) for n in (1, 2, 3))
GROUP, OTHER = TabletId("a" * 32), TabletId("c" * 32)


def member(uuid, port):
    return Member(uuid, f"127.0.0.1:{port + 2000}", f"127.0.0.1:{port}")


def peer(uuid, port):
    return f"{uuid}:127.0.0.1:{port}/127.0.0.1:{port + 2000}"


ONE = Configuration((member(U1, 7051),), OpId(1, 4))
THREE = [peer(U1, 7051), peer(U2, 7151), peer(U3, 7251)]


@dataclass
class Stopped:
    """The directory of a stopped server with a replica of a group, and one of `OTHER`.

    Attributes:
        name: of the group in commands.
    """

    folder: Path
    group: TabletId
    name: str

    def cmeta(self, verb, *words):
        """Run a command on the group; return (exit status, standard output, standard error)."""
        return cmeta(self.folder, verb, self.name, *words)


CATALOG = pytest.mark.parametrize("stopped", ["catalog"], indirect=True)
TABLETS = pytest.mark.parametrize(
    "stopped", registry.KINDS, indirect=True, ids=lambda kind: kind.name
)


@pytest.fixture(params=["catalog", *registry.KINDS], ids=lambda p: getattr(p, "name", p))
def stopped(request, tmp_path):
    """The replica of the catalog, of a table's tablet, and of a journal."""
    files, directory = SystemFiles(), str(tmp_path)
    catalog = request.param == "catalog"
    format_instance(files, directory, "master" if catalog else "tserver", U1, replaces=False)
    write_ceiling(files, f"{directory}/hybrid_clock", 1 << 20)
    group = SYS_CATALOG if catalog else GROUP
    for each in (group, OTHER):
        Superblocks(files, directory).save(Superblock(each, ReplicaStage.READY))
        ConsensusMetadata(files, directory).save(each, HardState(3, U1), ONE)
    if not catalog:
        KindDriver(request.param, f"{directory}/data/{group}", 3).flush()
    return Stopped(tmp_path, group, "catalog" if catalog else group)


def logged(stopped, entries, hard_state=None):
    """Write entries of the group into the directory's log."""

    async def main():
        tasks = LoopTasks()
        wal, _ = await open_wal(SystemFiles(), tasks, directory=str(stopped.folder), uuid=U1)
        await durable(wal, stopped.group, entries, hard_state)
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


def saved(folder, group):
    return ConsensusMetadata(SystemFiles(), str(folder)).load(group)


def everything(folder):
    return {p: p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.mark.row("S2.12")
def test_uuids_are_printed_with_addresses_also_beside_a_running_server(stopped, held):
    held.add(f"{stopped.folder}/lock")
    status, stdout, _ = stopped.cmeta("print_replica_uuids", "--format", "csv")
    assert (status, stdout.splitlines()[1]) == (
        0, f"{U1},127.0.0.1:7051,127.0.0.1:9051,true,true,true",
    )  # fmt: skip
    done = CliRunner().invoke(
        app, ["local_replica", "list", "--dir", str(stopped.folder), "--format", "json"]
    )
    assert [(r["tablet"], r["stage"], r["config"]) for r in json.loads(done.stdout)] == [
        (stopped.group, "READY", "1.4"), (OTHER, "READY", "1.4"),
    ]  # fmt: skip


@pytest.mark.row("S2.21", "S2.22", "A17")
def test_configuration_is_rewritten_once_with_backup(stopped):
    before = (stopped.folder / "cmeta" / stopped.group).read_bytes()
    words = (peer(U1, 7999), *THREE[1:], "--format", "json")
    status, stdout, stderr = stopped.cmeta("rewrite_raft_config", *words)
    assert (status, json.loads(stdout)["changed"]) == (0, True)
    assert f"to    {U1} 127.0.0.1:7999/127.0.0.1:9999" in stderr
    with open(json.loads(stdout)["backup"], "rb") as kept:
        assert kept.read() == before
    hard_state, config = saved(stopped.folder, stopped.group)
    assert (hard_state, config.id) == (HardState(3, U1), OpId(1, 4))
    assert [m.address[-4:] for m in config.members] == ["7999", "7151", "7251"]
    assert saved(stopped.folder, OTHER)[1] == ONE
    held = everything(stopped.folder)
    status, stdout, _ = stopped.cmeta("rewrite_raft_config", *words)
    assert (status, json.loads(stdout)) == (0, {"changed": False, "backup": ""})
    assert everything(stopped.folder) == held


@pytest.mark.parametrize(
    ("peers", "why"),
    [
        (THREE[1:], "is not among those named"),
        ([THREE[0], THREE[0], THREE[1]], "have one address"),
        ([THREE[0], peer(U2, 7051), THREE[2]], "have one address"),
        ([U1, U2, U3], "is no member now"),
        ([f"{U1}:127.0.0.1:7051"], "write UUID:HOST:PORT/PEER_HOST:PEER_PORT"),
        ([f"{U1}:nowhere/127.0.0.1:1"], "is not an address"),
        (["XY:127.0.0.1:1/127.0.0.1:2"], "32 lower-case hex digits"),
    ],
)
@pytest.mark.row("S2.21")
def test_invalid_configuration_is_refused_without_changes(stopped, peers, why):
    before = everything(stopped.folder)
    status, _, stderr = stopped.cmeta("rewrite_raft_config", *peers)
    assert (status, why in stderr) == (2, True), stderr
    assert everything(stopped.folder) == before


@CATALOG
@pytest.mark.row("S2.18")
@pytest.mark.parametrize("count", [2, 4])
def test_even_number_of_masters_is_refused(stopped, count):
    peers = [*THREE, peer(ServerUuid("4" * 32), 7351)][:count]
    status, _, stderr = stopped.cmeta("rewrite_raft_config", *peers)
    assert (status, f"{count} masters: choose an odd number" in stderr) == (2, True), stderr


@pytest.mark.parametrize(
    ("verb", "words"),
    [("rewrite_raft_config", THREE), ("set_term", (9,))],
)
@pytest.mark.row("S2.21", "S1.39")
def test_rewrite_beside_running_server_is_refused(stopped, held, verb, words):
    held.add(f"{stopped.folder}/lock")
    before = everything(stopped.folder)
    status, _, stderr = stopped.cmeta(verb, *words)
    assert (status, "stop that server first" in stderr) == (4, True)
    assert everything(stopped.folder) == before


@pytest.mark.row("S1.39")
def test_uncommitted_change_in_log_is_discarded_only_with_force(stopped):
    """The pending change would be active again, and its majority may be lost."""
    logged(stopped, [*map(entry, range(1, 5)), changed(5, member(U1, 7051), member(U2, 7151))])
    before = everything(stopped.folder)
    status, _, stderr = stopped.cmeta("rewrite_raft_config", U1)
    assert (status, "a later configuration, of 3.5" in stderr) == (2, True)
    assert everything(stopped.folder) == before
    assert stopped.cmeta("rewrite_raft_config", U1, "--force")[0] == 0
    config = saved(stopped.folder, stopped.group)[1]
    assert (config.id, [m.uuid for m in config.members], config.lost) == (OpId(3, 5), [U1], (U2,))
    assert saved(stopped.folder, stopped.group)[0] == HardState(3 + TERM_GAP), (
        "the new term is above those of the lost members"
    )


@pytest.mark.row("S2.17")
def test_single_member_has_all_committed_entries_and_others_may_not(stopped):
    """Otherwise its empty copies would be a majority of the new configuration."""
    logged(stopped, [entry(n) for n in range(1, 10)])
    assert stopped.cmeta("rewrite_raft_config", *THREE)[0] == 0
    assert saved(stopped.folder, stopped.group)[1].id == OpId(1, 9)
    logged(stopped, [entry(n) for n in range(10, 12)])
    assert stopped.cmeta("rewrite_raft_config", peer(U1, 7999), U2, U3)[0] == 0
    assert saved(stopped.folder, stopped.group)[1].id == OpId(1, 9)


def test_change_replaced_in_log_is_ignored(stopped):
    logged(stopped, [*map(entry, range(1, 5)), changed(5, member(U2, 7151), term=1)])
    logged(stopped, [entry(5, term=2)])
    assert stopped.cmeta("rewrite_raft_config", *THREE)[0] == 0


def test_term_only_increases_and_log_term_counts(stopped):
    logged(stopped, [entry(1)], HardState(7, U2))
    for term in (7, 3, 1 << 62):
        before = everything(stopped.folder)
        status, _, stderr = stopped.cmeta("set_term", term)
        assert (status, "is not above it" in stderr) == (2, True)
        assert everything(stopped.folder) == before
    assert stopped.cmeta("set_term", 8)[0] == 0
    assert saved(stopped.folder, stopped.group)[0] == HardState(8)
    assert os.path.exists(stopped.folder / "cmeta" / f"{stopped.group}.1.bak")
    assert "nothing to do" in stopped.cmeta("set_term", 8)[1]


def test_damaged_metadata_is_not_rewritten(stopped):
    logged(stopped, [entry(1)])
    logged(stopped, [entry(2)])
    segment = stopped.folder / "wal" / "0000000001.wal"
    raw = bytearray(segment.read_bytes())
    raw[raw.index(b"1/1")] ^= 1
    segment.write_bytes(bytes(raw))
    before = everything(stopped.folder)
    status, _, stderr = stopped.cmeta("rewrite_raft_config", *THREE)
    assert (status, "is damaged" in stderr) != (0, False)
    assert "has to be replaced" in stderr
    assert everything(stopped.folder) == before
    assert cmeta(stopped.folder, "rewrite_raft_config", "b" * 32, *THREE)[0] == 5


@TABLETS
def test_replica_is_deleted_once_and_only_if_server_is_stopped(stopped, held):
    words = ["local_replica", "delete", GROUP, "--dir", str(stopped.folder), "--format", "json"]
    held.add(f"{stopped.folder}/lock")
    before = everything(stopped.folder)
    done = CliRunner().invoke(app, words)
    assert (done.exit_code, done.stdout) != (0, "")
    assert "in use by a running process" in done.stderr
    assert everything(stopped.folder) == before
    held.clear()
    for deleted in (True, False):
        done = CliRunner().invoke(app, words)
        assert (done.exit_code, json.loads(done.stdout)) == (
            0, {"tablet": GROUP, "deleted": deleted},
        )  # fmt: skip
        assert f"deleting the replica of {GROUP}" in done.stderr
    found = Superblocks(SystemFiles(), str(stopped.folder)).load(GROUP)
    assert found is not None
    assert found.stage is ReplicaStage.TOMBSTONED
    assert not (stopped.folder / "data" / GROUP).exists()
    assert saved(stopped.folder, OTHER)[1] == ONE
