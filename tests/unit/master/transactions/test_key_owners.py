"""A key belongs to the user whose transaction took it first; other users are refused. Rule I."""

import asyncio
from typing import Any

import pytest

from nyala.common.errors import Forbidden, InvalidArgument, NotFound
from nyala.common.options import Options
from nyala.master.catalog.plan import CatalogPlan
from nyala.master.catalog.records.parsing import parse_key
from nyala.master.catalog.records.rows import KIND_KEY
from nyala.master.services.transactions import TransactionsService
from nyala.master.transactions import keys
from nyala.master.transactions.keys import ANYONE, KeyState, KeyUse, KeyUser
from nyala.security.identity import CALLER, PeerIdentity
from nyala.security.principal import USER_ROLES, AccessRole, Principal
from nyala.wire.proto import catalog_pb2 as cat
from nyala.wire.proto import transactions_pb2 as txn
from tests.unit.master.support.scripted_tablets import Term, with_term

Kind = txn.TxnOutcome
JOB = txn.TxnKey(name="job")
ANN, BOB, ROOT = KeyUser("ann", False), KeyUser("bob", False), KeyUser("root", True)


def epoch(number, query="q", replaces=""):
    return txn.TxnKey(name="s", query=query, epoch=number, replaces=replaces)


def owner(term, name="job"):
    """Return the owner of a key in the rows of the catalog; None: there is no such key."""
    row = term.rows.rows.get((KIND_KEY, name))
    return None if row is None else parse_key(row).owner


def service_of(term):
    class Context:
        options, env = term.options, term.env

        def require_leading(self):
            return self

        def require(self):
            return term

        async def confirmed(self):
            return term

    context: Any = Context()
    return TransactionsService(context)


def principal(name, role=AccessRole.WRITER):
    return Principal("0" * 32, role, name)


async def calling(principal, call):
    """Run a call as a caller with a certificate; None: the server has no credentials."""
    identity = None if principal is None else PeerIdentity(principal, 1, 0, 0)
    token = CALLER.set(identity)
    try:
        return await call
    finally:
        CALLER.reset(token)


@pytest.mark.parametrize("known", [JOB, epoch(4), None])
@pytest.mark.parametrize("owned", ["", "ann"])
@pytest.mark.parametrize("user", [ANYONE, ANN, BOB, ROOT])
def test_only_the_owner_and_operators_may_use_a_key(user, owned, known):
    record = None if known is None else cat.KeyRecord(key=known, owner=owned, transaction=b"x")
    allowed = known is None or owned in ("", user.name) or user.every_key
    assert user.may_use(record) is allowed
    for asked in (JOB, epoch(0), epoch(4), epoch(5), epoch(0, "r", "q")):
        as_anyone = keys.verdict(KeyUse(asked, ANYONE, b"t"), record)
        found = keys.verdict(KeyUse(asked, user, b"t"), record)
        if allowed:
            assert found == as_anyone
        else:
            assert found.state is KeyState.REFUSED
            assert "of another user" in found.reason
            assert "ann" not in found.reason.replace("another", "")
        covered = keys.covers(record, KeyUse(asked, user, b"t"))
        assert covered == (allowed and keys.covers(record, KeyUse(asked, ANYONE, b"t")))


@pytest.mark.parametrize("role", USER_ROLES)
def test_every_key_is_for_administrators_and_servers(role):
    found = keys.user_of(principal("ann", role))
    assert found == KeyUser("ann", role is AccessRole.ADMIN)
    assert keys.user_of(principal("tserver-1", AccessRole.SERVER)) == KeyUser("", True)
    assert keys.user_of(None) == ANYONE


def test_job_of_another_user_is_denied_and_not_answered_as_done():
    async def work(term):
        first = await term.commit(1, JOB, user=ANN)
        denied = await term.commit(2, JOB, user=BOB)
        assert denied.kind == Kind.DENIED
        assert denied.reason == (
            "the key 'job' belongs to a job or stream of another user; use another name, or ask an "
            "administrator for this one (nyala txn owner)"
        )
        stage = (2).to_bytes(16, "big")
        assert all(stage in t.dropped for t in term.tablets.values()), "it may never be committed"
        again = await term.commit(3, JOB, user=ANN)
        assert (again.kind, again.at, owner(term)) == (Kind.TAKEN, first.at, "ann")
        assert (await term.commit(4, JOB, user=ROOT)).kind == Kind.TAKEN

    with_term(work)


def test_two_users_with_a_key_at_once_have_one_decision_and_one_denial():
    async def work(term):
        both = await asyncio.gather(term.commit(1, JOB, user=ANN), term.commit(2, JOB, user=BOB))
        assert sorted(o.kind for o in both) == [Kind.COMMITTED, Kind.DENIED]

    with_term(work)


def test_stream_keeps_its_owner_when_an_operator_or_a_new_query_goes_on_with_it():
    async def work(term):
        await term.commit(1, epoch(0), user=ANN)
        assert (await term.commit(2, epoch(1), user=BOB)).kind == Kind.DENIED
        assert (await term.commit(3, epoch(1), user=ROOT)).kind == Kind.COMMITTED
        assert owner(term, "s") == "ann"
        assert (await term.commit(4, epoch(0, "r", "q"), user=BOB)).kind == Kind.DENIED
        assert (await term.commit(5, epoch(0, "r", "q"), user=ANN)).kind == Kind.COMMITTED
        assert owner(term, "s") == "ann"
        assert (await term.commit(6, epoch(1, "r"), user=BOB)).kind == Kind.DENIED

    with_term(work)


