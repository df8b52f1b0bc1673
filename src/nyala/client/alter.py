"""Alterations of a table: the steps sent to the masters, and the user's builder of them.

Each step is checked here against the result of the steps before it, and again by the master.
"""

from collections.abc import Mapping
from typing import Any, Self

import pyarrow as pa

from nyala.client.calls.altering import alter_table
from nyala.client.checks import OtherNames, check_replicas, check_text
from nyala.client.cluster.tablet_cache import OpenTable
from nyala.client.connection import Connection
from nyala.common import alteration
from nyala.common.errors import InvalidArgument
from nyala.common.partitioning.partition import KeyRange
from nyala.common.partitioning.partition_spec import Partition, Range, resolve
from nyala.common.types import plain_type, type_name
from nyala.common.values.python_values import shown
from nyala.wire import convert
from nyala.wire.proto import nyala_pb2 as pb
from nyala.wire.values import value_to_ipc


class AlterSteps:
    """The steps of one alteration, which are applied all or none.

    Args:
        table: the present definition.

    Attributes:
        steps: in order.
        shown: the call that made each step, as a text.
    """

    def __init__(self, table: OpenTable) -> None:
        self._table = table
        self._schema = table.schema
        self.steps: list[pb.AlterStep] = []
        self.shown: list[str] = []

    def _take(self, step: alteration.Step, message: pb.AlterStep, shown: str) -> None:
        self._schema = alteration.alter(self._schema, [step])
        self._add(message, shown)

    def _add(self, message: pb.AlterStep, shown: str) -> None:
        self.steps.append(message)
        self.shown.append(shown)

    def add_column(
        self, name: str, type: pa.DataType, *, nullable: bool = True, default: Any = None,
        immutable: bool = False, comment: str = "",
    ) -> None:  # fmt: skip
        """See `Alter.add_column`.

        Args:
            name: name of the column.
            type: Arrow type.
            nullable: null is allowed.
            default: value of rows written before; None: null.
            immutable: cannot be updated.
            comment: free text.
        """
        check_text("name", name)
        check_text("comment", comment)
        if not isinstance(type, pa.DataType):
            raise InvalidArgument(f"type={type!r}: pass an Arrow type, for instance pa.int64()")
        step = alteration.AddColumn(name, type, nullable, default, immutable)
        message = pb.AlterStep(add_column=pb.Column(
            name=name, type=type_name(plain_type(type)), nullable=nullable, immutable=immutable,
            comment=comment,
        ))  # fmt: skip
        self._take(step, message, f"add_column({name!r}, {plain_type(type)})")
        made = self._schema.column(name)
        message.add_column.default_ipc = value_to_ipc(made.default)

    def drop_column(self, name: str) -> None:
        """See `Alter.drop_column`."""
        check_text("name", name)
        self._take(
            alteration.DropColumn(name), pb.AlterStep(drop_column=name), f"drop_column({name!r})"
        )

    def rename_column(self, name: str, new_name: str) -> None:
        """See `Alter.rename_column`."""
        check_text("name", name)
        check_text("new_name", new_name)
        message = pb.AlterStep.Rename(name=name, new_name=new_name)
        self._take(
            alteration.RenameColumn(name, new_name),
            pb.AlterStep(rename_column=message),
            f"rename_column({name!r}, {new_name!r})",
        )

    def set_default(self, name: str, default: Any) -> None:
        """See `Alter.set_default`."""
        check_text("name", name)
        message = pb.AlterStep(set_default=pb.AlterStep.Value(name=name))
        self._take(
            alteration.SetDefault(name, default),
            message,
            f"set_default({name!r}, {shown(default)})",
        )
        message.set_default.ipc = value_to_ipc(self._schema.column(name).default)

    def allow_nulls(self, name: str) -> None:
        """See `Alter.allow_nulls`."""
        check_text("name", name)
        self._take(
            alteration.AllowNulls(name), pb.AlterStep(allow_nulls=name), f"allow_nulls({name!r})"
        )

    def set_comment(self, comment: str, column: str | None = None) -> None:
        """See `Alter.set_comment`."""
        check_text("comment", comment)
        if column is None:
            self._add(pb.AlterStep(table_comment=comment), f"set_comment({comment!r})")
        else:
            message = pb.AlterStep.Text(name=column, text=comment)
            step = alteration.SetComment(column, comment)
            self._take(
                step, pb.AlterStep(column_comment=message), f"set_comment({comment!r}, {column!r})"
            )

    def rename(self, new_name: str) -> None:
        """See `Alter.rename`."""
        check_text("new_name", new_name)
        self._add(pb.AlterStep(rename_table=new_name), f"rename({new_name!r})")

    def set_owner(self, owner: str) -> None:
        """See `Alter.set_owner`."""
        check_text("owner", owner)
        self._add(pb.AlterStep(owner=owner), f"set_owner({owner!r})")

    def set_options(self, options: Mapping[str, Any]) -> None:
        """See `Alter.set_options`."""
        if not isinstance(options, Mapping):
            raise InvalidArgument(f"options={options!r}: pass a dict, for instance {{name: value}}")
        for key, value in options.items():
            given = "" if value is None else str(value)
            check_text("options", key)
            check_text("options", given)
            text = pb.AlterStep.Text(name=key, text=given)
            self._add(pb.AlterStep(option=text), f"set_options({{{key!r}: {value!r}}})")

    def set_replicas(self, replicas: int) -> None:
        """See `Alter.set_replicas`."""
        check_replicas(replicas)
        self._add(pb.AlterStep(replicas=replicas), f"set_replicas({replicas})")

    def add_range(self, lower: Any, upper: Any) -> None:
        """See `Alter.add_range`."""
        piece = self._range(lower, upper)
        self._add(pb.AlterStep(add_range=piece), f"add_range({shown(lower)}, {shown(upper)})")

    def drop_range(self, lower: Any, upper: Any) -> None:
        """See `Alter.drop_range`."""
        piece = self._range(lower, upper)
        self._add(pb.AlterStep(drop_range=piece), f"drop_range({shown(lower)}, {shown(upper)})")

    def _range(self, lower: Any, upper: Any) -> pb.RangePartition:
        ids = self._table.partition_schema.range_column_ids
        if not ids:
            raise InvalidArgument(
                f"table {self._table.name!r} is not partitioned by range, so it has no ranges to alter; "
                "make a new table with nyala.Range"
            )
        names = [self._schema.by_id[i].name for i in ids]
        made = resolve(Partition(range=Range(names, [(lower, upper)])), self._schema)
        piece: KeyRange = made.ranges[0]
        return convert.range_to_proto(piece)


