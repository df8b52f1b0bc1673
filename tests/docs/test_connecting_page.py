"""The page about connecting, command by command, at a cluster with certificates."""

from pathlib import Path

import pytest

from nyala.testing import MiniCluster
from tests.docs.pages import FOLDER, run_page

pytestmark = pytest.mark.full

PAGE = Path(__file__).parents[2] / "docs" / "use" / "connecting.md"


@pytest.mark.timeout(300)
def test_connecting_page_commands_run(tmp_path):
    with MiniCluster(1, 1, str(tmp_path / FOLDER), secure=True) as cluster:
        run_page(PAGE, cluster)
