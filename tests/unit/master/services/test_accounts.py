"""Accounts of users at the masters: passwords, logins, and what ends their certificates, under any leader."""

import pytest

from nyala.common.errors import (
    AlreadyPresent,
    Forbidden,
    InvalidArgument,
    NotFound,
    Unauthenticated,
)
from nyala.master.access import users
from nyala.master.access.users import UserChange
from nyala.master.catalog.access import rows_of
from nyala.master.catalog.catalog import Catalog
from nyala.master.catalog.plan import AccessChanges
from nyala.security.accounts.passwords import PasswordHash
from nyala.security.authorities.keyring import Keyring
from nyala.security.identity import CALLER, PeerIdentity, identity_of_pem
from nyala.security.principal import AccessRole, Principal
from nyala.security.revocation import Revocation, Revocations
from nyala.security.signing_request import new_request
from nyala.wire import methods
from nyala.wire.proto import access_pb2 as pb
from nyala.wire.proto import catalog_pb2 as cat
from tests.unit.master.support.master_cluster import others, with_masters
from tests.unit.security.certificates import authority

PASSWORD, OTHER = "correct horse battery", "staple correct horse"
HASH = PasswordHash(15, 8, 1, b"s" * 16, b"h" * 32)
SECOND_US = 1_000_000


def record(**fields):
    known = {"id": "ann", "role": "reader", "created_us": 5, "changed_us": 5}
    return cat.UserRecord(**{**known, **fields})


def put(catalog, *operations):
    for operation in operations:
        catalog.publish(catalog.draft(operation.plan(catalog)))


def with_user(**fields):
    catalog = Catalog()
    put(catalog, users.add(record(**fields)))
    return catalog


def at(time_us):
    return lambda: time_us


def revoked_us(catalog):
    return catalog.access.revocations["user-ann"].revoked_us


@pytest.mark.parametrize(
    "operation",
    [
        users.remove("ann", at(70), "root"),
        users.change("ann", UserChange(role="owner"), at(70), "root"),
        users.change("ann", UserChange(password=HASH), at(70), "root"),
        users.change("ann", UserChange(disabled=True), at(70), "root"),
    ],
    ids=["remove", "role", "password", "disable"],
)
def test_change_of_a_user_revokes_earlier_certificates_also_those_of_a_leader_with_a_faster_clock(
    operation,
):
    catalog = with_user()
    put(catalog, users.log_in(catalog.access.users["ann"], 90))
    put(catalog, operation)
    assert revoked_us(catalog) == 90
    assert revoked_us(with_changed(operation)) == 70


def with_changed(operation):
    catalog = with_user()
    put(catalog, operation)
    return catalog


def test_login_is_void_if_the_account_was_changed_meanwhile():
    """Its password was checked before the change: its certificate must not be handed out after it."""
    catalog = with_user()
    seen = catalog.access.users["ann"]
    put(catalog, users.change("ann", UserChange(role="writer"), at(5), "root"))
    with pytest.raises(Unauthenticated, match="changed during the login"):
        put(catalog, users.log_in(seen, 90))
    seen = catalog.access.users["ann"]
    put(catalog, users.remove("ann", at(8), "root"))
    with pytest.raises(Unauthenticated, match="changed during the login"):
        put(catalog, users.log_in(seen, 90))


def test_users_are_unknown_twice_and_too_many_only_with_an_error():
    catalog = with_user()
    with pytest.raises(AlreadyPresent, match="a user ann already"):
        put(catalog, users.add(record()))
    with pytest.raises(NotFound, match="nyala user list"):
        put(catalog, users.remove("bob", at(1), ""))
    with pytest.raises(NotFound, match="nyala user list"):
        put(catalog, users.change("bob", UserChange(role="owner"), at(1), ""))
    full = Catalog()
    full.access.users |= {str(n): record(id=str(n)) for n in range(users.MAX_USERS)}
    with pytest.raises(Forbidden, match="10000 users"):
        put(full, users.add(record()))


def test_rows_of_users_are_read_again_and_removed():
    catalog = with_user(password=users.packed(HASH))
    again = Catalog()
    again.load(rows_of(AccessChanges(users=tuple(catalog.access.users.values()))))
    assert again.access.users == catalog.access.users
    assert users.hash_in(again.access.users["ann"]) == HASH
    gone = rows_of(AccessChanges(removed_users=("ann",)))
    assert [(r.kind, r.id, r.removed) for r in gone] == [("account", "ann", True)]


def test_revocation_of_a_user_does_not_mean_a_server_of_that_name():
    known = Revocations()
    known.replace([Revocation("user-local", 1000 * SECOND_US)])
    known.check(identity("local", AccessRole.SERVER))
    with pytest.raises(Unauthenticated, match="was revoked"):
        known.check(identity("local", AccessRole.ADMIN))


def identity(name, role):
    return PeerIdentity(Principal("a" * 32, role, name), 31, 0, 1 << 40)


def login(name="ann", password=PASSWORD, **fields):
    return pb.LoginRequest(name=name, password=password, csr=new_request()[1], **fields)


def added(**fields):
    return pb.AddUserRequest(**{"name": "ann", "role": "writer", "password": PASSWORD, **fields})


def masters_do(work):
    with_masters(work, keys=Keyring(authority()))