def test_stream_without_an_owner_gets_one_with_its_next_epoch():
    async def work(term):
        await term.commit(1, epoch(0))
        assert owner(term, "s") == ""
        assert (await term.commit(2, epoch(0), user=BOB)).kind == Kind.TAKEN
        assert owner(term, "s") == "", "nothing took effect"
        assert (await term.commit(3, epoch(1), user=ANN)).kind == Kind.COMMITTED
        assert owner(term, "s") == "ann"
        assert (await term.commit(4, epoch(2), user=BOB)).kind == Kind.DENIED

    with_term(work)


def test_next_leader_knows_the_owner():
    async def work(term):
        await term.commit(1, JOB, user=ANN)
        term.memory.drop("another leader")
        successor = Term(term.loop, term.rows, term.catalog, 2)
        for tablet in successor.tablets.values():
            tablet.prepared[(1).to_bytes(16, "big")] = (1, 1, 1)
        successor.transactions.start()
        assert (await successor.commit(2, JOB, user=BOB)).kind == Kind.DENIED
        assert (await successor.commit(3, JOB, user=ANN)).kind == Kind.TAKEN
        successor.memory.drop("end")

    with_term(work)


def test_key_that_is_removed_for_its_age_is_free_for_every_user():
    async def work(term):
        done = await term.commit(1, JOB, user=ANN)
        term.catalog.decisions.publish(CatalogPlan(removed=((1).to_bytes(16, "big"),)))
        term.clock.merge(done.at + (2 * 86_400_000_000 << 12))
        await term.transactions.upkeep.remove_keys()
        assert owner(term) is None
        assert (await term.commit(2, JOB, user=BOB)).kind == Kind.COMMITTED
        assert owner(term) == "bob"

    with_term(work, options=Options(txn_prepare_timeout_ms=500, job_ledger_days=1))


async def removed(term, done):
    """Remove the decisions, so that the keys alone know of them."""
    named = tuple(term.catalog.decisions.rows)
    term.catalog.decisions.publish(
        CatalogPlan(removed=named, marks=cat.DecisionMarks(removed=done.at))
    )


def test_operator_gives_a_key_to_another_user_and_to_nobody():
    async def work(term):
        service, since = service_of(term), term.clock.now()
        first = await term.commit(1, epoch(0), user=ANN, since=since)
        last = await term.commit(2, epoch(1), user=ANN, since=since)
        await service.set_key_owner(txn.TxnKeyOwnerRequest(name="s", owner="bob"))
        assert (await term.commit(3, epoch(2), user=ANN)).kind == Kind.DENIED
        own = await term.commit(2, epoch(1), user=ANN, since=since)
        assert (own.kind, own.at) == (Kind.COMMITTED, last.at), "her own transaction"
        await removed(term, last)
        own = await term.commit(2, epoch(1), user=ANN, since=since)
        assert (own.kind, own.at) == (Kind.COMMITTED, last.at)
        old = await term.commit(1, epoch(0), user=ANN, since=since)
        assert first.at < last.at
        assert old.kind == Kind.UNKNOWN, "it was committed, which nothing says any more"
        assert (await term.commit(4, epoch(2), user=BOB)).kind == Kind.COMMITTED
        await service.set_key_owner(txn.TxnKeyOwnerRequest(name="s"))
        assert (await term.commit(5, epoch(3), user=ANN)).kind == Kind.COMMITTED
        assert owner(term, "s") == "ann"

    with_term(work)


def test_owner_is_set_between_a_commit_and_the_next_one_not_within_one():
    async def work(term):
        await term.commit(1, epoch(0), user=ANN)
        held = asyncio.Event()
        for tablet in term.tablets.values():
            tablet.held["Prepare"] = held
        commit = term.env.tasks.spawn(term.commit(2, epoch(1), user=ANN), "commit")
        await term.env.tasks.sleep_ms(50)
        change = term.env.tasks.spawn(term.transactions.key_owners.set_owner("s", "bob"), "owner")
        await term.env.tasks.sleep_ms(50)
        held.set()
        assert (await commit).kind == Kind.COMMITTED
        await change
        assert owner(term, "s") == "bob"
        assert parse_key(term.rows.rows[KIND_KEY, "s"]).key.epoch == 1

    with_term(work)


def test_wrong_owners_and_unknown_keys_are_refused():
    async def work(term):
        service = service_of(term)
        with pytest.raises(NotFound, match="no committed transaction has the key 'job'"):
            await service.set_key_owner(txn.TxnKeyOwnerRequest(name="job", owner="ann"))
        await term.commit(1, JOB, user=ANN)
        with pytest.raises(InvalidArgument, match="cannot be the name"):
            await service.set_key_owner(txn.TxnKeyOwnerRequest(name="job", owner="a b"))
        assert owner(term) == "ann"

    with_term(work)


def test_service_takes_the_user_from_the_certificate():
    async def work(term):
        service = service_of(term)
        ann, bob = principal("ann"), principal("bob")
        await calling(ann, service.commit(term.request(1, JOB)))
        denied = await calling(bob, service.commit(term.request(2, JOB)))
        assert (denied.kind, owner(term)) == (Kind.DENIED, "ann")
        asked = txn.TxnKeyRequest(name="job")
        for caller in (ann, principal("root", AccessRole.ADMIN)):
            assert (await calling(caller, service.key(asked))).owner == "ann"
        with pytest.raises(Forbidden, match="of another user") as refused:
            await calling(bob, service.key(asked))
        assert "ann" not in refused.value.message.replace("another", "")
        assert not (await calling(bob, service.key(txn.TxnKeyRequest(name="free")))).found

    with_term(work)


def test_cluster_without_certificates_has_keys_without_owners():
    async def work(term):
        service = service_of(term)
        await calling(None, service.commit(term.request(1, JOB)))
        assert owner(term) == ""
        again = await calling(None, service.commit(term.request(2, JOB)))
        assert again.kind == Kind.TAKEN

    with_term(work)
