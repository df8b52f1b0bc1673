"""The exception tree and its stable codes, the same on the wire, in Python and in the CLI.

NyalaError
├─ Retryable       NotLeader(leader) · Unavailable · TimedOut · Throttled · RangesChanged
├─ Rejected        NotFound · AlreadyPresent · InvalidArgument · CasFailed · SchemaMismatch · TooLarge
│                  SessionExpired · HistoryGone · Unauthenticated · Forbidden
├─ OutcomeUnknown  (the client's PartlyWritten)
├─ NotReady
└─ Corrupt         BadChecksum · BadVersion · LogGap

What an error that a client raises says of its call (docs/use/client.md): Retryable and Rejected: nothing
happened, save SessionExpired, which as OutcomeUnknown means that it may have; NotReady: it did happen.

A message says what happened, why, and what to do next. Every error can be rebuilt from
`(code, message, details)`, which is all that is sent (`wire/status.py`).
"""

from collections.abc import Mapping
from typing import ClassVar


class NyalaError(Exception):
    """Base of every error that nyala raises on purpose.

    Attributes:
        code: stable upper-case name.
        exit_status: of a command that ends with it.
        message: one or two sentences for a person.
        details: further facts, strings only; documented on each subclass.
        answered: a server has answered a request with it; else it was made on this side.
    """

    code: ClassVar[str] = "INTERNAL"
    exit_status: ClassVar[int] = 1
    answered: bool = False

    def __init__(self, message: str, details: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.details: dict[str, str] = dict(details or {})

    def __str__(self) -> str:
        return f"{self.message} [{self.code}]"

    def __reduce__(self) -> tuple[object, ...]:  # with whatever a subclass has beside these two
        return (type(self), (self.message, self.details), dict(self.__dict__))


class Retryable(NyalaError):
    """Nothing happened, and the same call may succeed later; the client has tried until its deadline.

    Between processes it is weaker when there was no answer: see `may_have_arrived`.
    """


class NotLeader(Retryable):
    """This replica does not lead its group. details: `leader` (uuid) and `address` when known."""

    code = "NOT_LEADER"
    exit_status = 3

    @property
    def leader(self) -> str | None:
        """Uuid of the leader, as far as the answering server knows."""
        return self.details.get("leader")

    @property
    def address(self) -> str | None:
        """Public address of the leader, as far as the answering server knows."""
        return self.details.get("address")


class Unavailable(Retryable):
    """The server cannot be reached, is starting, or has no majority behind it.

    details: `sent` = "no" (`NOT_SENT`) when no connection came about: the server has seen nothing of it.
    """

    code = "UNAVAILABLE"
    exit_status = 3


class TimedOut(Retryable):
    """The deadline passed before an answer came."""

    code = "TIMED_OUT"
    exit_status = 7


class Throttled(Retryable):
    """A queue or the memory budget is full; wait and send again. details: `retry_after_ms`."""

    code = "THROTTLED"
    exit_status = 3


class RangesChanged(Retryable):
    """The table's ranges are others than the request was planned by; nothing happened. Plan it anew.

    details: `version`, of the ranges that the server knows, if it does.
    """

    code = "RANGES_CHANGED"
    exit_status = 3


class Rejected(NyalaError):
    """The request was wrong for the state it met; sending it again changes nothing."""


class NotFound(Rejected):
    """No such table, column, tablet or server."""

    code = "NOT_FOUND"
    exit_status = 5


class AlreadyPresent(Rejected):
    """The name or id is taken."""

    code = "ALREADY_PRESENT"
    exit_status = 6


class InvalidArgument(Rejected):
    """The request itself is malformed or out of range."""

    code = "INVALID_ARGUMENT"
    exit_status = 2


class CasFailed(Rejected):
    """A compare-and-set met another value. details: `expected`, `found`."""

    code = "CAS_FAILED"
    exit_status = 6


class SchemaMismatch(Rejected):
    """The data or the schema version does not fit the table's schema."""

    code = "SCHEMA_MISMATCH"
    exit_status = 6


class TooLarge(Rejected):
    """A message, a batch, a key or a cell is over its limit. details: `limit`, `size`."""

    code = "TOO_LARGE"
    exit_status = 2


class SessionExpired(Rejected):
    """The result of this sequence number is no longer kept; the operation was not executed again."""

    code = "SESSION_EXPIRED"
    exit_status = 6


class HistoryGone(Rejected):
    """The moment asked for lies below the history that is kept. details: `horizon`."""

    code = "HISTORY_GONE"
    exit_status = 6


class Unauthenticated(Rejected):
    """No valid credentials."""

    code = "UNAUTHENTICATED"
    exit_status = 4


class Forbidden(Rejected):
    """The caller, or this build, may not do that."""

    code = "FORBIDDEN"
    exit_status = 4


class OutcomeUnknown(NyalaError):
    """The operation may or may not take effect: leadership was lost while it was in flight."""

    code = "OUTCOME_UNKNOWN"


class NotReady(NyalaError):
    """The change was made, and what the call waits for after it did not come about in time."""

    code = "NOT_READY"
    exit_status = 7


class Corrupt(NyalaError):
    """Bytes on disk or on the wire are damaged; nothing was changed because of them."""

    code = "CORRUPT"


class BadChecksum(Corrupt):
    """A checksum does not match its bytes. details: `path`, `offset`."""


class BadVersion(Corrupt):
    """A format or message of a version that this build does not know."""


class LogGap(Corrupt):
    """Entries that must be there are missing from the log."""


NOT_SENT: Mapping[str, str] = {"sent": "no"}
"""Details of an Unavailable whose request has not left this process."""


def may_have_arrived(error: NyalaError) -> bool:
    """Whether a try that ended with this error may have reached a server that carries it out.

    A server that answers knows: whatever may take effect is OutcomeUnknown. An answer that is lost or late is
    Unavailable or TimedOut, made on this side.
    """
    if error.answered:
        return isinstance(error, OutcomeUnknown)
    return not isinstance(error, NotLeader | Throttled) and error.details.get("sent") != "no"


def has_no_effect(error: BaseException) -> bool:
    """Whether an error that a client's call ended with says that nothing of it took effect."""
    return isinstance(error, Retryable | Rejected) and not isinstance(error, SessionExpired)


def _leaves(base: type[NyalaError]) -> dict[str, type[NyalaError]]:
    found: dict[str, type[NyalaError]] = {}
    for cls in base.__subclasses__():
        found.update(_leaves(cls))
        if "code" in cls.__dict__:
            found[cls.code] = cls
    return found


BY_CODE: Mapping[str, type[NyalaError]] = _leaves(NyalaError)


def from_code(code: str, message: str, details: Mapping[str, str] | None = None) -> NyalaError:
    """Rebuild an error from the wire; an unknown code (of a newer server) becomes a NyalaError.

    Args:
        code: name of the error class.
        message: of the error.
        details: of the error.
    """
    return BY_CODE.get(code, NyalaError)(message, details)
