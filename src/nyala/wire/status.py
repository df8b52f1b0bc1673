"""Conversion of errors to and from gRPC statuses.

The status is chosen by the error's code; an `Error` message carries the rest.

The `Error` is in the trailing metadata, key `nyala-error-bin`. Clients that do not know it (any Arrow Flight
client) read the status text, which is the error's message. Of an unexpected exception only the name of the
method is sent.
"""

import logging
import re

import grpc
from google.protobuf.message import DecodeError

from nyala.common import addresses
from nyala.common.errors import (
    NOT_SENT,
    Corrupt,
    Forbidden,
    InvalidArgument,
    NotFound,
    NyalaError,
    Throttled,
    TimedOut,
    TooLarge,
    Unauthenticated,
    Unavailable,
    from_code,
)
from nyala.wire.proto.nyala_pb2 import Error
from nyala.wire.tls import untrusted

log = logging.getLogger(__name__)

METADATA_KEY = "nyala-error-bin"
MAX_MESSAGE_BYTES = 1000
"""Maximum text of an error, in bytes; text and `Error` stay far below the 8 KiB that gRPC clients accept."""
MAX_DETAIL_BYTES = 300
MAX_DETAILS = 6

_Code = grpc.StatusCode
STATUS: dict[str, grpc.StatusCode] = {
    "NOT_LEADER": _Code.UNAVAILABLE,
    "NOT_LEADING": _Code.FAILED_PRECONDITION,
    "STALE_EPOCH": _Code.FAILED_PRECONDITION,
    "TRANSACTION_DENIED": _Code.FAILED_PRECONDITION,
    "UNAVAILABLE": _Code.UNAVAILABLE,
    "TIMED_OUT": _Code.DEADLINE_EXCEEDED,
    "THROTTLED": _Code.RESOURCE_EXHAUSTED,
    "NOT_FOUND": _Code.NOT_FOUND,
    "ALREADY_PRESENT": _Code.ALREADY_EXISTS,
    "INVALID_ARGUMENT": _Code.INVALID_ARGUMENT,
    "CAS_FAILED": _Code.ABORTED,
    "CONDITION_FAILED": _Code.ABORTED,
    "JOURNAL_FULL": _Code.RESOURCE_EXHAUSTED,
    "QUOTA_EXCEEDED": _Code.RESOURCE_EXHAUSTED,
    "LOG_GONE": _Code.NOT_FOUND,
    "SCHEMA_MISMATCH": _Code.FAILED_PRECONDITION,
    "RANGES_CHANGED": _Code.FAILED_PRECONDITION,
    "TOO_LARGE": _Code.RESOURCE_EXHAUSTED,
    "SESSION_EXPIRED": _Code.FAILED_PRECONDITION,
    "HISTORY_GONE": _Code.OUT_OF_RANGE,
    "UNAUTHENTICATED": _Code.UNAUTHENTICATED,
    "FORBIDDEN": _Code.PERMISSION_DENIED,
    "OUTCOME_UNKNOWN": _Code.UNKNOWN,
    "NOT_READY": _Code.DEADLINE_EXCEEDED,
    "CORRUPT": _Code.DATA_LOSS,
    "BAD_VERSION": _Code.FAILED_PRECONDITION,
}
"""gRPC status by error code; other codes are INTERNAL."""

_FOREIGN: dict[grpc.StatusCode, type[NyalaError]] = {
    _Code.UNAVAILABLE: Unavailable,
    _Code.CANCELLED: Unavailable,
    _Code.INTERNAL: Unavailable,  # gRPC's own, of a lost connection
    _Code.DEADLINE_EXCEEDED: TimedOut,
    _Code.RESOURCE_EXHAUSTED: Throttled,
    _Code.NOT_FOUND: NotFound,
    _Code.INVALID_ARGUMENT: InvalidArgument,
    _Code.UNIMPLEMENTED: InvalidArgument,
    _Code.UNAUTHENTICATED: Unauthenticated,
    _Code.PERMISSION_DENIED: Forbidden,
    _Code.DATA_LOSS: Corrupt,
}
_OVERSIZED = re.compile(r"message larger than max \((\d+) vs\. (\d+)\)")


