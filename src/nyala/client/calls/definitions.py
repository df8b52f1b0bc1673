"""Definition of a new table from the arguments of `create_table`."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Unpack

from nyala.client.checks import check_list, check_replicas, check_text
from nyala.client.cluster.tablet_cache import OpenTable
from nyala.client.core import ClientCore
from nyala.common.errors import AlreadyPresent, InvalidArgument
from nyala.common.frames import definition_of
from nyala.common.partitioning.partition_spec import Partition
from nyala.common.schema import Schema
from nyala.common.values.casting import Requested, conversion_of

log = logging.getLogger("nyala.client")

DEFAULT_REPLICAS = 3


class TableArguments(Requested, total=False):
    """Keyword arguments of `Client.create_table`, which describes them."""

    defaults: Mapping[str, Any] | None
    immutable: Sequence[str]
    options: Mapping[str, Any] | None
    comment: str
    index: bool
    exist_ok: bool


@dataclass(frozen=True, slots=True)
class NewTable:
    """A table to be created.

    Attributes:
        name: of the table.
        schema: its columns.
        partition: None: one tablet.
        replicas: of each tablet.
        options: as texts.
        comment: free text.
        choices: types and index levels that were chosen for data.
        exist_ok: a table of this name, with this key and these columns, is as good.
    """

    name: str
    schema: Schema
    partition: Partition | None
    replicas: int
    options: dict[str, str]
    comment: str
    choices: tuple[str, ...]
    exist_ok: bool

    async def create(self, core: ClientCore) -> OpenTable:
        """Create the table, and return it when all its tablets run; or the one that there is."""
        try:
            opened = await core.ddl.create_table(
                self.name, self.schema, self.partition, self.replicas, self.options, self.comment
            )
        except AlreadyPresent:
            if not self.exist_ok:
                raise
            self._check_columns((await core.open_table(self.name)).schema)
            opened = await core.ddl.existing_table(self.name)
            self._check_columns(opened.schema)
            return opened
        for choice in self.choices:
            log.info("table %s: %s", self.name, choice)
        return opened

    def _check_columns(self, there: Schema) -> None:
        """Check that a table has this key and these columns; it may have others.

        Raises:
            AlreadyPresent: it differs; the message says where.
        """
        key, wanted = ([c.name for c in s.key_columns] for s in (there, self.schema))
        problem = "" if key == wanted else f"its primary key is {key}, not {wanted}"
        for column in self.schema.columns:
            found = there.by_name.get(column.name)
            if not problem and found is None:
                problem = f"it has no column {column.name!r}"
            elif not problem and found is not None and found.type != column.type:
                problem = f"its column {column.name!r} has type {found.type}, not {column.type}"
        if problem:
            raise AlreadyPresent(
                f"a table {self.name!r} exists already, and {problem}; open it with client.table(name), "
                "alter it, or choose another name"
            )


def table_definition(
    name: str,
    schema: Any,
    primary_key: Sequence[str],
    partition: Partition | None,
    replicas: int,
    *,
    defaults: Mapping[str, Any] | None = None,
    immutable: Sequence[str] = (),
    options: Mapping[str, Any] | None = None,
    comment: str = "",
    index: bool = False,
    exist_ok: bool = False,
    **conversion: Unpack[Requested],
) -> NewTable:
    """Return the table that the arguments of `Client.create_table` describe.

    Args:
        name: as all others: see `Client.create_table`.
        schema: an Arrow schema, or data.
        primary_key: names.
        partition: hash levels and ranges.
        replicas: of each tablet.
        defaults: by column.
        immutable: names.
        options: of the table.
        comment: free text.
        index: all levels of a pandas index.
        exist_ok: such a table may exist.
        **conversion: of the data.

    Raises:
        InvalidArgument, SchemaMismatch: as `Client.create_table`.
    """
    check_text("name", name)
    check_text("comment", comment)
    check_replicas(replicas)
    if not isinstance(primary_key, str):
        primary_key = check_list("primary_key", primary_key)
    if isinstance(immutable, str):
        raise InvalidArgument(f"immutable={immutable!r}: pass a list, [{immutable!r}]")
    made = definition_of(
        schema,
        primary_key,
        defaults=defaults,
        immutable=immutable,
        index=index,
        conversion=conversion_of(conversion),
    )
    texts = {k: str(v) for k, v in (options or {}).items()}
    for text in (*texts, *texts.values()):
        check_text("options", text)
    return NewTable(
        name, made.schema, partition, replicas, texts, comment, tuple(made.choices), exist_ok
    )
