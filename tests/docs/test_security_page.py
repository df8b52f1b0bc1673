"""The page about certificates, command by command, on real processes."""

from pathlib import Path

import pytest

from nyala.testing import MiniCluster
from tests.docs.pages import FOLDER, run_page

pytestmark = pytest.mark.full

PAGE = Path(__file__).parents[2] / "docs" / "operate" / "security.md"


@pytest.mark.timeout(300)
def test_security_page_commands_run(tmp_path):
    with MiniCluster(1, 1, str(tmp_path / FOLDER)) as cluster:  # for the page's folder and programs
        run_page(PAGE, cluster)
