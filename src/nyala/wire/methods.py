"""Every remote method of the public port as a constant, derived from the `.proto` descriptors.

A method that no server implements has no constant.
"""

from collections.abc import Callable
from typing import Any

from google.protobuf.descriptor import Descriptor, MethodDescriptor, ServiceDescriptor
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from nyala.common.errors import InvalidArgument
from nyala.env.rpc import Method, Shape
from nyala.wire import flight_data
from nyala.wire.proto import (
    access_pb2,
    flight_pb2,
    journal_pb2,
    nyala_pb2,
    ram_pb2,
    reads_pb2,
    transactions_pb2,
)

_FLIGHT_DATA = flight_pb2.FlightData.DESCRIPTOR.full_name


def _encoder(message: Descriptor) -> Callable[[Any], bytes]:
    if message.full_name == _FLIGHT_DATA:
        return flight_data.encode
    expected = GetMessageClass(message)

    def encode(value: Any) -> bytes:
        assert isinstance(value, expected), f"{type(value)} is not a {message.full_name}"
        return value.SerializeToString(deterministic=True)

    return encode


def _decoder(message: Descriptor) -> Callable[[bytes], Any]:
    if message.full_name == _FLIGHT_DATA:
        return flight_data.decode
    parse = GetMessageClass(message).FromString

    def decode(raw: bytes) -> Any:
        try:
            return parse(raw)
        except DecodeError as err:
            raise InvalidArgument(
                f"a message of {len(raw)} bytes is not a {message.full_name}: {err}"
            ) from err

    return decode


def _shape(method: MethodDescriptor) -> Shape:
    if method.client_streaming:
        assert method.server_streaming, f"{method.full_name}: no shape for a client stream alone"
        return Shape.BIDI
    return Shape.SERVER_STREAM if method.server_streaming else Shape.UNARY


def _method(service: ServiceDescriptor, name: str, shape: Shape | None = None) -> Method:
    described = service.methods_by_name[name]
    return Method(
        f"{service.full_name}/{name}",
        shape or _shape(described),
        _encoder(described.input_type),
        _decoder(described.input_type),
        _encoder(described.output_type),
        _decoder(described.output_type),
    )


_server = nyala_pb2.DESCRIPTOR.services_by_name["ServerService"]
SERVER_INFO = _method(_server, "ServerInfo")
SET_LOG_LEVEL = _method(_server, "SetLogLevel")

_master = nyala_pb2.DESCRIPTOR.services_by_name["MasterService"]
CREATE_TABLE = _method(_master, "CreateTable")
DROP_TABLE = _method(_master, "DropTable")
RECALL_TABLE = _method(_master, "RecallTable")
ALTER_TABLE = _method(_master, "AlterTable")
LIST_TABLES = _method(_master, "ListTables")
DESCRIBE_TABLE = _method(_master, "DescribeTable")
TABLET_LOCATIONS = _method(_master, "TabletLocations")
LIST_SERVERS = _method(_master, "ListServers")
MASTER_STATUS = _method(_master, "MasterStatus")
POLL_MASTER = _method(_master, "PollMaster")
INSPECT_MASTER = _method(_master, "InspectMaster")
SET_MAINTENANCE = _method(_master, "SetMaintenance")
SET_DECOMMISSION = _method(_master, "SetDecommission")
UNREGISTER_SERVER = _method(_master, "UnregisterServer")
STANDBY_PLANS = _method(_master, "StandbyPlans")
REPLACE_TABLET = _method(_master, "ReplaceTablet")

_transactions = transactions_pb2.DESCRIPTOR.services_by_name["TransactionService"]
TXN_READY = _method(_transactions, "Ready")
TXN_COMMIT = _method(_transactions, "Commit")
TXN_ABORT = _method(_transactions, "Abort")
TXN_STATUS = _method(_transactions, "Status")
TXN_LIST = _method(_transactions, "List")
TXN_KEY = _method(_transactions, "Key")
TXN_SET_KEY_OWNER = _method(_transactions, "SetKeyOwner")

_access = access_pb2.DESCRIPTOR.services_by_name["AccessService"]
CREATE_TOKEN = _method(_access, "CreateToken")
LIST_TOKENS = _method(_access, "ListTokens")
REVOKE_TOKEN = _method(_access, "RevokeToken")
JOIN = _method(_access, "Join")
LOGIN = _method(_access, "Login")
ADD_USER = _method(_access, "AddUser")
LIST_USERS = _method(_access, "ListUsers")
SET_USER = _method(_access, "SetUser")
REMOVE_USER = _method(_access, "RemoveUser")
RENEW = _method(_access, "Renew")
REVOKE = _method(_access, "Revoke")
MEMBERS = _method(_access, "Members")
GRANT = _method(_access, "Grant")
REVOKE_GRANT = _method(_access, "RevokeGrant")
LIST_GRANTS = _method(_access, "ListGrants")
ACCESS_RULES = _method(_access, "AccessRules")
REVOCATIONS = _method(_access, "Revocations")
AUTHORITY_STATUS = _method(_access, "AuthorityStatus")
ROTATE_AUTHORITY = _method(_access, "RotateAuthority")
ABORT_AUTHORITY = _method(_access, "AbortAuthority")
RETIRE_AUTHORITY = _method(_access, "RetireAuthority")
OFFER_AUTHORITY = _method(_access, "OfferAuthority")
TAKE_AUTHORITY = _method(_access, "TakeAuthority")
REISSUE = _method(_access, "Reissue")

