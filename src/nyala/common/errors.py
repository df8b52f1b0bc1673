"""The exception tree and its stable codes, the same on the wire, in Python and in the CLI.

NyalaError
├─ Retryable       NotLeader(leader) · Unavailable · TimedOut · Throttled · RangesChanged
├─ Rejected        NotFound · AlreadyPresent · InvalidArgument · CasFailed · SchemaMismatch · TooLarge
│                  SessionExpired · HistoryGone · Unauthenticated · Forbidden
│                  ConditionFailed · JournalFull · LogGone · NotLeading · StaleEpoch · TransactionDenied
│                  QuotaExceeded
├─ OutcomeUnknown  (the client's PartlyWritten)
├─ NotReady
└─ Corrupt         BadChecksum · BadVersion · LogGap

Effect of a client call that raised an error (docs/use/client.md): Retryable and Rejected: none, except for
SessionExpired, where it is unknown as for OutcomeUnknown; NotReady: the call took effect.

A message says what happened, why, and what to do next. Every error can be rebuilt from `(code, message,
details)`, which is what is sent (`wire/status.py`).
"""

from collections.abc import Mapping
from copy import copy
from typing import ClassVar, Self

from nyala.common.version import VERSION


class NyalaError(Exception):
    """Base of every error that nyala raises on purpose.

    Attributes:
        code: stable upper-case name.
        exit_status: exit status of a command that fails with it.
        message: one or two sentences for the user.
        details: further data, strings only; documented on each subclass.
        answered: a server sent it in response to a request; else it was raised locally.
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

    def another(self) -> Self:
        """Return an equal error, for another caller: a raised error has the traceback of one caller."""
        made = copy(self)
        made.__cause__, made.__suppress_context__ = self.__cause__, self.__suppress_context__
        return made

    def __reduce__(self) -> tuple[object, ...]:  # with other attributes of a subclass
        return (type(self), (self.message, self.details), dict(self.__dict__))


class Retryable(NyalaError):
    """The call had no effect and may succeed later; the client has retried until its deadline.

    Between processes, without a response, the effect is unknown: see `may_have_arrived`.
    """


class NotLeader(Retryable):
    """This replica does not lead its group. details: `leader` (uuid) and `address` when known."""

    code = "NOT_LEADER"
    exit_status = 3

    @property
    def leader(self) -> str | None:
        """Uuid of the leader, if the responding server knows it."""
        return self.details.get("leader")

    @property
    def address(self) -> str | None:
        """Public address of the leader, if the responding server knows it."""
        return self.details.get("address")


class Unavailable(Retryable):
    """The server is unreachable or starting, or has no majority.

    details: `sent` = "no" (`NOT_SENT`) if there was no connection, so the request was not sent.
    """

    code = "UNAVAILABLE"
    exit_status = 3


class TimedOut(Retryable):
    """There was no response before the deadline."""

    code = "TIMED_OUT"
    exit_status = 7


class Throttled(Retryable):
    """A queue or the memory budget is full; wait and retry. details: `retry_after_ms`."""

    code = "THROTTLED"
    exit_status = 3


class RangesChanged(Retryable):
    """The table's ranges have changed since the request was planned; it had no effect. Plan it again.

    details: `version` of the server's ranges, if known.
    """

    code = "RANGES_CHANGED"
    exit_status = 3


class Rejected(NyalaError):
    """The request is invalid in the current state; repeating it does not help."""


class NotFound(Rejected):
    """No such table, column, tablet or server."""

    code = "NOT_FOUND"
    exit_status = 5


class AlreadyPresent(Rejected):
    """The name or id exists already."""

    code = "ALREADY_PRESENT"
    exit_status = 6


class InvalidArgument(Rejected):
    """The request itself is malformed or out of range."""

    code = "INVALID_ARGUMENT"
    exit_status = 2


class CasFailed(Rejected):
    """A compare-and-set found another value. details: `expected`, `found`."""

    code = "CAS_FAILED"
    exit_status = 6


class ConditionFailed(Rejected):
    """A condition of a journal's step did not hold, and nothing of the step took effect.

    details: `condition`, its index; `actual`, the id or version that was there; `last`, the same, for a log.
    """

    code = "CONDITION_FAILED"
    exit_status = 6

    @property
    def last(self) -> int:
        """Id of the last change of the log, or version of the key, that the condition was about."""
        return int(self.details.get("actual", "0"))


class JournalFull(Rejected):
    """A step would have left more in the journal than its limit. details: `bytes`, `limit`."""

    code = "JOURNAL_FULL"
    exit_status = 6


class QuotaExceeded(Rejected):
    """The table is over its quota of bytes and takes deletes only. details: `table`, `bytes`, `limit`."""

    code = "QUOTA_EXCEEDED"
    exit_status = 6


class LogGone(Rejected):
    """The log that the reader had opened was deleted.

    details: `log`, `created` of its successor or 0, `last`: id of the journal's last change at the replica.
    """

    code = "LOG_GONE"
    exit_status = 5


class NotLeading(Rejected):
    """This process does not lead, by the recipe `Leader`. details: `locator` of the leader, when known."""

    code = "NOT_LEADING"
    exit_status = 3


class StaleEpoch(Rejected):
    """The sender of the request was replaced by a leader with a higher epoch. details: `epoch`."""

    code = "STALE_EPOCH"
    exit_status = 3


class SchemaMismatch(Rejected):
    """The data or the schema version does not fit the table's schema."""

    code = "SCHEMA_MISMATCH"
    exit_status = 6