class AlterBuilder(OtherNames):
    """The chained steps of an alteration; nothing is sent.

    Args:
        table: the present definition.
    """

    kind: str

    def __init__(self, table: OpenTable) -> None:
        self._steps = AlterSteps(table)
        self._table = table

    def __repr__(self) -> str:
        steps = ", ".join(self._steps.shown) or "no steps yet"
        return f"<{self.kind} of table {self._table.name!r}: {steps}; commit() applies them>"

    def add_column(
        self, name: str, type: pa.DataType, *, nullable: bool = True, default: Any = None,
        immutable: bool = False, comment: str = "",
    ) -> Self:  # fmt: skip
        """Add a column.

        Args:
            name: not in use.
            type: a supported Arrow type.
            nullable: False requires a default.
            default: value of existing rows, and of new rows that do not give the column.
            immutable: only the first write of a row sets it.
            comment: free text.
        """
        self._steps.add_column(
            name, type, nullable=nullable, default=default, immutable=immutable, comment=comment
        )
        return self

    def drop_column(self, name: str) -> Self:
        """Drop a column that is not in the key; reads at earlier times have it as long as history is kept."""
        self._steps.drop_column(name)
        return self

    def rename_column(self, name: str, new_name: str) -> Self:
        """Rename a column, of the key or not."""
        self._steps.rename_column(name, new_name)
        return self

    def set_default(self, name: str, default: Any) -> Self:
        """Change the default of new rows that do not give a column; None: no default.

        Existing rows keep their values.
        """
        self._steps.set_default(name, default)
        return self

    def allow_nulls(self, name: str) -> Self:
        """Make a column nullable; this cannot be undone."""
        self._steps.allow_nulls(name)
        return self

    def set_comment(self, comment: str, column: str | None = None) -> Self:
        """Change the comment of the table, or of one column."""
        self._steps.set_comment(comment, column)
        return self

    def rename(self, new_name: str) -> Self:
        """Rename the table."""
        self._steps.rename(new_name)
        return self

    def set_owner(self, owner: str) -> Self:
        """Change the owner of the table."""
        self._steps.set_owner(owner)
        return self

    def set_options(self, options: Mapping[str, Any]) -> Self:
        """Change table options; a value of None removes the option."""
        self._steps.set_options(options)
        return self

    def set_replicas(self, replicas: int) -> Self:
        """Change the number of replicas of each tablet: odd, at most the number of live servers.

        Replicas are added and removed one at a time while the table is in use. `commit` does not wait for
        that; `nyala table describe` and `nyala cluster ksck` show the progress.
        """
        self._steps.set_replicas(replicas)
        return self

    def add_range(self, lower: Any, upper: Any) -> Self:
        """Add a range that overlaps no other: `lower` inclusive, `upper` exclusive, None: unbounded."""
        self._steps.add_range(lower, upper)
        return self

    def drop_range(self, lower: Any, upper: Any) -> Self:
        """Drop a range, by its own bounds, with all its rows."""
        self._steps.drop_range(lower, upper)
        return self


class Alter(AlterBuilder):
    """A builder of table alterations: chain the steps, then call `commit`, which sends them."""

    kind = "nyala.Alter"

    def __init__(self, connection: Connection, table: OpenTable) -> None:
        super().__init__(table)
        self._connection = connection

    def commit(self) -> None:
        """Apply all steps at once; returns when every tablet has applied them and this table is up to date.

        Raises:
            NotFound: no such table, column or range (any more); nothing was altered.
            AlreadyPresent: the new name is taken; nothing was altered.
            InvalidArgument: a step that cannot be taken, or none; nothing was altered.
            NotReady: altered, but some tablet did not follow in time; the message says how many.
            OutcomeUnknown: it may have been altered, or may yet be.
        """
        core = self._connection.core
        self._connection.change(alter_table(core, self._table, self._steps.steps))
