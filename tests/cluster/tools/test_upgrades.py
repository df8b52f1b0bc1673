"""An upgrade of a cluster of real processes: directories of an earlier format, and of a later one."""

from pathlib import Path

import google_crc32c
import pyarrow as pa
import pytest

import nyala
from nyala.common.errors import NyalaError
from nyala.datadir.instance import FILE_NAME, FORMAT_VERSION, OLDEST_FORMAT
from nyala.testing import MiniCluster
from tests.cluster.support.ksck import wait_equal

pytestmark = pytest.mark.full

ROWS = 2_000
SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.string())])


def instance_of(cluster: MiniCluster, name: str) -> Path:
    return Path(cluster.data_dir(name), FILE_NAME)


def format_of(cluster: MiniCluster, name: str) -> int:
    return int.from_bytes(instance_of(cluster, name).read_bytes()[8:12], "little")


def set_format(cluster: MiniCluster, name: str, version: int) -> None:
    """Give the directory of a stopped server another format, as the build of that format would have."""
    path = instance_of(cluster, name)
    raw = path.read_bytes()
    head = raw[:8] + version.to_bytes(4, "little") + raw[12:-4]
    path.write_bytes(head + int(google_crc32c.value(head)).to_bytes(4, "little"))


def files_of(cluster: MiniCluster, name: str) -> dict[str, tuple[int, int]]:
    """Return size and time of the last change of each file of a server, except of its lock."""
    folder = Path(cluster.data_dir(name))
    return {
        str(p.relative_to(folder)): (p.stat().st_size, p.stat().st_mtime_ns)
        for p in folder.rglob("*")
        if p.is_file() and p.name != "lock"
    }


def content(cluster: MiniCluster) -> tuple[list[dict[str, object]], list[bytes]]:
    with cluster.connect() as client:
        found = client.table("old").scan(order=True).to_arrow().to_pylist()
        return found, [e.data for e in client.journal("events").log("a").read()]


def test_directories_of_an_earlier_format_are_upgraded_and_later_ones_refused_unchanged():
    with MiniCluster(options={"flush_bytes": "20000"}) as cluster:
        with cluster.connect() as client:
            table = client.create_table(
                "old", SCHEMA, ["k"], nyala.Partition(hash=[nyala.Hash(["k"], 3)])
            )
            table.upsert({"k": k, "v": f"row {k}" * 5} for k in range(ROWS)).raise_for_errors()
            table.alter().add_column("w", pa.int64(), default=7).commit()
            table.delete([{"k": 1}, {"k": 2}]).raise_for_errors()
            client.create_journal("events").log("a").append(b"before")
        written = content(cluster)
        assert len(written[0]) == ROWS - 2

        for name in cluster.names:
            cluster.stop(name)
            set_format(cluster, name, OLDEST_FORMAT)
        for name in cluster.names:
            cluster.start(name, wait=False)
        wait_equal(cluster)
        assert content(cluster) == written
        assert {format_of(cluster, n) for n in cluster.names} == {FORMAT_VERSION}
        with cluster.connect() as client:
            client.table("old").upsert([{"k": 1, "v": "after"}]).raise_for_errors()

        name = "tserver-0"
        cluster.stop(name)
        set_format(cluster, name, FORMAT_VERSION + 1)
        before = files_of(cluster, name)
        with pytest.raises(NyalaError, match=f"has format version {FORMAT_VERSION + 1}"):
            cluster.start(name)
        assert files_of(cluster, name) == before
        set_format(cluster, name, FORMAT_VERSION)  # as if the newer release were installed again
        cluster.start(name)
        wait_equal(cluster)
        assert len(content(cluster)[0]) == ROWS - 1
