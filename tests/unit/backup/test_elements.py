"""Elements without a cluster: manifests, chains, the rows that a restore writes, partitions at a time."""

import hashlib
import os
import shutil
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nyala.backup import manifest
from nyala.backup.chain import chain_at, chains_of, check_files, newest_chain, note_latest
from nyala.backup.definition import SavedDefinition, table_spec
from nyala.backup.folders import (
    LATEST,
    MANIFEST,
    in_use,
    locked,
    remove_others,
    remove_unfinished,
    table_folder,
    tables_in,
    whole_file,
)
from nyala.backup.load import FileLoad, to_target
from nyala.backup.manifest import BackupFile, Element, Interval
from nyala.backup.restore import interval_at, stages
from nyala.backup.retention import prune
from nyala.common.errors import Corrupt, InvalidArgument, Unavailable
from nyala.common.ids import ColumnId
from nyala.common.keys.encoding import encode_key
from nyala.common.partitioning.partition import HashLevel, KeyRange, PartitionSchema
from nyala.common.schema import Column, Schema

KEY = Column(ColumnId(0), "k", pa.int64(), nullable=False)
OLD = Column(ColumnId(1), "old", pa.string())
NINE, SEVEN = pa.scalar(9, pa.int32()), pa.scalar(7, pa.int32())
NEW = Column(ColumnId(2), "new", pa.int32(), False, NINE, read_default=SEVEN)
BEFORE = Schema((KEY, OLD), (KEY.id,), 0, 2)
AFTER = Schema((KEY, replace(OLD, name="renamed"), NEW), (KEY.id,), 0, 3)


def key(value):
    return encode_key([pa.scalar(value)], [pa.int64()])


def ranges(*pairs):
    return tuple(KeyRange(key(lower), key(upper)) for lower, upper in pairs)


PARTS = PartitionSchema((HashLevel((KEY.id,), 2, 5),), (KEY.id,), ranges((0, 50), (100, 200)))


def saved(dropped=()):
    return SavedDefinition(PARTS, tuple(dropped), 3, {"history_max_age_s": "60"}, "words", "ada")


def element(root, since, until, previous=None, intervals=(), dropped=()):
    """Write an element whose files have 3 rows each."""
    kind = manifest.INCREMENTAL if since else manifest.FULL
    made = Element(
        manifest.element_id(kind, until), kind, "a.b", "id", since, until,
        previous.id if previous else "", previous.checksum if previous else "", 3, saved(dropped), (),
    )  # fmt: skip
    folder = table_folder(root, "a.b") / made.id
    with locked(folder.parent):
        folder.mkdir()
        found = []
        for number, (begin, through, schema) in enumerate(intervals):
            path = folder / f"{number}.parquet"
            pq.write_table(pa.table({"k": [1, 2, 3]}), path)
            data = path.read_bytes()
            file = BackupFile(path.name, "t", 3, len(data), hashlib.sha256(data).hexdigest())
            found.append(Interval(begin, through, schema, (file,)))
        written = manifest.write(folder, replace(made, intervals=tuple(found)))
        note_latest(folder.parent, written)
    return written


@pytest.fixture
def root(tmp_path):
    first = element(tmp_path, 0, 10, intervals=[(0, 10, BEFORE)])
    second = element(tmp_path, 10, 30, first, [(10, 20, BEFORE), (20, 30, AFTER)])
    element(tmp_path, 0, 50, intervals=[(0, 50, AFTER)])
    assert second.previous == first.id
    return tmp_path


def test_manifest_is_read_as_it_was_written(root):
    folder = table_folder(root, "a.b")
    assert tables_in(root) == ["a.b"]
    [chain, _] = chains_of(root, "a.b")
    last = chain.elements[-1]
    assert last.intervals[1].schema.columns == AFTER.columns
    assert last.definition == saved()
    assert check_files([chain]) == (3, chain.elements[0].bytes + last.bytes)
    with locked(folder), pytest.raises(Unavailable, match="another process"), locked(folder):
        pass
    for name in ("notes", manifest.element_id(manifest.FULL, 60), manifest.element_id("full", 40)):
        (folder / name).mkdir()
    (folder / f".{LATEST}.77.tmp").write_bytes(b"of a process that was killed")
    assert remove_unfinished(folder) == 1
    assert not list(folder.glob("*.tmp"))
    assert (folder / "notes").exists()
    assert (folder / manifest.element_id("full", 40)).exists(), "its manifest was lost"
    (folder / LATEST).write_text("x")
    (folder / manifest.element_id("full", 60)).mkdir()
    assert remove_unfinished(folder) == 0


