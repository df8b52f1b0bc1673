"""Least role for each method of the public port. A pure function of principal and method.

A method without an entry is refused, and a server that has one does not start.
"""

from collections.abc import Iterable, Mapping
from typing import NoReturn

from nyala.common.errors import Forbidden
from nyala.security.principal import AccessRole, Principal

_USER, _READ, _WRITE, _OWN, _ADMIN, _SERVER = AccessRole
_V1, _RAM = "nyala.v1.", "nyala.ram.v1."
_BY_SERVICE: Mapping[str, Mapping[str, AccessRole]] = {
    _V1 + "ServerService": {"ServerInfo": _USER, "SetLogLevel": _ADMIN},
    _V1 + "MasterService": {
        "CreateTable": _OWN, "DropTable": _OWN, "RecallTable": _OWN, "AlterTable": _OWN,
        "ListTables": _USER, "DescribeTable": _READ, "TabletLocations": _READ, "ListServers": _USER,
        "MasterStatus": _USER, "PollMaster": _SERVER, "InspectMaster": _ADMIN, "SetMaintenance": _ADMIN,
        "SetDecommission": _ADMIN, "UnregisterServer": _ADMIN, "StandbyPlans": _ADMIN,
        "ReplaceTablet": _ADMIN,
    },
    _V1 + "AccessService": {
        "CreateToken": _ADMIN, "ListTokens": _ADMIN, "RevokeToken": _ADMIN, "Join": _SERVER,
        "Renew": _SERVER, "Revoke": _ADMIN, "Revocations": _READ, "Members": _SERVER,
        "Grant": _USER, "RevokeGrant": _USER, "ListGrants": _USER, "AccessRules": _SERVER,
        "AuthorityStatus": _ADMIN, "RotateAuthority": _ADMIN, "AbortAuthority": _ADMIN,
        "RetireAuthority": _ADMIN, "OfferAuthority": _SERVER, "TakeAuthority": _SERVER, "Reissue": _USER,
        "Login": _SERVER, "AddUser": _ADMIN, "ListUsers": _ADMIN, "SetUser": _ADMIN, "RemoveUser": _ADMIN,
    },
    _V1 + "MasterHeartbeat": {"Heartbeat": _SERVER},
    _V1 + "TabletAdmin": {
        "CreateTablet": _SERVER, "AlterTablet": _SERVER, "DeleteTablet": _ADMIN, "ListTablets": _READ,
        "HoldHistory": _READ, "StartCopy": _ADMIN, "CopyStatus": _ADMIN, "CancelCopy": _ADMIN,
        "ChangeConfig": _ADMIN, "LeaderStepDown": _ADMIN, "CreateWitness": _ADMIN,
        "UnsafeChangeConfig": _ADMIN,
    },
    _V1 + "CopyService": {
        "BeginCopy": _ADMIN, "FetchFile": _ADMIN, "FetchEntries": _ADMIN, "HoldCopy": _ADMIN,
    },
    _V1 + "TabletReads": {
        "Get": _READ, "Checksum": _READ, "SplitKeyRange": _READ, "AwaitChanges": _READ,
    },
    _V1 + "TabletTransactions": {
        "Check": _SERVER, "Keep": _WRITE, "Drop": _WRITE, "Prepare": _SERVER, "Unprepare": _SERVER,
        "Resolve": _SERVER, "Stages": _ADMIN,  # who knows the id of a transaction may abort it
    },
    _V1 + "TransactionService": {
        "Ready": _USER, "Commit": _WRITE, "Abort": _USER, "Status": _SERVER, "List": _ADMIN, "Key": _USER,
        "SetKeyOwner": _ADMIN,
    },
    _V1 + "JournalService": {"Step": _WRITE, "Steps": _WRITE, "Read": _READ, "Tail": _READ},
    _V1 + "StreamService": {"Find": _USER, "Call": _USER},  # the methods in it are checked one by one
    _RAM + "CoordinatorService": {
        "Enlist": _SERVER, "CreateTable": _OWN, "DropTable": _OWN, "SplitTablet": _OWN,
        "TabletMap": _READ, "ServerList": _READ, "HintCrashed": _WRITE, "SetRecoveryInfo": _SERVER,
        "Wills": _READ, "Dump": _ADMIN, "CoordinatorStatus": _READ,
    },
    _RAM + "EnsembleService": {
        "TakeTabletOwnership": _SERVER, "DropTabletOwnership": _SERVER,
        "SplitMasterTablet": _SERVER, "SetOwnership": _SERVER, "UpdateServerList": _SERVER,
        "Ping": _SERVER, "ServerStatus": _READ,
    },
    "arrow.flight.protocol.FlightService": {
        "ListFlights": _READ, "GetFlightInfo": _READ, "GetSchema": _READ, "DoGet": _READ, "DoPut": _WRITE,
    },
}  # fmt: skip
LEAST_ROLES: Mapping[str, AccessRole] = {
    f"{service}/{name}": role
    for service, named in _BY_SERVICE.items()
    for name, role in named.items()
}
"""Least role by `package.Service/Method`."""


