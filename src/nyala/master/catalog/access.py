"""Access in the catalog: join tokens with their uses, and revoked certificates."""

from nyala.master.catalog.plan import AccessChanges, CatalogPlan
from nyala.master.catalog.records import (
    KIND_REVOCATION,
    KIND_TOKEN,
    CatalogRow,
    Item,
    revocation_row,
    token_row,
)
from nyala.wire.proto import catalog_pb2 as cat

ACCESS_RECORDS = cat.JoinTokenRecord | cat.RevocationRecord


class Access:
    """Tokens and revocations, by id; their records are read only."""

    def __init__(self) -> None:
        self.tokens: dict[str, cat.JoinTokenRecord] = {}
        self.revocations: dict[str, cat.RevocationRecord] = {}

    def publish(self, plan: CatalogPlan) -> None:
        """Take over what a replicated plan has of them."""
        changes = plan.access
        if changes is None:
            return
        self.tokens |= {token.id: token for token in changes.tokens}
        self.revocations |= {entry.id: entry for entry in changes.revocations}
        for token in changes.ended:
            self.tokens.pop(token, None)
        for revocation in changes.expired:
            self.revocations.pop(revocation, None)

    def load(self, item: Item) -> None:
        """Add a record, when the catalog is loaded."""
        if isinstance(item, cat.JoinTokenRecord):
            self.tokens[item.id] = item
        elif isinstance(item, cat.RevocationRecord):
            self.revocations[item.id] = item


def rows_of(changes: AccessChanges | None) -> list[CatalogRow]:
    """Return the rows that a plan writes for tokens and revocations."""
    if changes is None:
        return []
    rows = [*map(token_row, changes.tokens), *map(revocation_row, changes.revocations)]
    rows += [CatalogRow(KIND_TOKEN, token, b"", removed=True) for token in changes.ended]
    return rows + [CatalogRow(KIND_REVOCATION, e, b"", removed=True) for e in changes.expired]
