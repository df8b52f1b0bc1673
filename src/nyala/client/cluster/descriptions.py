"""Descriptions of servers and tables, from the leader master."""

from dataclasses import dataclass

from nyala.common.partitioning.partition import PartitionSchema
from nyala.wire import convert
from nyala.wire.proto import nyala_pb2 as pb


@dataclass(frozen=True, slots=True)
class Server:
    """One master or tablet server.

    Attributes:
        uuid: its permanent id.
        role: "master" or "tserver".
        address: public host:port.
        web_address: host:port of its web port; empty: none.
        location: failure domain, as given at its start.
        alive: it sent a heartbeat recently.
        silent_ms: milliseconds since its last heartbeat.
        leader: it is the leader master.
        replicas: how many it has; 0 for masters.
        version: release that it runs.
    """

    uuid: str
    role: str
    address: str
    web_address: str
    location: str
    alive: bool
    silent_ms: int
    leader: bool
    replicas: int
    version: str

    @classmethod
    def from_proto(cls, entry: pb.ServerEntry) -> "Server":
        """Return the server of a ListServers entry."""
        return cls(
            entry.uuid, entry.role, entry.address, entry.web_address, entry.location, entry.alive,
            entry.last_heartbeat_ms, entry.leader, entry.replicas, entry.version,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class TableFacts:
    """Facts of a table besides its columns.

    Attributes:
        id: its id.
        state: PREPARING, RUNNING, ALTERING or REMOVED.
        partition: partitioning of the table.
        replicas: replicas of each tablet.
        options: table options.
        comment: as given at its creation.
        quota_bytes: quota of the table (option `max_bytes`); 0: none.
        bytes: size that counts for the quota: of one replica of each tablet, some seconds ago; 0: not known,
            as without a quota.
    """

    id: str
    state: str
    partition: PartitionSchema
    replicas: int
    options: dict[str, str]
    comment: str
    quota_bytes: int = 0
    bytes: int = 0

    @property
    def size_text(self) -> str:
        """Size and quota for the end of a list of words; empty: the table has no quota."""
        if not self.quota_bytes:
            return ""
        over = ", takes deletes only" if self.bytes >= self.quota_bytes else ""
        return f", {self.bytes} bytes of a quota of {self.quota_bytes}{over}"

    @classmethod
    def from_proto(cls, answer: pb.DescribeTableResponse) -> "TableFacts":
        """Return the facts of a DescribeTable response."""
        table = answer.table
        partition = convert.partition_schema_from_proto(table.partition)
        return cls(
            answer.id,
            answer.state,
            partition,
            table.replicas,
            dict(table.options),
            table.comment,
            answer.quota_bytes,
            answer.bytes,
        )