_heartbeat = nyala_pb2.DESCRIPTOR.services_by_name["MasterHeartbeat"]
HEARTBEAT = _method(_heartbeat, "Heartbeat")

_admin = nyala_pb2.DESCRIPTOR.services_by_name["TabletAdmin"]
CREATE_TABLET = _method(_admin, "CreateTablet")
ALTER_TABLET = _method(_admin, "AlterTablet")
DELETE_TABLET = _method(_admin, "DeleteTablet")
LIST_TABLETS = _method(_admin, "ListTablets")
HOLD_HISTORY = _method(_admin, "HoldHistory")
START_COPY = _method(_admin, "StartCopy")
COPY_STATUS = _method(_admin, "CopyStatus")
CANCEL_COPY = _method(_admin, "CancelCopy")
CHANGE_CONFIG = _method(_admin, "ChangeConfig")
LEADER_STEP_DOWN = _method(_admin, "LeaderStepDown")
CREATE_WITNESS = _method(_admin, "CreateWitness")
UNSAFE_CHANGE_CONFIG = _method(_admin, "UnsafeChangeConfig")

_copy = nyala_pb2.DESCRIPTOR.services_by_name["CopyService"]
BEGIN_COPY = _method(_copy, "BeginCopy")
FETCH_FILE = _method(_copy, "FetchFile")
FETCH_ENTRIES = _method(_copy, "FetchEntries")
HOLD_COPY = _method(_copy, "HoldCopy")

_reads = reads_pb2.DESCRIPTOR.services_by_name["TabletReads"]
GET = _method(_reads, "Get", Shape.REQUEST_STREAM)
CHECKSUM = _method(_reads, "Checksum")
SPLIT_KEY_RANGE = _method(_reads, "SplitKeyRange")
AWAIT_CHANGES = _method(_reads, "AwaitChanges")

_tablet_transactions = transactions_pb2.DESCRIPTOR.services_by_name["TabletTransactions"]
TXN_CHECK = _method(_tablet_transactions, "Check")
TXN_KEEP = _method(_tablet_transactions, "Keep")
TXN_DROP = _method(_tablet_transactions, "Drop")
TXN_PREPARE = _method(_tablet_transactions, "Prepare")
TXN_UNPREPARE = _method(_tablet_transactions, "Unprepare")
TXN_RESOLVE = _method(_tablet_transactions, "Resolve")
TXN_STAGES = _method(_tablet_transactions, "Stages")

_journal = journal_pb2.DESCRIPTOR.services_by_name["JournalService"]
JOURNAL_STEP = _method(_journal, "Step")
JOURNAL_STEPS = _method(_journal, "Steps")
JOURNAL_READ = _method(_journal, "Read")
JOURNAL_TAIL = _method(_journal, "Tail", Shape.REQUEST_STREAM)

_coordinator = ram_pb2.DESCRIPTOR.services_by_name["CoordinatorService"]
RAM_ENLIST = _method(_coordinator, "Enlist")
RAM_CREATE_TABLE = _method(_coordinator, "CreateTable")
RAM_DROP_TABLE = _method(_coordinator, "DropTable")
RAM_SPLIT_TABLET = _method(_coordinator, "SplitTablet")
RAM_TABLET_MAP = _method(_coordinator, "TabletMap")
RAM_SERVER_LIST = _method(_coordinator, "ServerList")
RAM_HINT_CRASHED = _method(_coordinator, "HintCrashed")
RAM_SET_RECOVERY_INFO = _method(_coordinator, "SetRecoveryInfo")
RAM_WILLS = _method(_coordinator, "Wills")
RAM_DUMP = _method(_coordinator, "Dump")
RAM_COORDINATOR_STATUS = _method(_coordinator, "CoordinatorStatus")

_ensemble = ram_pb2.DESCRIPTOR.services_by_name["EnsembleService"]
RAM_TAKE_OWNERSHIP = _method(_ensemble, "TakeTabletOwnership")
RAM_DROP_OWNERSHIP = _method(_ensemble, "DropTabletOwnership")
RAM_SPLIT_OWNED = _method(_ensemble, "SplitMasterTablet")
RAM_SET_OWNERSHIP = _method(_ensemble, "SetOwnership")
RAM_UPDATE_SERVER_LIST = _method(_ensemble, "UpdateServerList")
RAM_PING = _method(_ensemble, "Ping")
RAM_SERVER_STATUS = _method(_ensemble, "ServerStatus")

_streams = reads_pb2.DESCRIPTOR.services_by_name["StreamService"]
FIND_STREAMS = _method(_streams, "Find")
CALL = _method(_streams, "Call", Shape.REQUEST_STREAM)
STREAMED = frozenset(
    (JOURNAL_STEP, JOURNAL_STEPS, JOURNAL_READ, HEARTBEAT, POLL_MASTER, ACCESS_RULES, COPY_STATUS)
)
"""Unary methods that nyala's own clients and servers call over the stream port.

CopyStatus is one of them so that ksck, which calls it, reports a stream port that does not answer.
"""

_flight = flight_pb2.DESCRIPTOR.services_by_name["FlightService"]
LIST_FLIGHTS = _method(_flight, "ListFlights")
GET_FLIGHT_INFO = _method(_flight, "GetFlightInfo")
GET_SCHEMA = _method(_flight, "GetSchema")
DO_GET = _method(_flight, "DoGet")
DO_PUT = _method(_flight, "DoPut")
