"""`nyala pbc dump`: metadata files of each kind as JSON; damaged and other files are refused."""

import json
from pathlib import Path

import pytest

from nyala.common.ids import ServerUuid
from nyala.datadir.instance import Instance, encode
from tests.unit.cli.support.verbs import nyala

pytestmark = pytest.mark.row("A13")

GOLDEN = Path(__file__).parents[3] / "golden"
FILES = {
    "superblock": GOLDEN / "replica" / "superblock-v1.bin",
    "consensus metadata": GOLDEN / "wal" / "v1-cmeta",
    "manifest of a tablet": GOLDEN / "tablet" / "tablet-v1" / "MANIFEST",
    "manifest of a journal": GOLDEN / "journal" / "journal-v1" / "JOURNAL",
}
KEYS = {
    "superblock": {"group", "stage", "hard_state", "last"},
    "consensus metadata": {"group", "hard_state", "config"},
    "manifest of a tablet": {"info", "flush_point", "horizon", "rowsets"},
    "manifest of a journal": {"info", "flush_point"},
}


def test_each_kind_of_metadata_file_is_dumped():
    status, out, err = nyala("pbc", "dump", *FILES.values())
    assert (status, err) == (0, "")
    found = {one["kind"]: one for one in json.loads(out)}
    assert list(found) == list(FILES)
    for kind, one in found.items():
        assert one["path"] == str(FILES[kind])
        assert one["bytes"] == FILES[kind].stat().st_size
        assert KEYS[kind] <= one["content"].keys()
    members = found["consensus metadata"]["content"]["config"]["members"]
    assert {"uuid", "address", "voter"} <= members[0].keys()


def test_instance_is_dumped_and_unchanged(tmp_path):
    path = tmp_path / "instance"
    path.write_bytes(before := encode(Instance(ServerUuid("a" * 32), "tserver", "c" * 32)))
    status, out, _ = nyala("pbc", "dump", path)
    content = json.loads(out)[0]["content"]
    assert (status, content["uuid"], content["role"]) == (0, "a" * 32, "tserver")
    assert path.read_bytes() == before


@pytest.mark.parametrize("kind", FILES)
def test_damaged_file_is_refused(tmp_path, kind):
    path = tmp_path / "damaged"
    content = bytearray(FILES[kind].read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)
    status, out, err = nyala("pbc", "dump", path)
    assert (status != 0, out) == (True, "")
    assert str(path) in err


def test_other_file_is_refused(tmp_path):
    path = tmp_path / "other"
    path.write_bytes(b"something else")
    status, _, err = nyala("pbc", "dump", path)
    assert status == 2
    assert "is none of: instance, superblock, consensus metadata, manifest of a journal" in err


def test_large_file_of_another_kind_is_refused_without_reading_it(tmp_path):
    path = tmp_path / "rows"
    with path.open("wb") as file:
        file.truncate(1 << 42)
    status, _, err = nyala("pbc", "dump", path)
    assert status == 2
    assert "is none of: instance" in err
