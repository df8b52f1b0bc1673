"""Data directory of a master: format, lock, refusals."""

import random
from types import SimpleNamespace
from typing import Any

import google_crc32c
import pytest

from nyala.common.errors import BadChecksum, BadVersion, Corrupt, Forbidden, InvalidArgument
from nyala.common.hybrid_time import to_micros
from nyala.common.ids import ServerUuid
from nyala.datadir.identity import Identity
from nyala.datadir.instance import Instance, decode, encode, open_instance, update
from nyala.env.clock import SystemClock
from nyala.env.files import SystemFiles


@pytest.fixture
def files():
    made = SystemFiles()
    yield made
    made.close()


def test_directory_is_formatted_once_and_keeps_its_uuid(files, tmp_path):
    path = str(tmp_path / "d" / "m1")
    made = open_instance(files, path, "master", random.Random(1))
    assert len(made.uuid) == 32
    files.close()
    assert open_instance(files, path, "master", random.Random(2)) == made


def test_running_process_excludes_a_second_process(files, tmp_path):
    open_instance(files, str(tmp_path), "master", random.Random(1))
    with pytest.raises(Forbidden, match="in use by a running process"):
        open_instance(SystemFiles(), str(tmp_path), "master", random.Random(1))


def test_directory_of_another_role_is_refused_unchanged(files, tmp_path):
    made = open_instance(files, str(tmp_path), "tserver", random.Random(1))
    files.close()
    with pytest.raises(InvalidArgument, match=f"belongs to a tserver \\({made.uuid}\\)"):
        open_instance(files, str(tmp_path), "master", random.Random(1))
    files.close()
    assert open_instance(files, str(tmp_path), "tserver", random.Random(1)) == made


def test_directory_with_foreign_files_is_refused(files, tmp_path):
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(InvalidArgument, match=r"not empty \(it holds thesis.tex\)"):
        open_instance(files, str(tmp_path), "master", random.Random(1))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["lock", "thesis.tex"]


def test_cluster_id_is_set_once(files, tmp_path):
    made = open_instance(files, str(tmp_path), "tserver", random.Random(1))
    updated = update(files, str(tmp_path), made, cluster_id="c1")
    assert update(files, str(tmp_path), updated, cluster_id="c1", initialised=True).initialised
    with pytest.raises(InvalidArgument, match="belongs to cluster c1, not to c2"):
        update(files, str(tmp_path), updated, cluster_id="c2")
    files.close()
    assert open_instance(files, str(tmp_path), "tserver", random.Random(1)).cluster_id == "c1"


def test_instance_file_version_1_is_readable():
    known = Instance(
        ServerUuid("00112233445566778899aabbccddeeff"),
        "tserver",
        "ffeeddccbbaa99887766554433221100",
        True,
        masters=(("a:1", "b:1"),),
    )
    body = (
        b'{"uuid":"00112233445566778899aabbccddeeff","role":"tserver",'
        b'"cluster_id":"ffeeddccbbaa99887766554433221100","initialised":true,"replaces":false,"masters":[["a:1","b:1"]]}'
    )
    golden = b"NYALINST" + bytes.fromhex("01000000aa000000") + body + bytes.fromhex("4caddf68")
    assert decode(golden, "x/instance") == known
    assert encode(known)[:8] == golden[:8]
    assert encode(known)[12:-4] == golden[12:-4], "version 2 differs in its number only"


def test_start_raises_the_format_of_a_directory_so_that_earlier_builds_refuse_it(files, tmp_path):
    made = encode(Instance(ServerUuid("u" * 32), "tserver", "c"))
    head = made[:8] + (1).to_bytes(4, "little") + made[12:-4]
    path = tmp_path / "instance"
    path.write_bytes(head + int(google_crc32c.value(head)).to_bytes(4, "little"))
    opened = open_instance(files, str(tmp_path), "tserver", random.Random(1))
    assert opened == Instance(ServerUuid("u" * 32), "tserver", "c")
    assert path.read_bytes() == made
    assert made[8:12] == (2).to_bytes(4, "little")


@pytest.mark.parametrize("at", [12, 20, -1])
def test_instance_file_damage_is_detected(at):
    raw = bytearray(encode(Instance(ServerUuid("u" * 32), "master", "c")))
    raw[at] ^= 1
    with pytest.raises(BadChecksum):
        decode(bytes(raw), "x/instance")


def test_instance_file_of_other_type_or_newer_version_is_refused():
    raw = encode(Instance(ServerUuid("u" * 32), "master", "c"))
    with pytest.raises(BadVersion, match="not an instance file"):
        decode(b"PK" + raw, "x/instance")
    newer = raw[:8] + (7).to_bytes(4, "little") + raw[12:]
    crc = int(google_crc32c.value(newer[:-4])).to_bytes(4, "little")
    with pytest.raises(
        BadVersion, match=r"format version 7.* a newer build wrote it.* not damaged: start"
    ):
        decode(newer[:-4] + crc, "x/instance")
    with pytest.raises(BadVersion, match=r"version 7.* or it is damaged.* else restore the file"):
        decode(newer, "x/instance")
    with pytest.raises(BadVersion):
        decode(b"", "x/instance")
    with pytest.raises(BadChecksum):
        decode(raw[:-3], "x/instance")


@pytest.mark.parametrize("left", ["superblock/a", "wal/0000000001.wal"])
def test_lost_clock_ceiling_beside_replica_or_log_is_damage(files, tmp_path, left):
    """Findings C2: a lost file is no new server."""

    def start():
        files.close()
        env: Any = SimpleNamespace(files=files, random=random.Random(1), clock=SystemClock())
        Identity(env, str(tmp_path), "tserver", 10_000).open()

    start()
    (tmp_path / left).parent.mkdir()
    (tmp_path / left).write_bytes(b"x")
    start()
    (tmp_path / "hybrid_clock").unlink()
    for _ in range(2):
        with pytest.raises(Corrupt, match="hybrid_clock is missing"):
            start()
    (tmp_path / left).unlink()
    start()
    assert (tmp_path / "hybrid_clock").exists()


@pytest.mark.parametrize("before", [False, True])
def test_server_does_not_start_at_a_time_beyond_last_timestamp(files, tmp_path, before):
    """A server that started at a right time before continues from it."""
    machine = SimpleNamespace(wall_us=lambda: 1_800_000_000_000_000, monotonic_us=lambda: 0)
    env: Any = SimpleNamespace(files=files, random=random.Random(1), clock=machine)
    if before:
        Identity(env, str(tmp_path), "tserver", 10_000).open()
        files.close()
    machine.wall_us = lambda: 2_500_000_000_000_000
    identity = Identity(env, str(tmp_path), "tserver", 10_000)
    if before:
        assert 0 <= to_micros(identity.open().now()) - 1_800_000_000_000_000 < 60_000_000
        return
    with pytest.raises(InvalidArgument, match="in the year 2049, and timestamps end in 2041"):
        identity.open()
