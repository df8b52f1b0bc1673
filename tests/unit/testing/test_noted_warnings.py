"""An error in the block of a cluster has the last warnings of its servers as a note. No process is started."""

from pathlib import Path

import pytest

from nyala.testing import layout, local_cluster, minicluster


def test_error_in_the_block_of_a_cluster_has_the_last_warnings_of_its_servers(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(local_cluster, "start", lambda *_: 0.0)
    monkeypatch.setattr(minicluster, "warm_kernels", lambda: None)
    with (
        pytest.raises(ValueError, match="wrong") as raised,
        minicluster.MiniCluster(1, 1, str(tmp_path)),
    ):
        planned = layout.plan(str(tmp_path), 1, 1, base_port=None, options={})
        lines = ["2026-01-01 10:00:01,000 W nyala: full", "2026-01-01 10:00:02,000 I nyala: fine"]
        Path(planned.server("tserver-0").log).write_text("\n".join(lines) + "\n")
        raise ValueError("wrong")
    [note] = raised.value.__notes__
    assert note.splitlines() == [minicluster.NOTE, f"tserver-0.log: {lines[0]}"]
