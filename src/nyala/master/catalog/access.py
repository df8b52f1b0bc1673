"""Access in the catalog: join tokens, accounts of users, revoked certificates, grants with their version."""

from nyala.master.catalog.plan import AccessChanges, CatalogPlan
from nyala.master.catalog.records.parsing import Item
from nyala.master.catalog.records.rows import (
    KIND_GRANT,
    KIND_REVOCATION,
    KIND_TOKEN,
    KIND_USER,
    CatalogRow,
    authorities_row,
    grant_row,
    revocation_row,
    rules_row,
    token_row,
    user_row,
)
from nyala.wire.proto import catalog_pb2 as cat

ACCESS_RECORDS = (
    cat.JoinTokenRecord
    | cat.RevocationRecord
    | cat.UserRecord
    | cat.GrantRecord
    | cat.AccessRulesRecord
    | cat.AuthoritiesRecord
)


class Access:
    """Tokens, revocations, accounts of users and grants, by id; their records are read only.

    Attributes:
        rules_version: version of the grants.
        authorities: the certificate authorities; None: the first one was never replaced.
    """

    def __init__(self) -> None:
        self.tokens: dict[str, cat.JoinTokenRecord] = {}
        self.revocations: dict[str, cat.RevocationRecord] = {}
        self.grants: dict[str, cat.GrantRecord] = {}
        self.rules_version = 0
        self.users: dict[str, cat.UserRecord] = {}
        self.authorities: cat.AuthoritiesRecord | None = None

    def publish(self, plan: CatalogPlan) -> None:
        """Take over what a replicated plan has of them."""
        changes = plan.access
        if changes is None:
            return
        self.tokens |= {token.id: token for token in changes.tokens}
        self.revocations |= {entry.id: entry for entry in changes.revocations}
        self.users |= {user.id: user for user in changes.users}
        for user in changes.removed_users:
            self.users.pop(user, None)
        for token in changes.ended:
            self.tokens.pop(token, None)
        for revocation in changes.expired:
            self.revocations.pop(revocation, None)
        self.grants |= {grant.id: grant for grant in changes.grants}
        for grant in changes.ungranted:
            self.grants.pop(grant, None)
        if changes.rules is not None:
            self.rules_version = changes.rules.version
        if changes.authorities is not None:
            self.authorities = changes.authorities

    def load(self, item: Item) -> None:
        """Add a record, when the catalog is loaded."""
        if isinstance(item, cat.JoinTokenRecord):
            self.tokens[item.id] = item
        elif isinstance(item, cat.RevocationRecord):
            self.revocations[item.id] = item
        elif isinstance(item, cat.UserRecord):
            self.users[item.id] = item
        elif isinstance(item, cat.GrantRecord):
            self.grants[item.id] = item
        elif isinstance(item, cat.AccessRulesRecord):
            self.rules_version = item.version
        elif isinstance(item, cat.AuthoritiesRecord):
            self.authorities = item


def rows_of(changes: AccessChanges | None) -> list[CatalogRow]:
    """Return the rows that a plan writes for tokens, accounts, revocations and grants."""
    if changes is None:
        return []
    rows = [*map(token_row, changes.tokens), *map(revocation_row, changes.revocations)]
    rows += map(user_row, changes.users)
    rows += [CatalogRow(KIND_USER, user, b"", removed=True) for user in changes.removed_users]
    rows += [CatalogRow(KIND_TOKEN, token, b"", removed=True) for token in changes.ended]
    rows += [CatalogRow(KIND_REVOCATION, e, b"", removed=True) for e in changes.expired]
    rows += [*map(grant_row, changes.grants)]
    rows += [CatalogRow(KIND_GRANT, g, b"", removed=True) for g in changes.ungranted]
    rows += [] if changes.rules is None else [rules_row(changes.rules)]
    return rows if changes.authorities is None else [*rows, authorities_row(changes.authorities)]
