"""A cluster over three machines with certificates, under the load of the demo."""

import pytest

from tests.faults.support import sandbox
from tests.waiting import within

pytestmark = pytest.mark.full


@pytest.mark.row("A23", "W15")
@pytest.mark.timeout(1200)
def test_cluster_on_three_machines_loads_the_year_while_each_server_is_killed():
    print(sandbox.run("tests.faults.machines", timeout_s=within(1100)))