def _clip(text: str, limit_bytes: int) -> str:
    raw = text.encode("utf-8", "replace")
    if len(raw) <= limit_bytes:
        return raw.decode()
    return raw[:limit_bytes].decode("utf-8", "ignore") + " …"


def to_proto(err: NyalaError) -> Error:
    """Return the `Error` message of an error; long texts are truncated, because metadata is limited.

    `not sent` of a request made by this server is not passed on: it does not apply to the client's request.
    """
    sent = {k: v for k, v in err.details.items() if k not in NOT_SENT}
    details = sorted(sent.items())[:MAX_DETAILS]
    return Error(
        code=err.code,
        message=_clip(err.message, MAX_MESSAGE_BYTES),
        details={_clip(k, MAX_DETAIL_BYTES): _clip(str(v), MAX_DETAIL_BYTES) for k, v in details},
    )


def from_proto(error: Error) -> NyalaError:
    """Return the error of an `Error` message, with its class."""
    made = from_code(error.code, error.message, dict(error.details))
    made.answered = True
    return made


def as_nyala_error(err: BaseException, doing: str) -> NyalaError:
    """Return the error to send to the caller; an unexpected exception is logged with its traceback.

    Args:
        err: raised by a handler.
        doing: name of the method, for the log and the caller.
    """
    if isinstance(err, NyalaError):
        return err
    log.error("%s failed unexpectedly", doing, exc_info=err)
    return NyalaError(f"internal error of the server in {doing}; see the server's log")


def to_status(err: NyalaError) -> tuple[grpc.StatusCode, str, tuple[tuple[str, bytes], ...]]:
    """Return the gRPC status, status text and trailing metadata of an error."""
    message = to_proto(err)
    text = f"{message.message} [{err.code}]"
    trailer = ((METADATA_KEY, message.SerializeToString()),)
    return STATUS.get(err.code, _Code.INTERNAL), text, trailer


def decode_error(raw: bytes, address: str) -> NyalaError:
    """Return the error in an encoded `Error` from the server at an address."""
    try:
        return from_proto(Error.FromString(raw))
    except DecodeError:
        return NyalaError(f"the server at {address} sent an error that cannot be read")


def from_rpc_error(err: grpc.aio.AioRpcError, address: str, method: str) -> NyalaError:
    """Return the error of a failed call.

    Args:
        err: raised by gRPC.
        address: address of the server, for the error message.
        method: `package.Service/Method`, for the error message.
    """
    for key, value in err.trailing_metadata() or ():
        if key == METADATA_KEY:
            return decode_error(value, address)
    text = err.details() or ""
    if found := _OVERSIZED.search(text):
        size, limit = found.groups()
        return TooLarge(
            f"a message of {size} bytes to or from {address} is over the limit of {limit} bytes; "
            "use smaller batches",
            {"limit": limit, "size": size},
        )
    if err.code() is _Code.UNIMPLEMENTED:
        return InvalidArgument(
            f"the server at {address} does not have the method {method}; "
            "it is of another kind, or of an older version: check the address, and upgrade the server"
        )
    if err.code() is _Code.DEADLINE_EXCEEDED:
        return TimedOut(f"no response from {address} to {method} before the deadline")
    if err.code() is _Code.UNAVAILABLE or "Stream removed" in text:  # gRPC's rare form of it
        if reason := untrusted.reason_in(text):
            host = addresses.parse(address)[0]
            why = f"the server at {address} runs, and {untrusted.explained(reason, host)}"
            return Unavailable(why, {**NOT_SENT, untrusted.UNTRUSTED: reason})
        details = NOT_SENT if "failed to connect to all addresses" in text else None
        return Unavailable(
            f"the server at {address} cannot be reached: {_clip(text, 300)}", details
        )
    return _FOREIGN.get(err.code(), NyalaError)(
        f"{method} at {address} failed with {err.code().name}: {_clip(text, MAX_MESSAGE_BYTES)}"
    )
