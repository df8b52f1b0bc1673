"""Damaged, unfinished and interrupted backups and restores."""

import itertools
import json
import os
from pathlib import Path

import pytest

from nyala.backup import chain, folders, load, retention, take
from nyala.backup.restore import MARK, SUFFIX, RestoreOptions, Restoring
from nyala.backup.take import TakeOptions, Taking
from nyala.common.errors import BadVersion, Corrupt, InvalidArgument, Unavailable
from tests.cluster.backups.chains import filled


class Crash(BaseException):
    """The end of the process."""


def pieces(root: Path) -> list[Path]:
    """Return every file of the backups that has content."""
    return sorted(p for p in root.rglob("*") if p.is_file() and p.stat().st_size)


def altered(data: bytes) -> list[bytes | None]:
    """Return what may become of a file: it is missing, shorter, longer, or has another byte."""
    middle = len(data) // 2
    other = data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]
    return [None, data[:-1], data + b"x", other]


def test_every_missing_or_altered_piece_is_found_before_anything_is_written(backups):
    table = filled(backups)
    backups.take("t")
    table.delete([{"k": 3}])
    backups.take("t")
    found = pieces(backups.root)
    assert len(found) == 5  # two files, two manifests, the record of the newest element
    for path in found:
        data = path.read_bytes()
        for wrong in altered(data):
            if wrong is None and path.name == folders.LATEST:
                continue  # without it no row is lost
            path.unlink()
            if wrong is not None:
                path.write_bytes(wrong)
            with pytest.raises(Corrupt):
                backups.restore("t", name="u")
            path.write_bytes(data)
    assert backups.client.tables() == ["t"]
    backups.restore("t", name="u")


@pytest.mark.full
def test_missing_element_is_found(backups):
    table = filled(backups)
    for number in range(3):
        table.upsert([{"k": number, "v": "new"}])
        backups.take("t")
    for folder in folders.element_folders(folders.table_folder(backups.root, "t")):
        away = backups.root.parent / "away"
        folder.rename(away)
        with pytest.raises(Corrupt, match="missing"):
            backups.restore("t", name="u")
        away.rename(folder)


def ended_after(steps, backups, monkeypatch) -> bool:
    """Take a backup that crashes at a step, the calls of `fsync` and `replace`; return whether it ended."""
    count = itertools.count(1)

    def counted(real):
        def call(*args):
            if next(count) == steps:
                raise Crash
            return real(*args)

        return call

    with monkeypatch.context() as patch:
        for name in ("fsync", "replace"):
            patch.setattr(os, name, counted(getattr(os, name)))
        try:
            backups.take("t")
        except Crash:
            return False
    return True


@pytest.mark.full
def test_crash_of_a_backup_at_any_step_leaves_the_former_chain(backups, monkeypatch):
    table = filled(backups)
    [before] = backups.take("t")
    table.upsert([{"k": 1, "v": "new"}])
    crashed = 0
    while not ended_after(crashed + 1, backups, monkeypatch):
        crashed += 1
        chains = chain.chains_of(backups.root, "t")
        assert chains[0].elements[0] == before
        chain.check_files(chains)
    assert crashed >= 8
    backups.restore("t", name="u")
    assert backups.client.table("u").get({"k": 1}) == {"k": 1, "v": "new"}
    whole = {e.id for c in chain.chains_of(backups.root, "t") for e in c.elements}
    found = folders.element_folders(folders.table_folder(backups.root, "t"))
    assert {p.name for p in found} == whole, "folders of unfinished backups are left"


@pytest.mark.row("A22")
@pytest.mark.full
def test_restore_that_ended_early_begins_anew(backups):
    filled(backups)
    backups.take("t")

    def crash(table, loads):
        load.load_file(loads[0], table)
        raise Crash

    with pytest.raises(Crash):
        Restoring(backups.connection, backups.root, run=crash).restore(
            "t", RestoreOptions(name="u")
        )
    assert backups.client.tables() == ["t", "u" + SUFFIX]
    assert backups.client.describe("u" + SUFFIX).comment == MARK
    assert backups.restore("t", name="u").rows == 100
    assert backups.client.tables() == ["t", "u"]


