"""Roles, principals, and the least role of each method."""

import re
from pathlib import Path

import pytest

import nyala
from nyala.common.errors import Forbidden, InvalidArgument, Unauthenticated
from nyala.env.rpc import Method
from nyala.security import policy
from nyala.security.principal import (
    USER_ROLES,
    AccessRole,
    Principal,
    check_name,
    parse_role,
    principal_of,
)
from nyala.wire import methods

CLUSTER = "a" * 32
EVERY = sorted(m.path for m in vars(methods).values() if isinstance(m, Method))


def holder(role):
    return Principal(CLUSTER, role, "ann")


def allowed(role, path):
    try:
        return policy.check(holder(role), path)
    except Forbidden:
        return False


def test_every_method_has_a_least_role_and_no_other_has_one():
    assert sorted(policy.LEAST_ROLES) == EVERY


def test_page_lists_every_method_under_its_role():
    page = Path(nyala.__file__).parents[2] / "docs/internals/security.md"
    listed = dict(re.findall(r"^\| `(\S+/\w+)` \| (\w+) \|$", page.read_text(), re.M))
    assert listed == {path: role.name.lower() for path, role in policy.LEAST_ROLES.items()}


def test_server_with_a_method_without_role_does_not_start():
    policy.require_entries(EVERY)
    with pytest.raises(AssertionError, match=r"nyala\.v1\.Other/Call"):
        policy.require_entries([*EVERY, "nyala.v1.Other/Call"])


@pytest.mark.parametrize(
    ("path", "least"),
    [
        ("arrow.flight.protocol.FlightService/DoGet", AccessRole.READER),
        ("nyala.v1.TabletReads/Get", AccessRole.READER),
        ("arrow.flight.protocol.FlightService/DoPut", AccessRole.WRITER),
        ("nyala.v1.JournalService/Step", AccessRole.WRITER),
        ("nyala.v1.MasterService/CreateTable", AccessRole.OWNER),
        ("nyala.v1.MasterService/DropTable", AccessRole.OWNER),
        ("nyala.v1.TabletAdmin/UnsafeChangeConfig", AccessRole.ADMIN),
        ("nyala.v1.CopyService/FetchFile", AccessRole.ADMIN),
        ("nyala.v1.MasterHeartbeat/Heartbeat", AccessRole.SERVER),
        ("nyala.v1.TabletAdmin/CreateTablet", AccessRole.SERVER),
    ],
)
def test_method_is_allowed_from_its_least_role_on(path, least):
    assert [allowed(role, path) for role in AccessRole] == [role >= least for role in AccessRole]


def test_method_of_tables_is_left_to_the_grants_of_whoever_lacks_its_role():
    for path in EVERY:
        least = policy.LEAST_ROLES[path]
        if least is AccessRole.USER:
            continue
        if path in policy.BY_TABLE:
            assert policy.check(holder(AccessRole.USER), path) is False
        else:
            with pytest.raises(Forbidden):
                policy.check(holder(AccessRole.USER), path)


def test_servers_make_no_tokens_accounts_and_grants():
    """The certificate of a server, if it is stolen, makes nobody an administrator."""
    assert set(policy.LEAST_ROLES) >= policy.NOT_OF_SERVERS
    assert policy.NOT_OF_SERVERS <= policy.AUDITED
    for path in policy.NOT_OF_SERVERS:
        assert allowed(AccessRole.ADMIN, path)
        with pytest.raises(
            Forbidden, match="is not for servers; use the certificate of an administrator"
        ):
            policy.check(holder(AccessRole.SERVER), path)


def test_unknown_method_is_refused_to_everyone():
    assert not any(allowed(role, "nyala.v1.MasterService/Nothing") for role in AccessRole)


def test_refusal_names_the_caller_its_role_and_the_one_needed():
    with pytest.raises(
        Forbidden, match=r"ann has the role reader, and .*CreateToken is for the role admin"
    ):
        policy.check(holder(AccessRole.READER), "nyala.v1.AccessService/CreateToken")
    with pytest.raises(
        Forbidden, match=r"ann has the role admin, and .* for servers of the cluster only"
    ):
        policy.check(holder(AccessRole.ADMIN), "nyala.v1.MasterHeartbeat/Heartbeat")


def test_only_servers_use_the_peer_port():
    policy.require_server(holder(AccessRole.SERVER))
    for role in USER_ROLES:
        with pytest.raises(Forbidden):
            policy.require_server(holder(role))


def test_uri_of_a_principal_is_read_back():
    for role in AccessRole:
        assert principal_of(["https://example.org", holder(role).uri]) == holder(role)


@pytest.mark.parametrize(
    "uris",
    [
        [],
        ["https://example.org/admin/ann"],
        [f"nyala://{CLUSTER}/root/ann"],
        [f"nyala://{CLUSTER}/admin/"],
        [f"nyala://{CLUSTER}/admin/ann/more"],
        [f"nyala://{CLUSTER}x/admin/ann"],
        [f"nyala://{CLUSTER}/admin/a n"],
        [f"nyala://{CLUSTER}/reader/ann", f"nyala://{CLUSTER}/admin/ann"],
    ],
)
def test_certificate_without_exactly_one_principal_is_refused(uris):
    with pytest.raises(Unauthenticated, match="names no user or server"):
        principal_of(uris)


def test_users_cannot_have_the_role_of_servers():
    assert [parse_role(r.name) for r in USER_ROLES] == list(USER_ROLES)
    for bad in ("server", "root", ""):
        with pytest.raises(InvalidArgument, match="reader, writer, owner, admin"):
            parse_role(bad)


@pytest.mark.parametrize("bad", ["", "a/b", "a b", "ü", "x" * 65, "a\n"])
def test_name_that_a_certificate_cannot_carry_is_refused(bad):
    with pytest.raises(InvalidArgument):
        check_name(bad)
    assert check_name("ann.b@x-1_2") == "ann.b@x-1_2"
