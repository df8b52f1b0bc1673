"""CoordinatorState: what the coordinator's records describe. Leader, follower and replay share it; no I/O."""

import base64
import json
from collections.abc import Callable, Iterator
from typing import Any

from google.protobuf.json_format import MessageToDict
from google.protobuf.message import DecodeError

from nyala.ram.answers import PREFIX, RequestAnswers, name_of
from nyala.ram.ids import ServerId
from nyala.ram.server_list import EnsembleServerList
from nyala.ram.tablet_map import TabletMap
from nyala.recipes.records import ALIVE
from nyala.wire.proto import ram_pb2 as pb

LARGEST, VERSION = "largest_table_id", "server_list_version"
_SERVER = ("server_up", "server_crashed", "server_needs_recovery", "server_remove_update", "server_update",
           "server_replication_update", "server_loads")  # fmt: skip


def parse(data: bytes) -> pb.Record:
    """Return a record; one of an unknown type, or none at all, has no field set, and is ignored (S3.42)."""
    try:
        return pb.Record.FromString(data)
    except DecodeError:
        return pb.Record()


def objects_of(record: pb.Record) -> tuple[str, ...]:
    """Return the name of the object that a record describes, if any; an intent describes none."""
    what = record.WhichOneof("what")
    if what == "alive_table":
        return (f"table {record.alive_table.id}",)
    if what in (LARGEST, VERSION):
        return (what,)
    if what == "answered":
        return (name_of(record.answered.operation),)
    if what == "server_up_update":
        return (f"{what} {record.server_up_update}",)
    if what == "server_replication_up_update":
        return (f"{what} {record.server_replication_up_update.update_version}",)
    if what in _SERVER:
        return (f"{what} {ServerId.of(getattr(record, what).id)}",)
    return ()


def answer_of(record: pb.Record) -> pb.Answered:
    """Return what an intent notes of the request of a client; empty: it is no intent of one."""
    what = record.WhichOneof("what")
    if what == "create_table":
        made = record.create_table
        return pb.Answered(
            operation=made.operation, request=f"create {made.name}", table_id=made.id
        )
    if what == "drop_table":
        drop = record.drop_table
        return pb.Answered(operation=drop.operation, request=f"drop {drop.name}", table_id=drop.id)
    if what == "split_tablet":
        split = record.split_tablet
        request = f"split {split.name} {split.split_hash}"
        return pb.Answered(operation=split.operation, request=request, table_id=split.table_id)
    return pb.Answered()


def objects_of_server(server: ServerId) -> list[str]:
    """Return the names of all objects of a server."""
    return [f"{what} {server}" for what in _SERVER]


class CoordinatorState:
    """Servers and tables, as the records describe them.

    Attributes:
        servers: the list of servers.
        tablets: tables and tablets.
        answers: requests of clients that took effect.
    """

    def __init__(self) -> None:
        self.servers = EnsembleServerList()
        self.tablets = TabletMap()
        self.answers = RequestAnswers()
        servers, tablets = self.servers, self.tablets
        self._apply: dict[str, Callable[[Any], object]] = {
            "create_table": tablets.add_table,
            "alive_table": tablets.add_table,
            "drop_table": lambda r: tablets.remove_table(r.id),
            LARGEST: tablets.note_largest,
            "answered": self.answers.note,
            "split_tablet": lambda r: tablets.split(r.table_id, r.split_hash),
            "tablet_recovered": lambda r: tablets.recovered(
                r.table_id, ServerId.of(r.lost), r.pieces
            ),
            "server_up": servers.up,
            "server_up_update": servers.up_update,
            "server_crashed": servers.crashed,
            "server_needs_recovery": servers.needs_recovery,
            "server_remove_update": servers.remove,
            "server_update": servers.recovery_info,
            "server_replication_update": servers.group,
            "server_loads": servers.note_loads,
            "server_replication_up_update": servers.group_update,
            VERSION: servers.confirm,
        }

    def apply(self, record: pb.Record) -> None:
        """Apply a record; again if it was applied before. Records of unknown types change nothing."""
        what = record.WhichOneof("what")
        if what is not None:
            self._apply[what](getattr(record, what))
            self.answers.note(answer_of(record))

    def retract(self, name: str) -> None:
        """Remove an object that no record describes any more."""
        what, _, rest = name.partition(" ")
        if what == "table":
            self.tablets.forget(int(rest))
        elif what == PREFIX:
            self.answers.forget(name)
        elif what == LARGEST:
            self.tablets.forget_largest()
        elif what == "server_up":
            self.servers.forget(ServerId.parse(rest))
        elif what == "server_up_update":
            self.servers.unconfirmed.discard(int(rest))
        elif what == "server_replication_up_update":
            self.servers.moved.pop(int(rest), None)

    def describe(self) -> Iterator[pb.Record]:
        """Yield the records that describe the state: the valid entries of the log in a quiet moment."""
        yield from self.servers.describe()
        yield from self.tablets.describe()
        yield from self.answers.describe()

    def dump(self) -> dict[str, Any]:
        """Return the whole state, to be compared and shown."""
        return {
            "version": self.servers.version,
            "confirmed": self.servers.confirmed,
            "next_table_id": self.tablets.next_id,
            "records": [_plain(r) for r in self.describe()],
        }


def _plain(record: pb.Record) -> dict[str, Any]:
    """Return a record for JSON."""
    found: dict[str, Any] = MessageToDict(
        record, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    return found


def shown(data: bytes) -> dict[str, Any]:
    """Return the data of an entry of the log for JSON: its state, kind and record; base64 if it is none."""
    if data.startswith(ALIVE):
        return {"leader_alive": json.loads(data.removeprefix(ALIVE))}
    state, _, rest = data.partition(b" ")
    kind, _, payload = rest.partition(b" ")
    record = parse(payload)
    if state not in (b"intent", b"done") or record.WhichOneof("what") is None:
        return {"data": base64.b64encode(data).decode()}
    plain = MessageToDict(record, preserving_proto_field_name=True)
    return {"state": state.decode(), "operation": kind.decode(errors="replace"), "record": plain}