def test_login_gives_a_certificate_of_the_role_under_the_next_leader_too():
    async def work(masters):
        masters.start()
        first = await masters.leader()
        await masters.ask(first, methods.ADD_USER, added())
        answer = await masters.ask(first, methods.LOGIN, login())
        found = identity_of_pem(answer.certificate)
        assert (found.principal.name, found.principal.role) == ("ann", AccessRole.WRITER)
        assert found.ends_s - found.issued_s == masters.options.user_certificate_s
        assert sorted(answer.master_addresses) == ["m0:1", "m1:1", "m2:1"]
        masters.processes[first].kill()
        second = await masters.leader(others(first))
        again = await masters.ask(second, methods.LOGIN, login())
        assert (again.name, again.role) == ("ann", "writer")
        listed = await masters.ask(second, methods.LIST_USERS, pb.ListUsersRequest())
        (ann,) = listed.users
        assert ann.issued_us
        assert not ann.HasField("password")

    masters_do(work)


def test_unknown_user_and_wrong_password_get_the_same_answer():
    async def work(masters):
        masters.start()
        leader = await masters.leader()
        await masters.ask(leader, methods.ADD_USER, added())
        answers = []
        for name in ("ann", "bob"):
            with pytest.raises(Unauthenticated) as found:
                await masters.ask(leader, methods.LOGIN, login(name, OTHER))
            answers.append(found.value.message.replace(name, "NAME"))
            assert OTHER not in found.value.message
        assert len(set(answers)) == 1
        for name in ("ann", "bob"):
            with pytest.raises(Unauthenticated):
                await masters.ask(leader, methods.LOGIN, login(name, ""))
        with pytest.raises(InvalidArgument):
            await masters.ask(leader, methods.ADD_USER, added(name="cy", password=""))

    masters_do(work)


def test_guesses_have_to_wait_and_even_the_right_password_does():
    async def work(masters):
        masters.start()
        leader = await masters.leader()
        await masters.ask(leader, methods.ADD_USER, added())
        for n in range(5):
            with pytest.raises(Unauthenticated, match="password is wrong"):
                await masters.ask(leader, methods.LOGIN, login(password=f"{OTHER} {n}"))
        with pytest.raises(Unauthenticated, match="too many failed logins"):
            await masters.ask(leader, methods.LOGIN, login())

    masters_do(work)


def test_disabled_user_is_told_so_with_the_right_password_only():
    async def work(masters):
        masters.start()
        leader = await masters.leader()
        await masters.ask(leader, methods.ADD_USER, added())
        await masters.ask(leader, methods.SET_USER, pb.SetUserRequest(name="ann", disabled=True))
        with pytest.raises(Forbidden, match="ann is disabled"):
            await masters.ask(leader, methods.LOGIN, login())
        with pytest.raises(Unauthenticated, match="password is wrong"):
            await masters.ask(leader, methods.LOGIN, login(password=OTHER))
        await masters.ask(leader, methods.SET_USER, pb.SetUserRequest(name="ann", disabled=False))
        assert (await masters.ask(leader, methods.LOGIN, login())).certificate

    masters_do(work)


def test_new_certificate_is_valid_at_once_after_a_change_revoked_the_earlier_one():
    """Certificates have times in whole seconds: the new one must not be in the second of the revocation."""

    async def work(masters):
        masters.start()
        leader = await masters.leader()
        await masters.ask(leader, methods.ADD_USER, added())
        earlier = (await masters.ask(leader, methods.LOGIN, login())).certificate
        changed = login(new_password=OTHER)
        later = (await masters.ask(leader, methods.LOGIN, changed)).certificate
        listed = await masters.ask(leader, methods.REVOCATIONS, pb.RevocationsRequest())
        known = Revocations()
        known.replace([Revocation(r.id, r.revoked_us) for r in listed.revocations])
        known.check(identity_of_pem(later))
        with pytest.raises(Unauthenticated, match="was revoked"):
            known.check(identity_of_pem(earlier))
        with pytest.raises(Unauthenticated, match="password is wrong"):
            await masters.ask(leader, methods.LOGIN, login())
        assert (await masters.ask(leader, methods.LOGIN, login(password=OTHER))).certificate

    masters_do(work)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"name": "a b"}, "cannot be the name"),
        ({"role": "king"}, "use one of: "),
        ({"role": "server"}, "use one of: "),
        ({"password": "secret"}, "at least 12 are required"),
    ],
)
def test_account_that_cannot_be_is_refused(fields, why):
    async def work(masters):
        masters.start()
        leader = await masters.leader()
        with pytest.raises(InvalidArgument, match=why):
            await masters.ask(leader, methods.ADD_USER, added(**fields))
        with pytest.raises(InvalidArgument, match="nothing of ann would change"):
            await masters.ask(leader, methods.SET_USER, pb.SetUserRequest(name="ann"))

    masters_do(work)


def test_administrator_cannot_change_the_own_account_which_would_revoke_the_certificate_in_use():
    async def work(masters):
        masters.start()
        leader = await masters.leader()
        handlers = masters.master(leader).handlers()
        CALLER.set(identity("root", AccessRole.ADMIN))
        requests = {
            methods.ADD_USER: added(name="root"),
            methods.SET_USER: pb.SetUserRequest(name="root", role="owner"),
            methods.REMOVE_USER: pb.RemoveUserRequest(name="root"),
        }
        for method, request in requests.items():
            with pytest.raises(InvalidArgument, match="another administrator"):
                await handlers[method](request)

    masters_do(work)


def test_master_without_the_key_of_the_authority_lets_nobody_log_in():
    async def work(masters):
        masters.start()
        leader = await masters.leader()
        for method, request in ((methods.ADD_USER, added()), (methods.LOGIN, login())):
            with pytest.raises(Forbidden, match=r"put ca\.key beside ca\.crt"):
                await masters.ask(leader, method, request)

    with_masters(work)