@pytest.mark.parametrize("name", ["../other.parquet", "/etc/x.parquet", "a/b.parquet", "..", "x"])
def test_name_of_a_file_does_not_lead_out_of_its_element(root, name):
    """A folder of backups that was changed, checksums included, reads no other files."""
    made = element(root, 0, 100, intervals=[(0, 100, BEFORE)])
    file = BackupFile(name, "t", 3, 1, "0" * 64)
    changed = replace(made, intervals=(Interval(0, 100, BEFORE, (file,)),))
    with pytest.raises(Corrupt, match=r"is no manifest: .* not the name of a data file"):
        manifest.write(table_folder(root, "a.b") / made.id, changed)


def test_folder_of_a_table_is_of_its_user_only_and_keeps_the_mode_that_it_is_given(tmp_path):
    known = os.umask(0)
    try:
        folder = table_folder(tmp_path / "new" / "backups", "a")
        with locked(folder):
            assert folder.stat().st_mode & 0o777 == 0o700
        folder.chmod(0o750)
        with locked(folder):
            assert folder.stat().st_mode & 0o777 == 0o750
    finally:
        os.umask(known)


def test_chain_and_columns_of_a_moment(root):
    assert chain_at(root, "a.b", None).since == 50
    for at, elements, columns in (
        (10, 1, BEFORE),
        (11, 2, BEFORE),
        (20, 2, BEFORE),
        (21, 2, AFTER),
    ):
        chain = chain_at(root, "a.b", at)
        assert len(chain.elements) == elements
        assert interval_at(chain, at).schema.arrow == columns.arrow
    loads = [load for step in stages(chain_at(root, "a.b", 20), 20) for load in step]
    assert [load.changes for load in loads] == [False, True]
    for at in (9, 31, 49, 51):
        with pytest.raises(InvalidArgument, match="do not contain the moment"):
            chain_at(root, "a.b", at)
    with pytest.raises(InvalidArgument, match="has no backup of table 'c'"):
        chains_of(root, "c")


def test_replaced_element_is_found(root):
    chain = chains_of(root, "a.b")[0]
    folder = chain.folder / chain.elements[0].id
    manifest.write(folder, replace(chain.elements[0], rows_at_end=4))
    with pytest.raises(Corrupt, match="missing or was replaced"):
        chains_of(root, "a.b")


def test_altered_and_missing_files_are_found(root):
    chains = chains_of(root, "a.b")
    path = chains[0].folder / chains[0].elements[0].id / "0.parquet"
    data = path.read_bytes()
    for wrong, message in (
        (data[:-1], "bytes, not"),
        (b"x" + data[1:], "checksum"),
        (None, "missing"),
    ):
        path.unlink()
        if wrong is not None:
            path.write_bytes(wrong)
        with pytest.raises(Corrupt, match=message):
            check_files(chains)
    with pytest.raises(Corrupt, match="missing"):
        check_files(chains, contents=False)


def test_loss_of_the_newest_element_is_found(root):
    chain = chains_of(root, "a.b")[-1]
    shutil.rmtree(chain.folder / chain.elements[0].id)
    with pytest.raises(Corrupt, match="is missing or was replaced"):
        chains_of(root, "a.b")


def test_damage_of_a_chain_does_not_matter_for_another(root):
    folder = table_folder(root, "a.b")
    first, second = chains_of(root, "a.b")[0].elements
    path = folder / second.id / MANIFEST
    whole = path.read_text()
    path.write_text(whole[:-9])
    with pytest.raises(Corrupt):
        chains_of(root, "a.b")
    assert newest_chain(root, "a.b").since == 50
    assert [e.id for e in chain_at(root, "a.b", 10).elements] == [first.id]
    with pytest.raises(Corrupt, match="cannot be read"):
        chain_at(root, "a.b", 11)
    with in_use(folder), pytest.raises(Unavailable, match="restores from"):
        prune(root, "a.b", keep=1)
    with in_use(folder), in_use(folder):
        pass
    assert [r.elements for r in prune(root, "a.b", keep=1)] == [(first.id, second.id)]
    assert [c.since for c in chains_of(root, "a.b")] == [50]


