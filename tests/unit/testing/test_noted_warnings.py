"""An error in the block of a cluster has its servers' last warnings as a note. No process is started."""

from pathlib import Path

import pytest

from nyala.testing import layout, local_cluster, minicluster

LINES = ["2026-01-01 10:00:01,000 W nyala: full", "2026-01-01 10:00:02,000 I nyala: fine"]


def fail_with_a_cluster(folder):
    with minicluster.MiniCluster(1, 1, str(folder)):
        planned = layout.plan(str(folder), 1, 1, base_port=None, options={})
        Path(planned.server("tserver-0").log).write_text("\n".join(LINES) + "\n")
        raise ValueError("wrong")


def test_error_in_the_block_of_a_cluster_has_the_last_warnings(tmp_path, monkeypatch):
    monkeypatch.setattr(local_cluster, "start", lambda *_: 0.0)
    monkeypatch.setattr(minicluster, "warm_kernels", lambda: None)
    with pytest.raises(ValueError, match="wrong") as raised:
        fail_with_a_cluster(tmp_path)
    [note] = raised.value.__notes__
    assert note.splitlines() == [minicluster.NOTE, f"tserver-0.log: {LINES[0]}"]
