"""Logins at web ports by account and password, which the leader master checks."""

from collections.abc import Awaitable, Callable, Sequence

from nyala.client.cluster.leader_calls import LeaderCalls
from nyala.env.env import Env
from nyala.security.credentials import Credentials
from nyala.security.identity import BACKDATED_S, PeerIdentity
from nyala.security.principal import Principal, parse_role
from nyala.wire import methods
from nyala.wire.proto import access_pb2 as pb

TIMEOUT_MS = 8_000


def password_login(
    env: Env, credentials: Credentials, masters: Callable[[], Sequence[str]]
) -> Callable[[str, str, str], Awaitable[PeerIdentity]]:
    """Return a check of name, password and host of a user, which returns who it is.

    The masters count failures as for other logins, and have each in their audit log. The identity has the
    time of the login: so it ends when the account is changed, as certificates do.

    Args:
        env: calls.
        credentials: of this server.
        masters: returns the public addresses of the masters.
    """
    leader = LeaderCalls(env, masters)

    async def check(name: str, password: str, host: str) -> PeerIdentity:
        request = pb.LoginRequest(name=name, password=password, peer_host=host)
        found = await leader.call(methods.LOGIN, request, timeout_ms=TIMEOUT_MS)
        who = Principal(credentials.principal.cluster, parse_role(found.role), found.name)
        begins_s = found.issued_us // 1_000_000 - BACKDATED_S
        return PeerIdentity(who, 0, begins_s, 1 << 40)

    return check
