"""Logins with a JSON Web Token of an issuer, which names an account."""

from nyala.common.errors import InvalidArgument, Unauthenticated
from nyala.env.tasks import Lane
from nyala.master.access import users
from nyala.master.leader import Term
from nyala.master.services.tables import MasterContext
from nyala.security.accounts.attempts import LoginAttempts
from nyala.security.accounts.issuers import TokenIssuers
from nyala.wire.proto import access_pb2 as pb
from nyala.wire.proto import catalog_pb2 as cat


class TokenLogins:
    """Accounts that tokens of issuers are of. On the loop only.

    Args:
        context: context of this master.
        path: file of the issuers; empty: none is accepted.
        attempts: failed logins.

    Raises:
        InvalidArgument: the file is malformed.
    """

    def __init__(self, context: MasterContext, path: str, attempts: LoginAttempts) -> None:
        self._context = context
        self._issuers = TokenIssuers(path) if path else None
        self._attempts = attempts

    async def proven(self, term: Term, request: pb.LoginRequest) -> cat.UserRecord:
        """Return the account that the token of a request names.

        Raises:
            Unauthenticated: the token is not accepted, or there is no such account.
            Forbidden: the account is disabled.
            InvalidArgument: a password is given too.
        """
        if request.password or request.new_password:
            raise InvalidArgument("a login has a password or a token; give one of the two")
        if self._issuers is None:
            raise Unauthenticated(
                "the leader master accepts no tokens of other issuers; set its option jwt_issuers, or log "
                "in with a password"
            )
        named = f"token from {request.peer_host}"  # whose token it is, is not known before
        self._attempts.begin(named, request.peer_host)
        now_s = self._context.env.clock.wall_us() / 1e6
        name = await self._context.env.tasks.run(
            Lane.COMPUTE, self._issuers.name_in, request.token, now_s
        )
        if request.name and request.name != name:
            raise Unauthenticated(f"the token is of {name!r}, and not of {request.name[:64]!r}")
        user = term.catalog.access.users.get(name)
        if user is None:
            raise Unauthenticated(
                f"the token is of {name!r}, who has no account here; an administrator adds it with: nyala "
                "user add --without-password"
            )
        self._attempts.succeeded(named, request.peer_host)
        return users.enabled(user)