BY_TABLE: frozenset[str] = frozenset(
    f"{service}/{name}"
    for service, names in {
        _V1 + "MasterService": (
            "CreateTable", "DropTable", "RecallTable", "AlterTable", "DescribeTable", "TabletLocations",
        ),
        _V1 + "TabletAdmin": ("HoldHistory",),
        _V1 + "TabletReads": ("Get", "Checksum", "SplitKeyRange", "AwaitChanges"),
        _V1 + "TabletTransactions": ("Keep", "Drop"),
        _V1 + "TransactionService": ("Commit",),
        _V1 + "JournalService": ("Step", "Steps", "Read", "Tail"),
        "arrow.flight.protocol.FlightService": ("GetFlightInfo", "GetSchema", "DoGet", "DoPut"),
    }.items()
    for name in names
)  # fmt: skip
"""Methods for which grants on the tables of a request are enough; `wire/tls/tables_of.py` says of which."""


AUDITED: frozenset[str] = frozenset(
    f"{_V1}{service}/{name}"
    for service, names in {
        "ServerService": ("SetLogLevel",),
        "MasterService": (
            "CreateTable", "DropTable", "RecallTable", "AlterTable", "ReplaceTablet", "SetMaintenance",
            "SetDecommission", "UnregisterServer",
        ),
        "AccessService": (
            "CreateToken", "RevokeToken", "Join", "Renew", "Revoke", "Login", "AddUser", "SetUser",
            "RemoveUser", "Grant", "RevokeGrant", "RotateAuthority", "AbortAuthority", "RetireAuthority",
            "TakeAuthority", "Reissue",
        ),
        "TabletAdmin": ("DeleteTablet", "ChangeConfig", "CreateWitness", "UnsafeChangeConfig"),
        "TransactionService": ("SetKeyOwner",),
    }.items()
    for name in names
)  # fmt: skip
"""Methods of which each call is in the audit log: definitions, access, members of groups, owners of keys."""


NOT_OF_SERVERS: frozenset[str] = frozenset(
    f"{_V1}{service}/{name}"
    for service, names in {
        "ServerService": ("SetLogLevel",),
        "AccessService": (
            "CreateToken", "RevokeToken", "Revoke", "AddUser", "SetUser", "RemoveUser", "Grant",
            "RevokeGrant", "RotateAuthority", "AbortAuthority", "RetireAuthority",
        ),
    }.items()
    for name in names
)  # fmt: skip
"""Methods that servers do not call: with a stolen certificate of one nobody makes administrators of users, or
another authority."""


def require_entries(paths: Iterable[str]) -> None:
    """Check that each method of a server has an entry.

    Raises:
        AssertionError: a method has none.
    """
    missing = sorted(set(paths) - set(LEAST_ROLES))
    assert not missing, f"methods without a least role in security/policy.py: {missing}"


def require_server(principal: Principal) -> None:
    """Check that a principal is a server, as the peer port requires.

    Raises:
        Forbidden: it is a user.
    """
    if principal.role is not _SERVER:
        raise Forbidden(
            f"{principal} is not a server of the cluster; only servers use the peer port"
        )


def check(principal: Principal, path: str) -> bool:
    """Check that a principal may call a method.

    Args:
        principal: of the verified certificate.
        path: `package.Service/Method`.

    Returns:
        True: with any request; False: with a request for tables that are granted to it, which is to be
        checked.

    Raises:
        Forbidden: its role is below that of the method, or the method is not known.
    """
    least = LEAST_ROLES.get(path)
    if principal.role is _SERVER and path in NOT_OF_SERVERS:
        raise Forbidden(
            f"{principal.name} is a server, and {path.partition('/')[2]} is not for servers; use the "
            "certificate of an administrator (nyala cert user --role admin)"
        )
    if least is not None and principal.role >= least:
        return True
    if path in BY_TABLE:
        return False
    refuse(principal, path)


def refuse(principal: Principal, path: str) -> NoReturn:
    """Refuse a call for the role of its caller.

    Raises:
        Forbidden: always; the message names the role that is needed.
    """
    least = LEAST_ROLES.get(path)
    nobody = least is None or least is _SERVER
    needed = "servers of the cluster only" if nobody else f"the role {_name(least)} or above"
    raise Forbidden(
        f"{principal.name} has the role {_name(principal.role)}, and {path.partition('/')[2]} is for "
        f"{needed}; use a certificate with that role (nyala cert user)"
    )


def _name(role: AccessRole | None) -> str:
    return "" if role is None else role.name.lower()
