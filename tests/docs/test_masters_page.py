"""The page about adding and removing masters, command by command, on real processes."""

from pathlib import Path

import pytest

from nyala.testing import MiniCluster
from tests.docs.pages import FOLDER, run_page
from tests.docs.support.recovery_pages import some_table

pytestmark = pytest.mark.full

PAGE = Path(__file__).parents[2] / "docs" / "operate" / "masters.md"


@pytest.mark.row("S2.14", "S2.15")
def test_masters_page_commands_run(tmp_path):
    with MiniCluster(1, 1, dir=str(tmp_path / FOLDER), secure=True) as cluster:
        some_table(cluster, replicas=1)
        run_page(PAGE, cluster)
