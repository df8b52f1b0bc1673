"""Accounts of users: the list, and logins: a password or an issuer's token for a certificate of some hours.

Only a leader master that has the key of the certificate authority answers. Failed logins are bounded for each
user and each host, and passwords are hashed in a worker thread, a few at a time.
"""

import contextlib
from collections.abc import Iterator
from datetime import timedelta

from nyala.common.errors import InvalidArgument, Throttled, Unauthenticated, Unavailable
from nyala.env.rpc import Handlers
from nyala.env.tasks import Lane
from nyala.master.access import users
from nyala.master.access.authorities import authority_of
from nyala.master.access.users import UserChange
from nyala.master.config import MasterConfig
from nyala.master.leader import Term
from nyala.master.services.access import check_other, name_of
from nyala.master.services.tables import MasterContext
from nyala.master.services.token_logins import TokenLogins
from nyala.security import revocation
from nyala.security.accounts import passwords
from nyala.security.accounts.attempts import LoginAttempts, host_seen
from nyala.security.accounts.issuers import check_issuer
from nyala.security.accounts.passwords import PasswordHash
from nyala.security.identity import CALLER
from nyala.security.principal import check_name, parse_role
from nyala.security.signing_request import public_key_of
from nyala.wire import methods
from nyala.wire.proto import access_pb2 as pb
from nyala.wire.proto import catalog_pb2 as cat

MAX_HASHING = 4
"""Passwords that are hashed at a time; each takes 32 MiB."""
MAX_WAIT_US = 3_000_000
"""Longest wait for the second after a revocation, in microseconds: certificates have times in seconds."""


