"""Comparison of the replicas of a cluster's tablets."""

from nyala.client.connection import Connection
from nyala.client.core import ClientCore, ClientOptions
from nyala.testing import MiniCluster
from nyala.wire import methods
from nyala.wire.proto import nyala_pb2 as pb


def everywhere(cluster: MiniCluster) -> dict[str, set[tuple[int, int, int]]]:
    """Return for each tablet the status of its replicas: (last, applied, rows)."""

    async def ask(core: ClientCore) -> dict[str, set[tuple[int, int, int]]]:
        found: dict[str, set[tuple[int, int, int]]] = {}
        for name in cluster.names:
            if name.startswith("tserver"):
                answer = await core.env.rpc.call(
                    cluster.address(name),
                    methods.LIST_TABLETS,
                    pb.ListTabletsRequest(),
                    timeout_ms=20_000,
                )
                for t in answer.tablets:
                    state = (t.last_index, t.applied_index, t.rows)
                    found.setdefault(t.report.tablet_id, set()).add(state)
        return found

    connection = Connection(cluster.masters, ClientOptions(timeout_ms=60_000))
    try:
        return connection.run(ask(connection.core))
    finally:
        connection.close()


def all_equal(cluster: MiniCluster) -> bool:
    found = everywhere(cluster)
    return all(len(s) == 1 and next(iter(s))[0] == next(iter(s))[1] for s in found.values())
