"""A whole cluster of real processes for tests: `MiniCluster`; as a fixture: `nyala.testing.plugin`."""

from nyala.testing.minicluster import MiniCluster

__all__ = ["MiniCluster"]