class AccountsService:
    """Handlers of `AccessService` for users. On the loop only.

    Args:
        context: context of this master.
        config: has the keys of authorities, if this master signs.
    """

    def __init__(self, context: MasterContext, config: MasterConfig) -> None:
        self._context = context
        self._config = config
        self._attempts = LoginAttempts(context.env.clock.monotonic_us)
        self._tokens = TokenLogins(context, config.options.jwt_issuers, self._attempts)
        self._hashing = 0

    def handlers(self) -> Handlers:
        """Return the methods that this service answers."""
        return {
            methods.ADD_USER: self.add,
            methods.LIST_USERS: self.list_,
            methods.SET_USER: self.set,
            methods.REMOVE_USER: self.remove,
            methods.LOGIN: self.log_in,
        }

    async def add(self, request: pb.AddUserRequest) -> pb.AddUserResponse:
        """Add an account; durable on return.

        Raises:
            InvalidArgument: a name, role or password that cannot be one.
            AlreadyPresent: there is such a user.
            Forbidden: there are too many users, or this master does not sign.
        """
        name, role = check_name(request.name), parse_role(request.role)
        self._check_not_caller(name)
        if request.without_password and request.password:
            raise InvalidArgument(f"{name} would have a password and none; give one of the two")
        if not request.without_password:
            passwords.check_new(name, request.password)
        term = await self._context.confirmed()
        authority_of(self._config, term.catalog)
        now_us = self._now_us()
        record = cat.UserRecord(
            id=name, role=role.name.lower(), created_us=now_us, changed_us=now_us,
            created_by=name_of(CALLER.get()), issuer=check_issuer(request.issuer),
        )  # fmt: skip
        if not request.without_password:
            record.password.CopyFrom(users.packed(await self._hash(request.password)))
        await self._context.require_leading().run(users.add(record), term)
        return pb.AddUserResponse()

    async def list_(self, request: pb.ListUsersRequest) -> pb.ListUsersResponse:
        """Return the accounts in the order of their names, without passwords."""
        term = await self._context.confirmed()
        answer = pb.ListUsersResponse()
        for name in sorted(term.catalog.access.users):
            known = term.catalog.access.users[name]
            listed = answer.users.add()
            listed.CopyFrom(known)
            listed.ClearField("password")
        return answer

    async def set(self, request: pb.SetUserRequest) -> pb.SetUserResponse:
        """Change an account, and revoke the user's certificates; durable on return.

        Raises:
            InvalidArgument: nothing changes, a role or password that cannot be one, or the caller's account.
            NotFound: there is no such user.
            Forbidden: there are too many revocations, or this master does not sign.
        """
        name = check_name(request.name)
        if request.role:
            parse_role(request.role)
        if request.password:
            passwords.check_new(name, request.password)
        disabled = request.disabled if request.HasField("disabled") else None
        issuer = check_issuer(request.issuer) if request.HasField("issuer") else None
        if not request.role and not request.password and disabled is None and issuer is None:
            raise InvalidArgument(
                f"nothing of {name} would change; give a role, a password, disabled, or an issuer"
            )
        self._check_not_caller(name)
        term = await self._context.confirmed()
        authority_of(self._config, term.catalog)
        hashed = await self._hash(request.password) if request.password else None
        change = UserChange(request.role.lower(), hashed, disabled, issuer)
        wanted = users.change(name, change, self._now_us, name_of(CALLER.get()))
        await self._context.require_leading().run(wanted, term)
        return pb.SetUserResponse()

    async def remove(self, request: pb.RemoveUserRequest) -> pb.RemoveUserResponse:
        """Remove an account, and revoke the user's certificates; durable on return. Raises as `set`."""
        self._check_not_caller(check_name(request.name))
        term = await self._context.confirmed()
        wanted = users.remove(request.name, self._now_us, name_of(CALLER.get()))
        await self._context.require_leading().run(wanted, term)
        return pb.RemoveUserResponse()

    async def log_in(self, request: pb.LoginRequest) -> pb.LoginResponse:
        """Return a certificate of some hours for a user's password or token, once the login is durable.

        With a new password, the account gets it, and earlier certificates are revoked.

        Raises:
            Unauthenticated: unknown user, wrong password (the same message), a token that is not accepted,
                too many failures before.
            Forbidden: the account is disabled, or this master does not sign.
            InvalidArgument: a malformed request, or a new password that is too weak.
            Throttled, Unavailable: retry.
        """
        key = public_key_of(request.csr) if request.csr else None
        term = await self._context.confirmed()
        authority = authority_of(self._config, term.catalog)
        if request.token:
            user = await self._tokens.proven(term, request)
        else:
            user = await self._proven(term, request)
        if request.new_password:
            user = await self._renewed_password(term, user, request.new_password)
        issued_us = await self._issue_time(term, user.id)
        certificate = b""
        if key is not None:
            valid = timedelta(seconds=self._config.options.user_certificate_s)
            role = parse_role(user.role)
            certificate = authority.sign(key, role, user.id, (), valid, issued_us)
        noted = users.log_in(user, issued_us, certified=key is not None)
        await self._context.require_leading().run(noted, term)
        masters = self._context.status().consensus.members
        return pb.LoginResponse(
            name=user.id, role=user.role, certificate=certificate, issued_us=issued_us,
            master_addresses=[m.address for m in masters if m.voter],
        )  # fmt: skip

    async def _proven(self, term: Term, request: pb.LoginRequest) -> cat.UserRecord:
        """Return the account whose password the request has.

        Raises:
            Unauthenticated: there is none.
            Forbidden: it is disabled.
        """
        with self._slot():
            host = host_seen(request.peer_host)
            self._attempts.begin(request.name, host)
            user = term.catalog.access.users.get(request.name)
            right = await self._context.env.tasks.run(
                Lane.COMPUTE, passwords.matches, request.password, users.hash_in(user)
            )
        if user is None or not right:
            raise Unauthenticated(
                f"the user {request.name[:64]!r} is unknown, or the password is wrong; an administrator sets "
                "a new one with: nyala user passwd"
            )
        self._attempts.succeeded(request.name, host)
        return users.enabled(user)

    async def _renewed_password(
        self, term: Term, user: cat.UserRecord, password: str
    ) -> cat.UserRecord:
        """Replace the password of a user who has logged in; return the account."""
        passwords.check_new(user.id, password)
        change = UserChange(password=await self._hash(password))
        wanted = users.change(user.id, change, self._now_us, user.id, seen=user)
        plan = await self._context.require_leading().run(wanted, term)
        assert plan.access is not None
        return plan.access.users[0]

    async def _issue_time(self, term: Term, name: str) -> int:
        """Return the time of a new certificate: in a later second than the revocations of its user's.

        Raises:
            Unavailable: these are too far in the future of this master's clock.
        """
        known = term.catalog.access.revocations
        ids = (revocation.id_of_user(name), revocation.id_of_name(name))
        last_us = max((known[i].revoked_us for i in ids if i in known), default=0)
        wait_us = (last_us // 1_000_000 + 1) * 1_000_000 - self._now_us() if last_us else 0
        if wait_us > MAX_WAIT_US:
            raise Unavailable(
                f"certificates of {name} are revoked until {wait_us // 1_000_000} s after the time of the "
                "leader master; correct its clock, or wait"
            )
        while wait_us > 0:
            await self._context.env.tasks.sleep_ms(wait_us / 1000 + 1)
            wait_us = (last_us // 1_000_000 + 1) * 1_000_000 - self._now_us()
        return self._now_us()

    async def _hash(self, password: str) -> PasswordHash:
        salt = self._context.env.random.randbytes(passwords.SALT_BYTES)
        with self._slot():
            return await self._context.env.tasks.run(
                Lane.COMPUTE, passwords.hash_of, password, salt
            )

    @contextlib.contextmanager
    def _slot(self) -> Iterator[None]:
        """Take one of the places in which passwords are hashed.

        Raises:
            Throttled: all are taken.
        """
        if self._hashing >= MAX_HASHING:
            raise Throttled("the leader master is busy with other logins; retry")
        self._hashing += 1
        try:
            yield
        finally:
            self._hashing -= 1

    def _check_not_caller(self, name: str) -> None:
        """Check that the certificates of a user are not those of the caller, which a change revokes.

        Raises:
            InvalidArgument: they are.
        """
        now_us = self._now_us()
        check_other(
            cat.RevocationRecord(id=revocation.id_of_user(name), revoked_us=now_us), CALLER.get()
        )

    def _now_us(self) -> int:
        return self._context.env.clock.wall_us()
