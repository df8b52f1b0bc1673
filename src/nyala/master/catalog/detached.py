"""Running a catalog operation to its end, whether or not its caller is cancelled.

A cancelled operation would leave a batch in flight that the leader's memory does not know.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any

from nyala.common.errors import NyalaError
from nyala.env.env import Env
from nyala.master.catalog.plan import CatalogPlan


async def detached(env: Env, work: Coroutine[Any, Any, CatalogPlan]) -> CatalogPlan:
    """Run an operation in a task of its own, and return its plan.

    Args:
        env: tasks.
        work: the operation.

    Raises:
        NyalaError: as the operation did.
    """

    async def guarded() -> CatalogPlan | NyalaError:
        try:
            return await work
        except NyalaError as err:
            return err

    done = await asyncio.shield(env.tasks.spawn(guarded(), "catalog operation"))
    if isinstance(done, NyalaError):
        raise done
    assert isinstance(done, CatalogPlan), done
    return done
