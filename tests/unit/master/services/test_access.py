"""Join tokens and revoked certificates at the masters: each use takes effect once, under any leader."""

import random
from typing import Any

import pytest

from nyala.common.errors import (
    AlreadyPresent,
    Forbidden,
    InvalidArgument,
    NotFound,
    Unauthenticated,
)
from nyala.master.access import revocations, tokens
from nyala.master.catalog.access import rows_of
from nyala.master.catalog.catalog import Catalog
from nyala.master.catalog.plan import AccessChanges
from nyala.security import join_token, revocation
from nyala.security.authorities.keyring import Keyring
from nyala.security.identity import CALLER, PeerIdentity, identity_of_pem
from nyala.security.principal import AccessRole, Principal
from nyala.security.signing_request import new_request
from nyala.wire import methods
from nyala.wire.proto import access_pb2 as pb
from nyala.wire.proto import catalog_pb2 as cat
from nyala.wire.proto import nyala_pb2
from tests.unit.master.support.master_cluster import others, with_masters
from tests.unit.master.support.master_helpers import server_info
from tests.unit.security.certificates import authority

UUIDS = ["1" * 32, "2" * 32, "3" * 32]
SECRET = "s" * 64
HOUR_US = 3_600_000_000


def record(**fields: Any) -> cat.JoinTokenRecord:
    known = {"id": "t", "secret_hash": join_token.hash_of(SECRET), "role": "tserver", "uses": 1}
    return cat.JoinTokenRecord(**{**known, "created_us": 1, "expires_us": HOUR_US, **fields})


def request(uuid=UUIDS[0], secret=SECRET, role="tserver", token="t", csr=b""):
    return pb.JoinRequest(
        token_id=token, secret=secret, role=role, uuid=uuid, hosts=["127.0.0.1"], csr=csr
    )


def put(catalog, *operations):
    for operation in operations:
        catalog.publish(catalog.draft(operation.plan(catalog)))


def with_token(**fields):
    catalog = Catalog()
    put(catalog, tokens.create(record(**fields)))
    return catalog


def test_token_is_used_as_often_as_it_says_and_no_more():
    catalog = with_token(uses=2)
    put(catalog, *(tokens.use(request(uuid), uuid.encode(), 5) for uuid in UUIDS[:2]))
    with pytest.raises(Unauthenticated, match="was used for 2 servers already"):
        put(catalog, tokens.use(request(UUIDS[2]), b"k", 5))


def test_same_server_with_the_same_key_may_ask_again_since_its_answer_may_be_lost():
    catalog = with_token()
    put(catalog, tokens.use(request(), b"key", 5))
    assert not tokens.use(request(), b"key", 6).plan(catalog).writes
    for other in (tokens.use(request(), b"other", 6), tokens.use(request(UUIDS[1]), b"key", 6)):
        with pytest.raises(Unauthenticated, match="used for 1 server already"):
            put(catalog, other)


@pytest.mark.parametrize(
    ("fields", "wanted", "error", "why"),
    [
        ({}, {"secret": "x" * 64}, Unauthenticated, "not known to this cluster"),
        ({}, {"token": "u"}, Unauthenticated, "not known to this cluster"),
        ({"revoked": True}, {}, Unauthenticated, "was revoked"),
        ({"expires_us": 4}, {}, Unauthenticated, "expired 0 s ago"),
        ({}, {"role": "master"}, Forbidden, "is for a tserver, not for a master"),
    ],
)
def test_token_that_is_not_valid_is_refused_with_the_reason(fields, wanted, error, why):
    catalog = with_token(**fields)
    with pytest.raises(error, match=why):
        put(catalog, tokens.use(request(**wanted), b"key", 5))


def test_token_gives_no_certificate_for_a_server_that_exists():
    catalog = with_token(uses=3)
    put(catalog, tokens.use(request(), b"key", 5))
    with pytest.raises(AlreadyPresent, match="is known to this cluster already"):
        put(catalog, tokens.use(request(), b"another key", 6))


