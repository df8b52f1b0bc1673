"""Layout of a cluster under test: its servers with their addresses, directories and options."""

from nyala.testing import MiniCluster, layout
from nyala.testing.layout import Layout


def layout_of(cluster: MiniCluster) -> Layout:
    """Return the layout that the cluster's directory holds."""
    found = layout.load(cluster.dir)
    assert found is not None, cluster.dir
    return found