@pytest.mark.full
def test_restore_with_too_few_rows_is_refused(backups):
    filled(backups)
    backups.take("t")
    with pytest.raises(Corrupt, match="has 0 rows, and the backup states 100"):
        Restoring(backups.connection, backups.root, run=lambda table, loads: 0).restore(
            "t", RestoreOptions(name="u")
        )
    assert "u" not in backups.client.tables()


@pytest.mark.full
def test_backup_of_another_version_is_refused(backups):
    filled(backups)
    [element] = backups.take("t")
    path = folders.table_folder(backups.root, "t") / element.id / folders.MANIFEST
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": 2}))
    with pytest.raises(BadVersion, match="format 2"):
        backups.restore("t", name="u")


@pytest.mark.full
def test_two_backups_of_a_table_at_once_are_refused(backups):
    filled(backups)
    with folders.locked(folders.table_folder(backups.root, "t")), pytest.raises(Unavailable):
        backups.take("t")


@pytest.mark.full
def test_prune_removes_whole_old_chains(backups):
    table = filled(backups)
    for number in range(3):
        backups.take("t", full=True)
        table.upsert([{"k": number, "v": "new"}])
        backups.take("t")
    chains = chain.chains_of(backups.root, "t")
    assert len(chains) == 3
    with pytest.raises(InvalidArgument, match="nothing says"):
        retention.prune(backups.root, "t")
    assert len(retention.prune(backups.root, "t", before=chains[1].since - 1)) == 0
    assert len(retention.prune(backups.root, "t", before=chains[1].since, dry_run=True)) == 1
    assert len(retention.prune(backups.root, "t", before=chains[1].since)) == 1
    assert [c.since for c in chain.chains_of(backups.root, "t")] == [c.since for c in chains[1:]]
    assert len(retention.prune(backups.root, "t", keep=1)) == 1
    assert backups.restore("t", name="u").at == chains[2].until


@pytest.mark.full
def test_a_new_chain_can_be_begun_whatever_became_of_the_old_one(backups):
    table = filled(backups)
    [first] = backups.take("t")
    table.upsert([{"k": 1, "v": "new"}])
    manifest = folders.table_folder(backups.root, "t") / first.id / folders.MANIFEST
    manifest.write_text("{}")
    with pytest.raises(Corrupt):
        backups.take("t")
    [second] = backups.take("t", full=True)
    assert backups.restore("t", name="u").at == second.until
    with pytest.raises(Corrupt):
        backups.restore("t", name="v", at=first.until)
    assert backups.take("t")[0].previous == second.id
    assert len(retention.prune(backups.root, "t", keep=1)) == 1
    assert len(chain.chains_of(backups.root, "t")) == 1


@pytest.mark.full
def test_a_chain_is_not_removed_while_it_is_restored(backups):
    filled(backups)
    [first] = backups.take("t")
    backups.take("t", full=True)

    def run(table, loads):
        with pytest.raises(Unavailable, match="restores from"):
            retention.prune(backups.root, "t", keep=1)
        return sum(load.load_file(one, table) for one in loads)

    restoring = Restoring(backups.connection, backups.root, run=run)
    assert restoring.restore("t", RestoreOptions(name="u", at=first.until)).rows == 100
    assert len(retention.prune(backups.root, "t", keep=1)) == 1


@pytest.mark.full
def test_a_backup_of_several_tables_that_fails_is_none_of_any(backups):
    filled(backups)
    filled(backups, "u")
    names = iter(["t", "u"])

    def run(parts):
        if next(names) == "u":
            raise OSError("the disk is full")
        return take.run_in_threads(backups.connection, parts)

    with pytest.raises(OSError, match="full"):
        Taking(backups.connection, backups.root, run).take(["t", "u"], TakeOptions())
    for name in ("t", "u"):
        with pytest.raises(InvalidArgument, match="have not ended"):
            backups.restore(name, name="v")
    first, second = backups.take("t", "u")
    assert (first.kind, first.until) == ("full", second.until)


@pytest.mark.full
def test_plan_only_writes_nothing(backups):
    filled(backups)
    made = Taking(backups.connection, backups.root).take(["t"], TakeOptions(dry_run=True))
    assert (made[0].kind, backups.root.exists()) == ("full", False)
    backups.take("t")
    before = pieces(backups.root)
    assert backups.take("t", dry_run=True)[0].kind == "incremental"
    assert backups.restore("t", name="u", dry_run=True).rows == -1
    assert (pieces(backups.root), backups.client.tables()) == (before, ["t"])
