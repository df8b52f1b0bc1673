"""The commands of docs/operate/backup.md run as written."""

from pathlib import Path

import pytest

from nyala.testing import MiniCluster
from tests.docs.pages import FOLDER, ROOT, run_page


@pytest.mark.full
def test_backup_page_commands_work_as_written(tmp_path: Path):
    with MiniCluster(dir=str(tmp_path / FOLDER)) as cluster:
        run_page(ROOT / "docs" / "operate" / "backup.md", cluster)