def test_rows_of_tokens_and_revocations_are_read_again():
    catalog = with_token(uses=2)
    put(catalog, tokens.use(request(), b"key", 5))
    put(catalog, revocations.revoke(cat.RevocationRecord(id="name-ann", revoked_us=7, until_us=9)))
    again, known = Catalog(), catalog.access
    changes = AccessChanges(
        tokens=tuple(known.tokens.values()), revocations=tuple(known.revocations.values())
    )
    again.load(rows_of(changes))
    assert again.access.tokens == catalog.access.tokens
    assert again.access.revocations == catalog.access.revocations
    put(catalog, revocations.revoke(cat.RevocationRecord(id="name-bob", revoked_us=8, until_us=9)))
    put(
        catalog, revocations.revoke(cat.RevocationRecord(id="name-eve", revoked_us=10, until_us=20))
    )
    assert list(catalog.access.revocations) == ["name-eve"], "those of ended certificates are gone"


def test_expired_tokens_are_removed_a_day_later_and_their_number_is_limited():
    catalog = with_token()
    put(catalog, tokens.create(record(id="u", created_us=30 * HOUR_US, expires_us=31 * HOUR_US)))
    assert list(catalog.access.tokens) == ["u"]
    full = Catalog()
    put(full, *(tokens.create(record(id=str(n))) for n in range(tokens.MAX_TOKENS)))
    with pytest.raises(Forbidden, match="1000 join tokens"):
        put(full, tokens.create(record(id="more")))
    with pytest.raises(NotFound, match="nyala token list"):
        put(full, tokens.revoke("none"))


def joins(masters, leader, token, uuid, csr):
    parsed = join_token.parse(token)
    wanted = request(uuid, parsed.secret, token=parsed.id, csr=csr)
    return masters.ask(leader, methods.JOIN, wanted)


def test_token_that_was_used_is_refused_by_the_next_leader():
    async def work(masters):
        masters.start()
        first = await masters.leader()
        created = await masters.ask(
            first, methods.CREATE_TOKEN, pb.CreateTokenRequest(role="tserver", ttl_s=60, uses=1)
        )
        answer = await joins(masters, first, created.token, UUIDS[0], new_request()[1])
        identity = identity_of_pem(answer.certificate)
        assert identity.principal.server_uuid == UUIDS[0]
        assert identity.hosts == ("127.0.0.1",)
        assert sorted(answer.master_addresses) == ["m0:1", "m1:1", "m2:1"]
        masters.processes[first].kill()
        second = await masters.leader(others(first))
        with pytest.raises(Unauthenticated, match="was used for 1 server already"):
            await joins(masters, second, created.token, UUIDS[1], new_request()[1])
        listed = await masters.ask(second, methods.LIST_TOKENS, pb.ListTokensRequest())
        assert [len(t.used) for t in listed.tokens] == [1]
        assert not listed.tokens[0].secret_hash

    with_masters(work, keys=Keyring(authority()))


def test_revocations_reach_the_next_leader_and_a_token_cannot_name_a_master():
    async def work(masters):
        masters.start()
        first = await masters.leader()
        done = await masters.ask(first, methods.REVOKE, pb.RevokeRequest(name="ann"))
        assert done.revocation.id == "name-ann"
        created = await masters.ask(
            first, methods.CREATE_TOKEN, pb.CreateTokenRequest(role="tserver", ttl_s=60, uses=1)
        )
        uuid = masters.master(first).uuid
        with pytest.raises(AlreadyPresent, match="is a master of this cluster"):
            await joins(masters, first, created.token, uuid, new_request()[1])
        masters.processes[first].kill()
        second = await masters.leader(others(first))
        listed = await masters.ask(second, methods.REVOCATIONS, pb.RevocationsRequest())
        assert [r.id for r in listed.revocations] == ["name-ann"]
        same = pb.RevocationsRequest(digest=listed.digest)
        assert not (await masters.ask(second, methods.REVOCATIONS, same)).revocations
        rules = await masters.ask(second, methods.ACCESS_RULES, pb.AccessRulesRequest(none=True))
        assert rules.revocations == listed, "servers learn it with the grants"
        same_rules = pb.AccessRulesRequest(revoked=listed.digest)
        answer = await masters.ask(second, methods.ACCESS_RULES, same_rules)
        assert not answer.HasField("revocations")
        assert not answer.changed
        with pytest.raises(InvalidArgument, match="not both"):
            await masters.ask(second, methods.REVOKE, pb.RevokeRequest(name="ann", serial="1"))

    with_masters(work, keys=Keyring(authority()))


