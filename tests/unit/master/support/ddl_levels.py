"""Tablet servers with reported schema versions."""

from nyala.common.hybrid_time import from_micros
from nyala.master.tservers import TServers
from nyala.wire.proto import nyala_pb2 as pb
from tests.unit.master.support.master_helpers import report, server_info


def reported_versions(time_us=0, **versions):
    """Return servers a, b, c with reports of some tablets: name={tablet: schema version}.

    Args:
        time_us: time of their clocks.
        versions: of the tablets of each server.
    """
    servers = TServers(10**9)
    for name in "abc":
        beat = pb.HeartbeatRequest(server=server_info(name), full=True, report_sequence=1)
        beat.server.hybrid_time = from_micros(time_us)
        for tablet, version in versions.get(name, {}).items():
            tablet_report = report(tablet)
            tablet_report.schema_version = version
            beat.tablets.append(tablet_report)
        servers.record_report(servers.record_heartbeat(beat, 1), beat, 1)
    return servers


def ids(catalog):
    return [t.id for t in catalog.tablets()]
