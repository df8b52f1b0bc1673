"""Access of servers: join tokens, certificates of servers that join or renew, revoked certificates.

Only a master that has the key of the certificate authority creates tokens and signs; each needs it, since any
of them may lead.
"""

from collections.abc import Iterable, Sequence
from datetime import timedelta

from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey as PublicKey

from nyala.common.errors import AlreadyPresent, Forbidden, InvalidArgument, NyalaError
from nyala.common.ids import TabletId
from nyala.env.rpc import Handlers
from nyala.master.access import revocations, tokens
from nyala.master.access.authorities import authority_of
from nyala.master.catalog.catalog import Catalog
from nyala.master.config import MasterConfig
from nyala.master.services.tables import MasterContext
from nyala.security import join_token, revocation
from nyala.security.authority import MAX_DAYS, Authority
from nyala.security.identity import CALLER, PeerIdentity
from nyala.security.principal import AccessRole, server_name
from nyala.security.revocation import DAY_US, Revocation, Revocations
from nyala.security.signing_request import key_hash, public_key_of
from nyala.wire import methods
from nyala.wire.proto import access_pb2 as pb
from nyala.wire.proto import catalog_pb2 as cat

MAX_HOSTS = 32


class AccessService:
    """Handlers of `AccessService`. On the loop only.

    Args:
        context: context of this master.
        config: has the keys of authorities, if this master signs.
    """

    def __init__(self, context: MasterContext, config: MasterConfig) -> None:
        self._context = context
        self._config = config

    def handlers(self) -> Handlers:
        """Return the methods that this service answers."""
        return {
            methods.CREATE_TOKEN: self.create_token,
            methods.LIST_TOKENS: self.list_tokens,
            methods.REVOKE_TOKEN: self.revoke_token,
            methods.JOIN: self.join,
            methods.RENEW: self.renew,
            methods.REVOKE: self.revoke,
            methods.REVOCATIONS: self.revocations,
            methods.MEMBERS: self.members,
        }

    async def create_token(self, request: pb.CreateTokenRequest) -> pb.CreateTokenResponse:
        """Create a join token; durable on return. The secret is in the response only.

        Raises:
            InvalidArgument: role, time or uses outside their limits.
            Forbidden: this master does not sign, or there are too many tokens.
            NotLeader, Unavailable, Throttled, TimedOut, OutcomeUnknown: retry.
        """
        join_token.check_wanted(request.role, request.ttl_s, request.uses)
        term = await self._context.confirmed()
        token = join_token.new(
            authority_of(self._config, term.catalog).certificate_hash, self._context.env.random
        )
        now_us = self._context.env.clock.wall_us()
        record = cat.JoinTokenRecord(
            id=token.id,
            secret_hash=join_token.hash_of(token.secret),
            role=request.role,
            uses=request.uses,
            created_us=now_us,
            expires_us=now_us + request.ttl_s * 1_000_000,
            created_by=name_of(CALLER.get()),
        )
        await self._context.require_leading().run(tokens.create(record), term)
        return pb.CreateTokenResponse(
            token=str(token),
            expires_us=record.expires_us,
            join_address=self._config.join_address,
        )

    async def list_tokens(self, request: pb.ListTokensRequest) -> pb.ListTokensResponse:
        """Return the tokens, in the order of their creation, without the hashes of their secrets."""
        term = await self._context.confirmed()
        answer = pb.ListTokensResponse()
        for record in sorted(term.catalog.access.tokens.values(), key=lambda t: t.created_us):
            answer.tokens.add().CopyFrom(record)
            answer.tokens[-1].ClearField("secret_hash")
        return answer

    async def revoke_token(self, request: pb.RevokeTokenRequest) -> pb.RevokeTokenResponse:
        """Revoke a token; durable on return. Idempotent. Servers that joined with it stay.

        Raises:
            NotFound: there is none with this id.
        """
        term = await self._context.confirmed()
        await self._context.require_leading().run(tokens.revoke(request.id), term)
        return pb.RevokeTokenResponse()

    async def join(self, request: pb.JoinRequest) -> pb.JoinResponse:
        """Use a token: return the certificate of a server that joins, once the use is durable.

        Raises:
            Unauthenticated: the token is unknown, used up, expired or revoked.
            Forbidden: it is for another role, or this master does not sign.
            AlreadyPresent: a server of the cluster has this uuid.
            InvalidArgument: a malformed request, uuid or host.
        """
        term = await self._context.confirmed()
        authority, key = authority_of(self._config, term.catalog), public_key_of(request.csr)
        name = server_name(request.role, request.uuid)
        if not 1 <= len(request.hosts) <= MAX_HOSTS:
            raise InvalidArgument(
                f"a certificate of a server names 1 to {MAX_HOSTS} hosts, not {len(request.hosts)}"
            )
        masters = self._context.status().consensus.members
        if request.uuid in [m.uuid for m in masters]:
            raise AlreadyPresent(f"{request.uuid} is a master of this cluster already")
        certificate = self._sign(authority, key, name, request.hosts)
        known = term.catalog.access.authorities
        used = tokens.use(request, key_hash(key), self._context.env.clock.wall_us())
        await self._context.require_leading().run(used, term)
        return pb.JoinResponse(
            ca=b"".join(known.certificates) if known else authority.certificate_pem,
            certificate=certificate,
            master_addresses=[m.address for m in masters if m.voter],
        )

    async def renew(self, request: pb.RenewRequest) -> pb.RenewResponse:
        """Return a new certificate for the caller's own name and hosts, and the key of the request.

        Raises:
            Forbidden: the caller's certificate names no server's uuid, or this master does not sign.
            Unauthenticated: it was revoked.
            InvalidArgument: a malformed request.
        """
        term = await self._context.confirmed()
        caller = CALLER.get()
        if caller is None or caller.principal.server_uuid is None:
            raise Forbidden(
                "only certificates that name the uuid of a server are renewed by the masters; make a new one "
                "with nyala cert server"
            )
        current = Revocations()
        current.replace(entries_of(term.catalog.access.revocations.values()))
        current.check(caller)
        key = public_key_of(request.csr)
        name = caller.principal.name
        return pb.RenewResponse(
            certificate=self._sign(
                authority_of(self._config, term.catalog), key, name, caller.hosts
            )
        )

    async def revoke(self, request: pb.RevokeRequest) -> pb.RevokeResponse:
        """Revoke a certificate by its serial number, or all of a holder; durable on return.

        Raises:
            InvalidArgument: malformed, or it would revoke the certificate of the caller.
            Forbidden: there are too many revocations.
        """
        by_serial = bool(request.serial)
        if by_serial == bool(request.name):
            raise InvalidArgument(
                "name a serial number, or the holder of certificates, and not both"
            )
        wanted = (
            revocation.id_of_serial(request.serial)
            if by_serial
            else revocation.id_of_name(request.name)
        )
        term = await self._context.confirmed()
        now_us = self._context.env.clock.wall_us()
        record = cat.RevocationRecord(
            id=wanted, revoked_us=now_us, until_us=now_us + MAX_DAYS * DAY_US,
            revoked_by=name_of(CALLER.get()),
        )  # fmt: skip
        check_other(record, CALLER.get())
        await self._context.require_leading().run(revocations.revoke(record), term)
        return pb.RevokeResponse(revocation=record)

    async def revocations(self, request: pb.RevocationsRequest) -> pb.RevocationsResponse:
        """Return the list of revocations if it differs from the caller's."""
        term = await self._context.confirmed()
        return revocations_since(term.catalog, request.digest)

    async def members(self, request: pb.MembersRequest) -> pb.MembersResponse:
        """Return the newest committed configuration of a tablet, for replicas that are behind."""
        term = await self._context.confirmed()
        tablet = term.catalog.tablet(TabletId(request.tablet_id))
        if tablet is None or not tablet.live:
            return pb.MembersResponse()
        return pb.MembersResponse(consensus=tablet.consensus)

    def _sign(self, authority: Authority, key: PublicKey, name: str, hosts: Sequence[str]) -> bytes:
        valid_s = self._config.options.server_certificate_s
        return authority.sign(key, AccessRole.SERVER, name, hosts, timedelta(seconds=valid_s))


def entries_of(records: Iterable[cat.RevocationRecord]) -> list[Revocation]:
    """Return revocations as processes keep them."""
    return [Revocation(r.id, r.revoked_us) for r in records]


def revocations_since(catalog: Catalog, digest: bytes) -> pb.RevocationsResponse:
    """Return the digest of the list of revocations, and the list unless it is the one of a digest."""
    known = list(catalog.access.revocations.values())
    now = revocation.digest(entries_of(known))
    return pb.RevocationsResponse(digest=now, revocations=() if now == digest else known)


def check_other(record: cat.RevocationRecord, caller: PeerIdentity | None) -> None:
    """Check that a revocation is not that of the caller's own certificate.

    Raises:
        InvalidArgument: it is.
    """
    if caller is None:
        return
    alone = Revocations()
    alone.replace(entries_of([record]))
    try:
        alone.check(caller)
    except NyalaError as err:
        raise InvalidArgument(
            f"this would revoke the certificate that the command uses, of {caller.principal}; use the "
            "certificate of another administrator"
        ) from err


def name_of(caller: PeerIdentity | None) -> str:
    """Return the name of a caller, as the catalog notes it; empty: the server has no credentials."""
    return "" if caller is None else caller.principal.name
