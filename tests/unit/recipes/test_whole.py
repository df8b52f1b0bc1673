"""WholeTasks: an error whose caller has ended meanwhile is reported to nobody."""

import pytest

from nyala.common.errors import NotFound
from nyala.recipes.whole import WholeTasks
from tests.unit.recipes.support.candidates import candidates


@candidates
async def test_error_that_arrives_as_its_caller_is_killed_is_not_reported(c):
    journal = await c.journal()
    tasks = WholeTasks(journal.env, "tasks")

    async def fail():
        raise NotFound("none")

    with pytest.raises(NotFound):
        await tasks.run(fail())
    waiting = tasks.run(fail())
    waiting.send(None)  # it waits
    await c.wait_s(0.001)  # the error is there, and it has not looked
    waiting.close()
    assert not c.loop.failures
