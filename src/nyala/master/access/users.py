"""Operations on accounts of users: add, change, remove, log in. Pure.

A change revokes, in the same plan, the certificates that were issued to the name until then. Each login is
replicated before its certificate is handed out, with the time of issue, so that a later leader whose clock is
behind revokes it too.
"""

from collections.abc import Callable
from dataclasses import dataclass

from nyala.common.errors import AlreadyPresent, Forbidden, NotFound, Unauthenticated
from nyala.master.access.grants import without_user
from nyala.master.access.revocations import added
from nyala.master.access.tokens import ACCESS_LOCK
from nyala.master.catalog.catalog import Catalog
from nyala.master.catalog.plan import AccessChanges, CatalogPlan, Scope
from nyala.master.ddl.operation import CatalogOperation
from nyala.security import revocation
from nyala.security.accounts.passwords import PasswordHash
from nyala.security.authority import MAX_DAYS
from nyala.wire.proto import catalog_pb2 as cat

MAX_USERS = 10_000
_DAY_US = 86_400_000_000


@dataclass(frozen=True, slots=True)
class UserChange:
    """Change of an account.

    Attributes:
        role: the new role; empty: it stays.
        password: the new hash; None: it stays.
        disabled: whether the user may not log in; None: it stays.
        issuer: whose tokens name the account; empty: the next one that names it; None: it stays.
    """

    role: str = ""
    password: PasswordHash | None = None
    disabled: bool | None = None
    issuer: str | None = None


def add(record: cat.UserRecord) -> CatalogOperation:
    """Return the operation that adds an account.

    Its plan raises AlreadyPresent if there is one, and Forbidden if there are too many.
    """

    def plan(catalog: Catalog) -> CatalogPlan:
        known = catalog.access.users
        if record.id in known:
            raise AlreadyPresent(
                f"there is a user {record.id} already; change the role or the password with "
                "nyala user role or nyala user passwd"
            )
        if len(known) >= MAX_USERS:
            raise Forbidden(
                f"there are {MAX_USERS} users, the most that there may be; remove some (nyala user remove)"
            )
        return CatalogPlan(access=AccessChanges(users=(record,)))

    return _operation("add user", plan)


def change(
    name: str, wanted: UserChange, now_us: Callable[[], int], by: str,
    seen: cat.UserRecord | None = None,
) -> CatalogOperation:  # fmt: skip
    """Return the operation that changes an account, and revokes the certificates of the user.

    Its plan raises NotFound if there is no such user.

    Args:
        name: of the user.
        wanted: what changes.
        now_us: time of the leader master, since the epoch.
        by: who changes it.
        seen: the account, as it was when a login of the user was checked; None: an administrator changes it.
            The plan raises Unauthenticated if it was changed since.
    """

    def plan(catalog: Catalog) -> CatalogPlan:
        if seen is not None:
            _check_same(catalog, seen)
        changed = cat.UserRecord()
        changed.CopyFrom(_found(catalog, name))
        changed.changed_us = max(now_us(), changed.issued_us, changed.changed_us + 1)
        if wanted.role:
            changed.role = wanted.role
        if wanted.password is not None:
            changed.password.CopyFrom(packed(wanted.password))
        if wanted.disabled is not None:
            changed.disabled = wanted.disabled
        if wanted.issuer is not None:
            changed.issuer = wanted.issuer
        ended = added(catalog, _revocation(name, changed.changed_us, by))
        return CatalogPlan(
            access=AccessChanges(
                users=(changed,), revocations=ended.revocations, expired=ended.expired
            )
        )

    return _operation("change user", plan)


def remove(name: str, now_us: Callable[[], int], by: str) -> CatalogOperation:
    """Return the operation that removes an account with its grants, and revokes certificates as `change`.

    Args:
        name: of the user.
        now_us: see `change`.
        by: who removes it.
    """

    def plan(catalog: Catalog) -> CatalogPlan:
        at_us = max(now_us(), _found(catalog, name).issued_us)
        ended = added(catalog, _revocation(name, at_us, by))
        changes = AccessChanges(
            removed_users=(name,), revocations=ended.revocations, expired=ended.expired
        )
        return CatalogPlan(access=without_user(catalog, name, changes))

    return _operation("remove user", plan)


def log_in(seen: cat.UserRecord, issued_us: int, *, certified: bool = True) -> CatalogOperation:
    """Return the operation that notes a login; its certificate may be handed out once it has taken effect.

    Its plan raises Unauthenticated if the account was changed or removed since its password was checked.

    Args:
        seen: the account, as it was when the login was checked; its issuer is that of the token, if it has
            none yet.
        issued_us: when the certificate was issued, or the session began, since the epoch.
        certified: the login has a certificate; False: it is a session of a browser.
    """

    def plan(catalog: Catalog) -> CatalogPlan:
        known = _check_same(catalog, seen)
        changed = cat.UserRecord()
        changed.CopyFrom(known)
        last_us = certificate_us(known)
        changed.certificate_us = max(issued_us, last_us) if certified else last_us
        changed.issued_us = max(issued_us, known.issued_us)
        changed.issuer = known.issuer or seen.issuer
        return CatalogPlan(access=AccessChanges(users=(changed,)))

    return _operation("log in", plan)


def certificate_us(record: cat.UserRecord) -> int:
    """Return when the newest certificate of a login was issued, since the epoch; 0: never."""
    return record.certificate_us if record.HasField("certificate_us") else record.issued_us


def enabled(record: cat.UserRecord) -> cat.UserRecord:
    """Return an account.

    Raises:
        Forbidden: it is disabled.
    """
    if record.disabled:
        raise Forbidden(
            f"the account of {record.id} is disabled; ask an administrator to enable it (nyala user enable)"
        )
    return record


def hash_in(record: cat.UserRecord | None) -> PasswordHash | None:
    """Return the hash of the password of an account; None: there is no account, or it has no password."""
    if record is None or not record.HasField("password"):
        return None
    known = record.password
    return PasswordHash(known.log2_n, known.r, known.p, known.salt, known.hash)


def packed(known: PasswordHash) -> cat.PasswordHash:
    """Return a hash as the catalog keeps it."""
    return cat.PasswordHash(
        log2_n=known.log2_n, r=known.r, p=known.p, salt=known.salt, hash=known.digest
    )


def _found(catalog: Catalog, name: str) -> cat.UserRecord:
    known = catalog.access.users.get(name)
    if known is None:
        raise NotFound(f"there is no user {name[:80]!r}: nyala user list")
    return known


def _check_same(catalog: Catalog, seen: cat.UserRecord) -> cat.UserRecord:
    """Return an account that has not changed since a login was checked.

    Raises:
        Unauthenticated: it has, or was removed.
    """
    known = catalog.access.users.get(seen.id)
    if known is None or (known.created_us, known.changed_us) != (seen.created_us, seen.changed_us):
        raise Unauthenticated(
            f"the account of {seen.id} was changed during the login; log in again"
        )
    return known


def _revocation(name: str, at_us: int, by: str) -> cat.RevocationRecord:
    return cat.RevocationRecord(
        id=revocation.id_of_user(name), revoked_us=at_us, until_us=at_us + MAX_DAYS * _DAY_US,
        revoked_by=by,
    )  # fmt: skip


def _operation(what: str, plan: Callable[[Catalog], CatalogPlan]) -> CatalogOperation:
    return CatalogOperation(what, lambda _: Scope(tables=(ACCESS_LOCK,)), plan)