class TransactionDenied(Rejected):
    """The transaction is not committed, and never will be: nothing of it takes effect."""

    code = "TRANSACTION_DENIED"
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
    """The requested time is before the history that is kept. details: `horizon`."""

    code = "HISTORY_GONE"
    exit_status = 6


class Unauthenticated(Rejected):
    """No valid credentials."""

    code = "UNAUTHENTICATED"
    exit_status = 4


class Forbidden(Rejected):
    """The caller, or this build, is not permitted to do this."""

    code = "FORBIDDEN"
    exit_status = 4


class OutcomeUnknown(NyalaError):
    """The operation may or may not take effect: leadership was lost while it was in flight."""

    code = "OUTCOME_UNKNOWN"


class NotReady(NyalaError):
    """The change took effect, but the state that the call waits for was not reached in time."""

    code = "NOT_READY"
    exit_status = 7


class Corrupt(NyalaError):
    """Bytes on disk or on the wire are damaged; they changed nothing."""

    code = "CORRUPT"


class BadChecksum(Corrupt):
    """A checksum does not match. details: `path`, `offset`."""


class BadVersion(Corrupt):
    """A format or message of an unknown version. Not damaged, unless the message says that it may be."""

    code = "BAD_VERSION"


class LogGap(Corrupt):
    """Required entries are missing from the log."""


def newer_version(what: str, version: int, known: int) -> BadVersion:
    """Return the error of bytes that a newer build has written: a checksum that covers the version matches.

    Args:
        what: name of a file, or kind of a record, as the subject of a sentence.
        version: its format version.
        known: newest format version that this build reads.
    """
    return BadVersion(
        f"{what} has format version {version}, and this build, nyala {VERSION}, reads up to version {known}: "
        "a newer build wrote it. It is not damaged: start this server with that build, or a newer one"
    )


def newer_or_damaged(
    what: str, version: int, known: int, mend: str = "copy the replica from another server"
) -> BadVersion:
    """Return the error of bytes of an unknown version, which no checksum covers.

    Args:
        what: name of a file, or kind of a record, as the subject of a sentence.
        version: its format version.
        known: newest format version that this build reads.
        mend: what to do if it is damaged.
    """
    return BadVersion(
        f"{what} has format version {version}, and this build, nyala {VERSION}, reads up to version {known}: "
        "a newer build wrote it, or it is damaged. If servers of a newer build have run, start this server "
        f"with that build, or a newer one; else {mend}"
    )


NOT_SENT: Mapping[str, str] = {"sent": "no"}
"""Details of an Unavailable whose request was not sent."""


def may_have_arrived(error: NyalaError) -> bool:
    """Return whether a request that failed with this error may have reached a server that executes it.

    A response is definite: it is OutcomeUnknown if the request may take effect. A response that is
    lost or late is Unavailable or TimedOut, raised locally.
    """
    if error.answered:
        return isinstance(error, OutcomeUnknown)
    return not isinstance(error, NotLeader | Throttled) and error.details.get("sent") != "no"


def has_no_effect(error: BaseException) -> bool:
    """Return whether a client call that failed with this error had no effect."""
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
    """Rebuild a received error; an unknown code, of a newer server, gives a NyalaError.

    Args:
        code: code of the error class.
        message: message of the error.
        details: details of the error.
    """
    return BY_CODE.get(code, NyalaError)(message, details)
