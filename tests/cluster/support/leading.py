"""Leaders of tablets. Just after an election the masters name none, and callers wait."""

from nyala.testing import MiniCluster
from tests.waiting import wait_until


def leaders(cluster: MiniCluster, table: str) -> dict[str, str]:
    """Return the leader of each tablet of a table, as the masters report it."""
    names = {cluster.address(n): n for n in cluster.names}

    def known() -> dict[str, str] | None:
        with cluster.connect() as client:
            places = client.table(table).tablets()
        led = {str(p.id): names[p.leader] for p in places if p.leader}
        return led if len(led) == len(places) else None

    return wait_until(known, f"the masters know the leader of {table}")


def leader(cluster: MiniCluster, table: str) -> str:
    """Return the name of the server that leads the only tablet of a table."""
    (found,) = leaders(cluster, table).values()
    return found
