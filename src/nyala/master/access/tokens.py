"""Operations on join tokens: create, use, revoke. Pure.

A use is a replicated entry before the certificate is handed out, so a token that was used up is refused by
every later leader. A server that did not receive its certificate sends the same request again: the same uuid
with the same key is not another use.
"""

from collections.abc import Callable

from nyala.common.errors import AlreadyPresent, Forbidden, NotFound, Unauthenticated
from nyala.common.ids import ServerUuid, TableId
from nyala.master.catalog.catalog import Catalog
from nyala.master.catalog.plan import AccessChanges, CatalogPlan, Scope
from nyala.master.ddl.operation import CatalogOperation
from nyala.security import join_token
from nyala.wire.proto import access_pb2 as pb
from nyala.wire.proto import catalog_pb2 as cat

ACCESS_LOCK = TableId("access")
"""Lock of tokens and revocations, which serialises their changes."""
KEPT_US = 86_400_000_000
"""Time that the row of an expired token is kept, in microseconds, so that the error can say why."""
MAX_TOKENS = 1_000


def create(record: cat.JoinTokenRecord) -> CatalogOperation:
    """Return the operation that creates a token, and removes those that expired a day ago.

    Its plan raises Forbidden if there are too many.
    """

    def plan(catalog: Catalog) -> CatalogPlan:
        known = catalog.access.tokens
        old = tuple(t.id for t in known.values() if t.expires_us + KEPT_US < record.created_us)
        if len(known) - len(old) >= MAX_TOKENS:
            raise Forbidden(
                f"there are {MAX_TOKENS} join tokens, the most that there may be; they are removed one day "
                "after they expire: use fewer, with more uses each"
            )
        return CatalogPlan(access=AccessChanges(tokens=(record,), ended=old))

    return _operation("create join token", plan)


def use(request: pb.JoinRequest, key_hash: bytes, now_us: int) -> CatalogOperation:
    """Return the operation that uses a token for a server.

    Its plan raises Unauthenticated if the token is not valid, and AlreadyPresent if the server is known.

    Args:
        request: with the token's id and secret, and the server's uuid and role.
        key_hash: hash of the server's public key.
        now_us: time of the leader master, since the epoch.
    """

    def plan(catalog: Catalog) -> CatalogPlan:
        token = _valid(catalog, request, now_us)
        if any(u.uuid == request.uuid and u.key_hash == key_hash for u in token.used):
            return CatalogPlan()  # the answer was lost
        if len(token.used) >= token.uses:
            raise Unauthenticated(
                f"join token {token.id} was used for {token.uses} "
                f"{'server' if token.uses == 1 else 'servers'} already, which is its number of uses; make "
                "another one (nyala token create)"
            )
        _check_new(catalog, request.uuid)
        changed = cat.JoinTokenRecord()
        changed.CopyFrom(token)
        changed.used.add(uuid=request.uuid, key_hash=key_hash, at_us=now_us)
        return CatalogPlan(access=AccessChanges(tokens=(changed,)))

    return _operation("use join token", plan)


def revoke(token_id: str) -> CatalogOperation:
    """Return the operation that revokes a token; its plan raises NotFound if there is none."""

    def plan(catalog: Catalog) -> CatalogPlan:
        token = catalog.access.tokens.get(token_id)
        if token is None:
            raise NotFound(f"there is no join token {token_id[:80]!r}: `nyala token list`")
        if token.revoked:
            return CatalogPlan()
        changed = cat.JoinTokenRecord()
        changed.CopyFrom(token)
        changed.revoked = True
        return CatalogPlan(access=AccessChanges(tokens=(changed,)))

    return _operation("revoke join token", plan)


def _valid(catalog: Catalog, request: pb.JoinRequest, now_us: int) -> cat.JoinTokenRecord:
    """Return the token of a request.

    Raises:
        Unauthenticated: there is none, its secret is another one, it was revoked, or has expired.
        Forbidden: it is for servers of another role.
    """
    token = catalog.access.tokens.get(request.token_id)
    if token is None or not join_token.matches(request.secret, token.secret_hash):
        raise Unauthenticated(
            "the join token is not known to this cluster; make one with nyala token create"
        )
    if token.revoked:
        raise Unauthenticated(
            f"join token {token.id} was revoked; make another one (nyala token create)"
        )
    if now_us >= token.expires_us:
        raise Unauthenticated(
            f"join token {token.id} expired {(now_us - token.expires_us) // 1_000_000} s ago; make another "
            "one (nyala token create --ttl 1h)"
        )
    if token.role != request.role:
        raise Forbidden(f"join token {token.id} is for a {token.role}, not for a {request.role}")
    return token


def _check_new(catalog: Catalog, uuid: str) -> None:
    """Check that a uuid is not that of a server of the cluster, which its holder could then act as.

    Raises:
        AlreadyPresent: it is.
    """
    server = ServerUuid(uuid)
    used = any(u.uuid == uuid for t in catalog.access.tokens.values() for u in t.used)
    if used or catalog.servers.get(server) is not None or server in catalog.replica_counts():
        raise AlreadyPresent(
            f"server {uuid} is known to this cluster already, and a token is for new servers; make its "
            "certificate with nyala cert server --name, or use an empty data directory"
        )


def _operation(what: str, plan: Callable[[Catalog], CatalogPlan]) -> CatalogOperation:
    return CatalogOperation(what, lambda _: Scope(tables=(ACCESS_LOCK,)), plan)
