"""Reports and metrics of tablets, for the tests of damage."""

import urllib.request

import pyarrow as pa

from nyala.testing import MiniCluster
from tests.waiting import within

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.string()), ("n", pa.int64())])
ROWS = [{"k": n, "v": f"row {n}", "n": n} for n in range(500)]


def fetch(cluster: MiniCluster, name: str, path: str) -> str:
    with urllib.request.urlopen(
        f"http://{cluster.web_address(name)}{path}", timeout=within(60)
    ) as answer:
        text: str = answer.read().decode()
        return text


def figures(cluster: MiniCluster, name: str, tablet: str, table: str) -> dict[str, float]:
    """Metrics of a tablet in `/metrics`, without their common prefix."""
    found = {}
    for line in fetch(cluster, name, "/metrics").splitlines():
        metric, _, rest = line.partition("{")
        if f'tablet="{tablet}"' in rest:
            assert f'table="{table}"' in rest
            found[metric.removeprefix("nyala_tablet_")] = float(rest.rpartition(" ")[2])
    return found
