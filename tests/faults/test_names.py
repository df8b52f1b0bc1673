"""Masters that are listed by names, in a network of the test's own."""

import pytest

from tests.faults.support import sandbox
from tests.waiting import within

pytestmark = pytest.mark.full


@pytest.mark.row("S2.2", "S2.6", "S2.14")
@pytest.mark.timeout(410)
def test_dead_master_is_replaced_under_its_name_at_another_address_without_a_restart():
    print(sandbox.run("tests.faults.names", timeout_s=within(400)))
