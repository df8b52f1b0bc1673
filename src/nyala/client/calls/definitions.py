"""Definition of a new table from the arguments of `create_table`."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Unpack

from nyala.client.checks import check_list, check_replicas, check_text
from nyala.client.cluster.ddl import Definitions
from nyala.client.cluster.tablet_cache import OpenTable
from nyala.common.casting import Requested, conversion_of
from nyala.common.errors import InvalidArgument
from nyala.common.frames import definition_of
from nyala.common.partition_spec import Partition
from nyala.common.schema import Schema

log = logging.getLogger("nyala.client")

DEFAULT_REPLICAS = 3


class TableArguments(Requested, total=False):
    """Keyword arguments of `Client.create_table`, which describes them."""

    defaults: Mapping[str, Any] | None
    immutable: Sequence[str]
    options: Mapping[str, Any] | None
    comment: str
    index: bool


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
    """

    name: str
    schema: Schema
    partition: Partition | None
    replicas: int
    options: dict[str, str]
    comment: str
    choices: tuple[str, ...]

    async def create(self, ddl: Definitions) -> OpenTable:
        """Create the table, and return it when all its tablets run."""
        opened = await ddl.create_table(
            self.name, self.schema, self.partition, self.replicas, self.options, self.comment
        )
        for choice in self.choices:
            log.info("table %s: %s", self.name, choice)
        return opened


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
    return NewTable(name, made.schema, partition, replicas, texts, comment, tuple(made.choices))