def test_chains_before_a_damaged_one_are_not_removed(root):
    newest = chains_of(root, "a.b")[-1].elements[0]
    path = table_folder(root, "a.b") / newest.id / MANIFEST
    path.write_text(path.read_text() + "x")
    with pytest.raises(Corrupt, match="cannot be read"):
        prune(root, "a.b", keep=1)
    assert chain_at(root, "a.b", 30).until == 30


def test_a_chain_that_was_begun_and_not_recorded_is_whole(root):
    folder = table_folder(root, "a.b")
    before = chains_of(root, "a.b")[0].elements[-1]
    note_latest(folder, before)
    assert newest_chain(root, "a.b").since == 50
    assert len(prune(root, "a.b", keep=1)) == 1
    assert newest_chain(root, "a.b").since == 50


def test_folders_of_others_and_copies_without_the_lock_are_known(root):
    folder = table_folder(root, "a.b")
    (folder / ".lock").unlink()
    assert tables_in(root) == ["a.b"]
    (folder / "copy").mkdir()
    shutil.copy(folder / LATEST, folder / "copy" / MANIFEST)
    assert len(chains_of(root, "a.b")) == 2
    with locked(table_folder(root, "c")), pytest.raises(InvalidArgument, match="have not ended"):
        chains_of(root, "c")


def test_only_chains_that_the_next_one_replaces_are_removed(root):
    with pytest.raises(InvalidArgument, match="nothing says"):
        prune(root, "a.b")
    with pytest.raises(InvalidArgument, match="keep=0"):
        prune(root, "a.b", keep=0)
    assert prune(root, "a.b", before=49) == []
    assert prune(root, "a.b", keep=2) == []
    assert len(prune(root, "a.b", before=50, dry_run=True)) == 1
    assert len(prune(root, "a.b", before=50)) == 1
    assert [c.since for c in chains_of(root, "a.b")] == [50]


def test_rows_are_mapped_to_columns_and_partitions_of_the_moment():
    load = FileLoad("", BEFORE, AFTER, PARTS, 20, changes=True)
    batch = pa.RecordBatch.from_pydict({
        "k": [1, 60, 120, 2], "old": ["a", "b", None, "d"], "_op": ["insert", "insert", "delete", "update"],
        "_timestamp": [20, 20, 20, 21],
    })  # fmt: skip
    assert to_target(load, batch).to_pylist() == [
        {"k": 1, "renamed": "a", "new": 7, "_op": "upsert"},
        {"k": 120, "renamed": None, "new": 7, "_op": "delete_ignore"},
    ]
    fixed = Schema((KEY, replace(OLD, immutable=True)), (KEY.id,), 0, 2)
    ops = to_target(replace(load, target=fixed), batch)["_op"].to_pylist()
    assert ops == ["delete_ignore", "upsert", "delete_ignore", "delete_ignore"]


def test_partitions_at_a_time_have_ranges_that_were_dropped_later():
    old, older = ranges((100, 120), (90, 130))
    definition = saved([(old, 15), (old, 16), (older, 12)])
    assert definition.partition_at(16).ranges == PARTS.ranges
    assert definition.partition_at(14).ranges == (PARTS.ranges[0], old)
    assert definition.partition_at(11).ranges == (PARTS.ranges[0], older)
    spec = table_spec("new", AFTER, definition, 14)
    assert [c.id for c in spec.schema.columns] == [0, 1, 2]
    assert not any(c.read_default_ipc for c in spec.schema.columns)
    assert (spec.replicas, spec.comment, spec.owner) == (3, "words", "ada")
    assert len(spec.partition.ranges) == 2


def test_file_that_several_tries_of_a_task_write_is_whole(tmp_path):
    """Spark may run a task twice at the same time, and kill the slower one when the other has ended."""
    path = tmp_path / "part-0"
    with whole_file(path) as slow:
        slow.write(b"half")
        with whole_file(path) as fast:
            fast.write(b"all of it")
        assert path.read_bytes() == b"all of it"
        with pytest.raises(ValueError, match="invalid literal"), whole_file(path):
            int("no number")
        assert path.read_bytes() == b"all of it"
        slow.write(b", and the rest")
    assert path.read_bytes() == b"half, and the rest"
    (tmp_path / ".part-0.77.tmp").write_bytes(b"of a process that was killed")
    remove_others(tmp_path, ["part-0"])
    assert [p.name for p in tmp_path.iterdir()] == ["part-0"]
