"""Calls of `nyala cluster ksck` on a cluster under test, and waits for its findings."""

from nyala.client.connection import Connection
from nyala.client.core import ClientOptions
from nyala.common.errors import NyalaError
from nyala.operate.ksck.check import check
from nyala.operate.ksck.checksum import compare
from nyala.operate.ksck.health import ClusterHealth
from nyala.testing import MiniCluster
from tests.waiting import wait_until


def ksck(cluster: MiniCluster) -> ClusterHealth:
    """Return the findings of `nyala cluster ksck`."""
    connection = Connection(cluster.masters, ClientOptions(timeout_ms=30_000))
    try:
        return connection.run(check(connection.core))
    finally:
        connection.close()


def wait_ksck(cluster: MiniCluster, timeout_s: float = 120) -> ClusterHealth:
    """Wait until `ksck` finds no problem."""
    last = ["never answered"]

    def good() -> ClusterHealth | None:
        try:
            health = ksck(cluster)
        except NyalaError as err:
            last[0] = err.message
            return None
        last[0] = "; ".join(health.problems)
        return None if health.problems else health

    try:
        return wait_until(good, "a healthy cluster", timeout_s, poll_s=0.1)
    except AssertionError as err:
        raise AssertionError(f"{err}: {last[0]}") from None


def wait_equal(cluster: MiniCluster, timeout_s: float = 120) -> None:
    """Wait until `ksck --checksum` finds no problem: all replicas of each tablet are equal."""
    wait_ksck(cluster, timeout_s)
    connection = Connection(cluster.masters, ClientOptions(timeout_ms=30_000))
    last = ["never answered"]

    def equal() -> bool:
        try:
            _, last[:] = connection.run(compare(connection.core, int(timeout_s * 1000)))
        except NyalaError as err:
            last[:] = [err.message]
        assert not any("its replicas differ" in problem for problem in last), last
        return not last

    try:
        wait_until(equal, "equal replicas", timeout_s, poll_s=0.1)
    except AssertionError as err:
        raise AssertionError(f"{err}: {last}") from None
    finally:
        connection.close()
