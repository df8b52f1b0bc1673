"""Certificates of users that the present authority issues again, in place of those of the old one."""

from datetime import timedelta

from nyala.common.errors import Forbidden
from nyala.master.access import issued
from nyala.master.access.authorities import authority_of
from nyala.master.config import MasterConfig
from nyala.master.leader import Term
from nyala.master.services.access import entries_of
from nyala.master.services.tables import MasterContext
from nyala.security.authorities import bundle
from nyala.security.identity import CALLER, PeerIdentity
from nyala.security.principal import AccessRole
from nyala.security.revocation import Revocations
from nyala.security.signing_request import public_key_of
from nyala.wire.proto import access_pb2 as pb


class Reissues:
    """Answers to `Reissue`. On the loop only.

    Args:
        context: context of this master.
        config: has the keys of authorities, if this master signs.
    """

    def __init__(self, context: MasterContext, config: MasterConfig) -> None:
        self._context = context
        self._config = config

    async def reissue(self, request: pb.ReissueRequest) -> pb.ReissueResponse:
        """Return a certificate of the present authority in place of one of the old authority.

        It has the name, role, times and serial number of the caller's, so that what revokes one revokes both.
        The catalog notes the serial number, for the retirement of the old authority.

        Raises:
            Forbidden: the caller is a server, or this master does not sign.
            Unauthenticated: the caller's certificate was revoked.
            InvalidArgument: a malformed request.
        """
        term = await self._context.confirmed()
        caller = _user()
        revoked_in(term).check(caller)
        known = term.catalog.access.authorities
        authority = authority_of(self._config, term.catalog)
        trusted = [authority.certificate_pem] if known is None else known.certificates
        answer = pb.ReissueResponse(ca=b"".join(trusted))
        if caller.authority != bundle.key_id(authority.certificate):
            answer.certificate = authority.sign(
                public_key_of(request.csr), caller.principal.role, caller.principal.name, (),
                timedelta(seconds=caller.ends_s - caller.issued_s), caller.issued_s * 1_000_000,
                caller.serial,
            )  # fmt: skip
            await self._context.require_leading().run(issued.renewed(caller.serial), term)
        return answer


def revoked_in(term: Term) -> Revocations:
    """Return the list of revoked certificates of the catalog."""
    found = Revocations()
    found.replace(entries_of(term.catalog.access.revocations.values()))
    return found


def _user() -> PeerIdentity:
    """Return the caller, who is a user.

    Raises:
        Forbidden: it is a server, or has no certificate.
    """
    caller = CALLER.get()
    if caller is None or caller.principal.role is AccessRole.SERVER:
        raise Forbidden("only certificates of users are issued again; servers renew theirs")
    return caller
