"""Targets of Prometheus' HTTP service discovery: the web ports of all servers of a cluster."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Target:
    """One server.

    Attributes:
        address: host:port of its web port; empty: it has none.
        role: "master" or "tserver".
        uuid: of the server.
        location: of the server; empty: not known.
    """

    address: str
    role: str
    uuid: str
    location: str = ""


def service_discovery(
    cluster_id: str, targets: Iterable[Target], *, secure: bool
) -> list[dict[str, object]]:
    """Return the list that Prometheus expects of `http_sd_configs`, by role and address.

    Args:
        cluster_id: becomes the label `cluster`.
        targets: the servers; those without a web port are left out.
        secure: they serve HTTPS.
    """
    found: list[dict[str, object]] = []
    for target in sorted(targets, key=lambda t: (t.role, t.address)):
        if not target.address:
            continue
        labels = {
            "__scheme__": "https" if secure else "http",
            "__metrics_path__": "/metrics",
            "job": "nyala",
            "cluster": cluster_id,
            "role": target.role,
            "uuid": target.uuid,
        }
        if target.location:
            labels["location"] = target.location
        found.append({"targets": [target.address], "labels": labels})
    return found
