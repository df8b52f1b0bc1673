"""Scan tokens: parts of a scan that any process may run."""

from collections.abc import Iterator

import pyarrow as pa

from nyala.client.connection import Connection, shared
from nyala.common.errors import InvalidArgument
from nyala.wire.proto import nyala_pb2 as pb


class ScanToken:
    """One piece of a scan: a tablet, or a range of its keys, and a snapshot.

    It may be serialised and run in any process, again and again, with the same rows.
    """

    def __init__(self, message: pb.ScanToken, connection: Connection | None = None) -> None:
        self._message = message
        self._connection = connection
        self._header = pb.ScanHeader()

    @classmethod
    def parse(cls, data: bytes, connection: Connection | None = None) -> "ScanToken":
        """Return the token in some bytes.

        Args:
            data: what `bytes(token)` gave, anywhere.
            connection: runs it; None: the shared connection of this process.

        Raises:
            InvalidArgument: the bytes are no token.
        """
        if not isinstance(data, bytes):
            raise InvalidArgument(f"a scan token is bytes, not {type(data).__name__}")
        try:
            message = pb.ScanToken.FromString(data)
        except (
            Exception
        ) as err:  # protobuf's DecodeError has no public home; anything else is the same
            raise InvalidArgument(f"these {len(data)} bytes are no scan token: {err}") from err
        if not message.tablet_id or not message.masters:
            raise InvalidArgument(
                f"these {len(data)} bytes are no scan token: no tablet or no masters"
            )
        return cls(message, connection)

    def __bytes__(self) -> bytes:
        return self._message.SerializeToString()

    def __reduce__(self) -> tuple[object, ...]:  # without the connection, which is this process's
        return (ScanToken.parse, (bytes(self),))

    @property
    def tablet_id(self) -> str:
        """The tablet that this token reads."""
        return self._message.tablet_id

    @property
    def replicas(self) -> tuple[str, ...]:
        """Addresses of the servers that have the tablet, its leader's first, as known when it was made."""
        return tuple(self._message.replicas)

    @property
    def at(self) -> int:
        """The snapshot that it reads; 0: the leader's own time."""
        return self._message.at

    @property
    def age_ms(self) -> int:
        """Age of the last run's rows when their server began to read, with mode "stale"."""
        return self._header.age_ms

    def _runner(self) -> Connection:
        if self._connection is None:
            self._connection = shared(",".join(self._message.masters))
        return self._connection

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """Run the token and yield its batches as they come; see `Scan.to_batches`."""
        runner = self._runner()
        return runner.iterate(
            runner.core.reader.run(self._message, on_header=self._header.CopyFrom)
        )

    def to_arrow_batches(self) -> list[pa.RecordBatch]:
        """Run the token to its end, starting over if a server fails in between."""
        runner = self._runner()
        return runner.run(runner.core.reader.collect(self._message, self._header.CopyFrom))
