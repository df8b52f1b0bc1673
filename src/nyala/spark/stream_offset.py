"""Offsets of a stream, as Spark writes them to the checkpoint of a query.

An offset is a hybrid time of one table of one cluster. While a snapshot is read in parts, it also has the
last key that was read. It repeats where the stream began: Spark does not write the initial offset down, and
asks for another one when it runs the first batch again.
"""

from dataclasses import asdict, dataclass
from typing import Any, Self

from nyala.common.errors import InvalidArgument

VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOffset:
    """The position of a stream.

    Attributes:
        cluster: id of the cluster.
        table: id of the table.
        stream: id of the stream, which names its hold; empty: nothing was planned yet.
        begin: hybrid time of the snapshot, or after which changes are read; 0: nothing was planned yet.
        snapshot: the stream begins with the rows at `begin`.
        through: hybrid time through which changes were read.
        tablet: tablet of the last row that was read of the snapshot; empty: all rows were.
        key: its encoded primary key, as hex digits.
        version: format of the offset.
    """

    cluster: str
    table: str
    stream: str = ""
    begin: int = 0
    snapshot: bool = False
    through: int = 0
    tablet: str = ""
    key: str = ""
    version: int = VERSION

    @classmethod
    def of(cls, found: dict[str, Any]) -> Self:
        """Return the offset in a checkpoint.

        Args:
            found: what Spark has read.

        Raises:
            InvalidArgument: it is no offset of this format.
        """
        try:
            if found["version"] != VERSION:
                raise InvalidArgument(
                    f"the checkpoint has offsets of format {found['version']}, and this version of nyala "
                    f"reads format {VERSION}; run the version that wrote it, or give the query another "
                    "checkpointLocation"
                )
            return cls(**found)
        except (KeyError, TypeError) as err:
            raise InvalidArgument(
                f"the checkpoint has the offset {found!r}, which is none of a nyala stream: it belongs to "
                "another source; give the query another checkpointLocation"
            ) from err

    def as_dict(self) -> dict[str, Any]:
        """Return what Spark writes."""
        return asdict(self)

    @property
    def is_initial(self) -> bool:
        """True before the first batch was planned."""
        return not self.begin

    @property
    def in_snapshot(self) -> bool:
        """True if rows of the snapshot remain to be read."""
        return bool(self.tablet)

    @property
    def position(self) -> tuple[str, bytes] | None:
        """Tablet and key of the last row that was read of the snapshot; None: all or none were."""
        return (self.tablet, bytes.fromhex(self.key)) if self.tablet else None

    def check_same(self, other: "StreamOffset", name: str) -> None:
        """Check that this offset of a checkpoint belongs to the table that is read.

        Args:
            other: an offset of that table.
            name: of the table.

        Raises:
            InvalidArgument: it is of another cluster or table.
        """
        remedy = "give the query another checkpointLocation to begin anew, or the options of that"
        if self.cluster != other.cluster:
            raise InvalidArgument(
                f"the checkpoint is of cluster {self.cluster}, and the masters given are those of cluster "
                f"{other.cluster}; {remedy} cluster"
            )
        if self.table != other.table:
            raise InvalidArgument(
                f"the checkpoint is of the table with id {self.table}, and table {name!r} has id "
                f"{other.table}: it is another one, or was dropped and created again; {remedy} table"
            )
