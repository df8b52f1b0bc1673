"""Logins with a JSON Web Token of an issuer, which names an account."""

import logging

from nyala.common.errors import InvalidArgument, Unauthenticated, Unavailable
from nyala.env.tasks import Lane
from nyala.master.access import users
from nyala.master.leader import Term
from nyala.master.services.tables import MasterContext
from nyala.security.accounts.attempts import LoginAttempts, host_seen
from nyala.security.accounts.issuers import TokenAccount, TokenIssuers
from nyala.wire.proto import access_pb2 as pb
from nyala.wire.proto import catalog_pb2 as cat

log = logging.getLogger(__name__)


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
        """Return the account that the token of a request names, bound to the issuer of the token.

        Raises:
            Unauthenticated: the token is not accepted, there is no such account, or it is of another issuer.
            Forbidden: the account is disabled.
            InvalidArgument: a password is given too.
            Unavailable: the files of the issuers are malformed, which is no failure of the user.
        """
        if request.password or request.new_password:
            raise InvalidArgument("a login has a password or a token; give one of the two")
        if self._issuers is None:
            raise Unauthenticated(
                "the leader master accepts no tokens of other issuers; set its option jwt_issuers, or log "
                "in with a password"
            )
        host = host_seen(request.peer_host)
        named = f"token from {host}"  # whose token it is, is not known before
        counted = self._attempts.begin(named, host)
        now_s = self._context.env.clock.wall_us() / 1e6
        try:
            found = await self._context.env.tasks.run(
                Lane.COMPUTE, self._issuers.account_in, request.token, now_s
            )
        except InvalidArgument as err:
            self._attempts.withdraw(counted)
            log.error("logins with tokens are refused: %s", err.message)
            raise Unavailable(
                "the leader master cannot read the files of its issuers (option jwt_issuers), and accepts no "
                "tokens meanwhile; an administrator corrects them: the master's log names the mistake"
            ) from err
        if request.name and request.name != found.name:
            raise Unauthenticated(
                f"the token is of {found.name!r}, and not of {request.name[:64]!r}"
            )
        user = term.catalog.access.users.get(found.name)
        if user is None:
            raise Unauthenticated(
                f"the token is of {found.name!r}, who has no account here; an administrator adds it with: "
                "nyala user add --without-password"
            )
        bound = _bound(user, found)
        self._attempts.succeeded(named, host)
        return users.enabled(bound)


def _bound(user: cat.UserRecord, found: TokenAccount) -> cat.UserRecord:
    """Return an account with the issuer whose tokens name it.

    Raises:
        Unauthenticated: it is that of another issuer, or of none while several are accepted.
    """
    if user.issuer == found.issuer:
        return user
    if user.issuer or not found.only:
        whose = f"to tokens of {user.issuer}" if user.issuer else "to none of the issuers yet"
        raise Unauthenticated(
            f"the token is of the issuer {found.issuer}, and the account {user.id} is bound {whose}; an "
            f"administrator binds it with: nyala user issuer {user.id} ISSUER"
        )
    bound = cat.UserRecord()
    bound.CopyFrom(user)
    bound.issuer = found.issuer
    return bound
