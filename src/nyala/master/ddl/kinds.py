"""Rules for each kind of thing that the catalog has as a table: its definition, its changes, its loss. Pure.

A journal is a table of another kind, with one tablet and neither columns nor partitions; both share one
space of names. Requests are not trusted.
"""

import shlex
from collections.abc import Collection
from typing import Protocol

from nyala.common.alteration import NOT_OURS
from nyala.common.errors import InvalidArgument
from nyala.common.partitioning.partition import TabletPartition
from nyala.machines import registry
from nyala.machines.journals import LIMIT_OPTION, limit_bytes
from nyala.machines.kind import MachineKind
from nyala.master.catalog.records.tables import CatalogTable
from nyala.master.ddl import table_spec
from nyala.wire.proto import nyala_pb2 as pb

JOURNAL_STEPS = ("rename_table", "table_comment", "owner", "option", "replicas")
"""Steps of an alteration that a journal takes."""


class KindRules(Protocol):
    """Rules of one kind.

    Attributes:
        machine: the kind of its tablets' state machines.
        options: names of the options that its definition may have.
    """

    machine: MachineKind
    options: Collection[str]

    def checked(
        self, asked: pb.TableSpec, default_replicas: int, max_tablets: int
    ) -> tuple[pb.TableSpec, list[TabletPartition]]:
        """Return a new definition with its defaults filled in, and the partition of each tablet.

        Args:
            asked: definition in the request.
            default_replicas: where it names no number.
            max_tablets: the most that it may be created with.

        Raises:
            InvalidArgument: the definition is invalid; the message says why.
        """
        ...

    def check_texts(self, spec: pb.TableSpec) -> None:
        """Check name, comment, owner and options.

        Raises:
            InvalidArgument: names the invalid one.
        """
        ...

    def check_step(self, step: pb.AlterStep) -> None:
        """Check that a step of an alteration applies to the kind.

        Raises:
            InvalidArgument: it does not.
        """
        ...

    def check_loss(self, table: CatalogTable, request: pb.ReplaceTabletRequest) -> None:
        """Check that an operator may replace a lost tablet by an empty one.

        Raises:
            InvalidArgument: not without `force`.
        """
        ...

    def floor(self, time: int) -> int:
        """Return the hybrid time above which an empty tablet starts that replaces a lost one; 0: any.

        Args:
            time: not below any at which the lost one was written to.
        """
        ...


class TableRules:
    """Rules of tables; see `KindRules`."""

    machine = registry.TABLE
    options: Collection[str] = table_spec.TABLE_OPTIONS

    def checked(
        self, asked: pb.TableSpec, default_replicas: int, max_tablets: int
    ) -> tuple[pb.TableSpec, list[TabletPartition]]:
        """Return a table's definition and its partitions.

        Args:
            asked: definition in the request.
            default_replicas: where it names no number.
            max_tablets: the most that it may be created with.
        """
        self.check_texts(asked)
        spec = table_spec.with_defaults(asked, default_replicas, self.machine.name)
        return spec, table_spec.checked_columns(spec, max_tablets)

    def check_texts(self, spec: pb.TableSpec) -> None:
        """Check texts and options of a table."""
        table_spec.check_texts(spec, self.options, self.machine.name)
        table_spec.check_options(spec.options)

    def check_step(self, step: pb.AlterStep) -> None:
        """Do nothing: a table takes every step."""

    def check_loss(self, table: CatalogTable, request: pb.ReplaceTabletRequest) -> None:
        """Do nothing: the other tablets keep their rows."""

    def floor(self, time: int) -> int:
        """Return 0: the versions of rows compare within one tablet."""
        return 0


class JournalRules:
    """Rules of journals; see `KindRules`."""

    machine = registry.JOURNAL
    options: Collection[str] = (LIMIT_OPTION,)

    def checked(
        self, asked: pb.TableSpec, default_replicas: int, max_tablets: int
    ) -> tuple[pb.TableSpec, list[TabletPartition]]:
        """Return a journal's definition, and the partition of its one tablet.

        Args:
            asked: definition in the request.
            default_replicas: where it names no number.
            max_tablets: has no effect.
        """
        self.check_texts(asked)
        schema, parts = asked.schema, asked.partition
        if schema.columns or schema.key_ids:
            raise InvalidArgument(
                f"the journal {asked.name!r} has columns; a journal has logs and keys: leave the columns "
                "out, or make a table; create it with client.create_table"
            )
        if parts.hash or parts.range_column_ids or parts.ranges:
            raise InvalidArgument(
                f"the journal {asked.name!r} has partitions; a journal has one tablet; leave them out"
            )
        if schema.version or schema.next_column_id:
            raise InvalidArgument(f"a new journal has version 0, not {schema.version}; {NOT_OURS}")
        spec = table_spec.with_defaults(asked, default_replicas, self.machine.name)
        spec.ClearField("schema")
        spec.ClearField("partition")
        return spec, [TabletPartition()]

    def check_texts(self, spec: pb.TableSpec) -> None:
        """Check texts and options of a journal."""
        table_spec.check_texts(spec, self.options, self.machine.name)
        limit_bytes(spec.options)

    def check_step(self, step: pb.AlterStep) -> None:
        """Refuse steps about columns and ranges."""
        kind = step.WhichOneof("step")
        if kind is not None and kind not in JOURNAL_STEPS:
            raise InvalidArgument(
                f"the step {kind} is for tables: a journal has neither columns nor ranges; leave it out"
            )

    def check_loss(self, table: CatalogTable, request: pb.ReplaceTabletRequest) -> None:
        """Refuse unless forced: the tablet is all that the journal has."""
        if not request.force:
            raise InvalidArgument(
                f"tablet {request.tablet_id} is the whole journal {table.name!r}: an empty one in its place "
                "loses every entry and key; discard them with --force, or restore a replica"
            )

    def floor(self, time: int) -> int:
        """Return the time: ids of entries come from timestamps, and none is used twice."""
        return max(1, time)


RULES: tuple[KindRules, ...] = (TableRules(), JournalRules())


def rules_of(number: int) -> KindRules:
    """Return the rules of a kind by its number.

    Raises:
        InvalidArgument: this build has no such kind.
    """
    for rules in RULES:
        if rules.machine.number == number:
            return rules
    known = " and ".join(f"{r.machine.number} ({r.machine.name})" for r in RULES)
    raise InvalidArgument(
        f"these masters have no tables of kind {number}, only {known}; choose one, or upgrade the masters"
    )


def check_kind(table: CatalogTable, wanted: int, *, drop: bool = False) -> None:
    """Check that a table is of the kind that a request is about.

    Args:
        table: a live one, or one that can be recalled.
        wanted: number of the kind.
        drop: the request drops it.

    Raises:
        InvalidArgument: it is of another kind; the message says which, and what to use instead.
    """
    asked, kind = rules_of(wanted).machine, table.kind
    if kind.number != asked.number:
        name, verb = table.name, f"nyala {kind.name}"
        advice = (
            f"drop it with client.drop_{kind.name}({name!r}), or: {verb} drop {shlex.quote(name)}"
            if drop
            else f"open it with client.{kind.name}({name!r}), or use the verbs of: {verb}"
        )
        raise InvalidArgument(f"{name!r} is a {kind.name}, not a {asked.name}; {advice}")
