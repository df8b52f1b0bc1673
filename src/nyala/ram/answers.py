"""RequestAnswers: the last requests of clients that took effect, so that none does twice. It does no I/O."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from nyala.common.errors import AlreadyPresent, InvalidArgument
from nyala.wire.proto import ram_pb2 as pb

KEPT = 1000
"""Number of requests that are known; one that is sent again after as many others may take effect again."""
PREFIX = "answered"


def name_of(operation: pb.OperationId) -> str:
    """Return the name of the object that describes a request."""
    return f"{PREFIX} {operation.sequence} {operation.client}"


class AlreadyAnswered(AlreadyPresent):
    """The request took effect before.

    Attributes:
        table_id: id of its table.
    """

    def __init__(self, table_id: int) -> None:
        super().__init__(f"this request took effect before, on the table with id {table_id}")
        self.table_id = table_id


@dataclass(slots=True)
class RequestAnswers:
    """The requests, by operation id. Each method is one atomic change, and may be called again."""

    _found: dict[str, pb.Answered] = field(default_factory=dict)

    def note(self, answered: pb.Answered) -> None:
        """Note that a request took effect; one without an operation id is not known again."""
        if answered.operation.client:
            self._found.setdefault(name_of(answered.operation), answered)

    def forget(self, name: str) -> None:
        """Forget the request that an object describes."""
        self._found.pop(name, None)

    def check(self, operation: pb.OperationId, request: str) -> None:
        """Raise AlreadyAnswered if a request took effect before.

        Args:
            operation: its id.
            request: what it asks for: kind, and name of the table.

        Raises:
            InvalidArgument: another request had this id.
        """
        found = self._found.get(name_of(operation))
        if found is None:
            return
        if found.request != request:
            raise InvalidArgument(
                f"operation {operation.sequence} of client {operation.client[:40]!r} was {found.request!r}, "
                f"and is {request!r} now; give each request a sequence number of its own"
            )
        raise AlreadyAnswered(found.table_id)

    def surplus(self, added: pb.OperationId) -> list[str]:
        """Return the objects of the oldest requests, which are to be forgotten with a new one."""
        names = [name for name in self._found if name != name_of(added)]
        return names[: max(0, len(names) + 1 - KEPT)]

    def describe(self) -> Iterator[pb.Record]:
        """Yield the records that describe the requests."""
        for _, answered in sorted(self._found.items()):
            yield pb.Record(answered=answered)
