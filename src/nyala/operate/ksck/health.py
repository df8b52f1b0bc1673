"""Findings of `nyala cluster ksck`, and their columns."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from nyala.operate.tablets import HOLDS

HELD = ("table", *HOLDS)
"""Columns of `ClusterHealth.holds`."""
QUOTAS = ("table", "bytes", "quota", "percent", "state")
"""Columns of `ClusterHealth.quotas`."""
MASTER = ("uuid", "address", "version", "state")
"""Columns of `ClusterHealth.masters`."""
TSERVER = ("uuid", "address", "version", "replicas", "state")
"""Columns of `ClusterHealth.tservers`."""
_REPLICA = ("table", "tablet", "address", "state", "role", "term", "applied", "behind")


@dataclass(slots=True)
class ClusterHealth:
    """Result of ksck. `problems` is empty exactly when the cluster is healthy.

    A table at or near its quota is listed in `quotas`, and is no problem of the cluster.
    """

    masters: list[tuple[str, str, str, str]] = field(default_factory=list)
    tservers: list[tuple[str, str, str, int, str]] = field(default_factory=list)
    tables: list[tuple[str, int, int, int, int]] = field(default_factory=list)
    replicas: list[tuple[str, str, str, str, str, int, int, int]] = field(default_factory=list)
    holds: list[tuple[str, str, int, int, int, int]] = field(default_factory=list)
    quotas: list[tuple[str, int, int, int, str]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        return {
            "healthy": not self.problems,
            "masters": [dict(zip(MASTER, m, strict=True)) for m in self.masters],
            "tservers": [dict(zip(TSERVER, t, strict=True)) for t in self.tservers],
            "tables": [
                dict(zip(("table", "replicas", "tablets", "healthy", "problems"), t, strict=True))
                for t in self.tables
            ],
            "replicas": [dict(zip(_REPLICA, r, strict=True)) for r in self.replicas],
            "holds": [dict(zip(HELD, h, strict=True)) for h in self.holds],
            "quotas": [dict(zip(QUOTAS, q, strict=True)) for q in self.quotas],
            "problems": self.problems,
        }

    def states(self) -> list[tuple[str, str, int]]:
        """Return the number of replicas of tablets in each state and role."""
        counts = Counter((r[3], r[4]) for r in self.replicas)
        return [(*key, counts[key]) for key in sorted(counts)]
