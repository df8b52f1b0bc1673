"""Clusters of real processes for tests: `MiniCluster`; the pytest fixture is in `nyala.testing.plugin`."""

from nyala.testing.minicluster import MiniCluster

__all__ = ["MiniCluster"]
