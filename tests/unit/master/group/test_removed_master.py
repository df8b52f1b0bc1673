"""A removed master whose process still runs redirects clients."""

import pytest

from nyala.common.errors import NotFound, Unavailable
from nyala.common.ids import SYS_CATALOG
from nyala.master.catalog.sys_catalog import not_found_is_unavailable
from nyala.wire import methods
from nyala.wire.proto import nyala_pb2 as pb
from tests.unit.master.support.follower_reads import started, within
from tests.unit.master.support.master_cluster import others, with_masters


def listing():
    return pb.ListTablesRequest(staleness=within())


@pytest.mark.row("S0.85")
def test_deleted_catalog_is_not_reported_as_table_not_found():
    async def work(masters):
        leader, _ = await started(masters)
        follower = others(leader)[0]
        assert await masters.ask(follower, methods.LIST_TABLES, listing())
        await masters.master(follower).host.delete_replica(SYS_CATALOG)
        with pytest.raises(Unavailable, match="was removed from the masters"):
            await masters.ask(follower, methods.LIST_TABLES, listing())

    with_masters(work)


def test_removed_master_answer_is_independent_of_leader():
    with pytest.raises(Unavailable, match="use another"), not_found_is_unavailable():
        raise NotFound("the replica was deleted")