def test_master_without_the_key_of_the_authority_says_what_to_do():
    async def work(masters):
        masters.start()
        leader = await masters.leader()
        wanted = pb.CreateTokenRequest(role="tserver", ttl_s=60, uses=1)
        with pytest.raises(Forbidden, match=r"put ca\.key beside ca\.crt on each master"):
            await masters.ask(leader, methods.CREATE_TOKEN, wanted)

    with_masters(work)


def identity(name, role=AccessRole.SERVER):
    return PeerIdentity(Principal("a" * 32, role, name), 31, 0, 1 << 40, ("10.0.0.5",))


def test_renewal_is_for_the_callers_own_name_and_hosts_only():
    """Handlers are called directly, as the port calls them for a caller."""

    async def work(masters):
        masters.start()
        leader = await masters.leader()
        renew = masters.master(leader).handlers()[methods.RENEW]
        wanted = pb.RenewRequest(csr=new_request()[1])
        for caller in (None, identity("db1"), identity("ann", AccessRole.ADMIN)):
            CALLER.set(caller)
            with pytest.raises(Forbidden, match="name the uuid of a server"):
                await renew(wanted)
        CALLER.set(identity(f"tserver-{UUIDS[0]}"))
        found = identity_of_pem((await renew(wanted)).certificate)
        assert (found.principal.name, found.hosts) == (f"tserver-{UUIDS[0]}", ("10.0.0.5",))
        await masters.ask(leader, methods.REVOKE, pb.RevokeRequest(serial="1f"))
        with pytest.raises(Unauthenticated, match="was revoked"):
            await renew(wanted)

    with_masters(work, keys=Keyring(authority()))


def test_administrator_cannot_revoke_the_certificate_in_use_by_mistake():
    async def work(masters):
        masters.start()
        leader = await masters.leader()
        revoke = masters.master(leader).handlers()[methods.REVOKE]
        CALLER.set(identity("ann", AccessRole.ADMIN))
        for wanted in (pb.RevokeRequest(name="ann"), pb.RevokeRequest(serial="1f")):
            with pytest.raises(InvalidArgument, match="another administrator"):
                await revoke(wanted)
        assert (await revoke(pb.RevokeRequest(name="bob"))).revocation.revoked_by == "ann"

    with_masters(work, keys=Keyring(authority()))


def test_heartbeat_counts_for_the_server_of_the_certificate_only():
    async def work(masters):
        masters.start()
        leader = await masters.leader()
        await masters.heartbeat(UUIDS[0])
        CALLER.set(identity(f"tserver-{UUIDS[1]}"))
        heartbeat = masters.master(leader).handlers()[methods.HEARTBEAT]
        with pytest.raises(Forbidden, match="reports for itself only"):
            await heartbeat(nyala_pb2.HeartbeatRequest(server=server_info(UUIDS[0])))

    with_masters(work)


def test_secrets_of_tokens_differ():
    made = {join_token.new("a" * 64, random.Random(n)).secret for n in range(100)}
    assert len(made) == 100
    assert revocation.digest(()) == revocation.digest([])
