"""Grants at the masters: who may grant, what every leader keeps, and its version, which never goes back."""

import pytest

from nyala.common.errors import Forbidden, InvalidArgument, NotFound
from nyala.master.access import grants, users
from nyala.master.catalog.catalog import Catalog
from nyala.security.identity import CALLER, PeerIdentity
from nyala.security.principal import AccessRole, Principal
from nyala.wire import methods
from nyala.wire.proto import access_pb2 as pb
from nyala.wire.proto import catalog_pb2 as cat
from nyala.wire.proto import nyala_pb2
from nyala.wire.tls.tables_of import How
from tests.unit.master.support.master_cluster import others, with_masters

ADMIN, OWNER, USER = AccessRole.ADMIN, AccessRole.OWNER, AccessRole.USER


def be(name, role):
    CALLER.set(PeerIdentity(Principal("a" * 32, role, name), 1, 0, 1 << 40))


class Cluster:
    """Masters with a table `staff`; calls as a caller of a port, to the handlers of the leader."""

    def __init__(self, masters):
        self.masters = masters
        self.leader = ""

    async def start(self):
        self.masters.start()
        self.leader = await self.masters.leader()
        be("root", ADMIN)
        await self.create("staff")

    async def create(self, name):
        await self.masters.heartbeat("ts-a", "ts-b", "ts-c")
        await self.masters.create(self.leader, name)

    async def call(self, method, request):
        return await self.masters.master(self.leader).handlers()[method](request)

    async def grant(self, user, role, **fields):
        return (
            await self.call(methods.GRANT, pb.GrantRequest(user=user, role=role, **fields))
        ).grant

    async def rules(self, version=0, *, none=True):
        return await self.call(
            methods.ACCESS_RULES, pb.AccessRulesRequest(version=version, none=none)
        )


def with_table(work):
    async def run(masters):
        cluster = Cluster(masters)
        await cluster.start()
        await work(cluster)

    with_masters(run)


@pytest.mark.row("A23")
def test_grants_and_their_version_are_kept_by_the_next_leader():
    async def work(c):
        assert (await c.rules()).version == 0
        made = await c.grant("ann", "reader", table="staff")
        assert (made.user, made.role, made.table, made.granted_by) == (
            "ann",
            "reader",
            "staff",
            "root",
        )
        await c.grant("bob", "owner", prefix="hr.")
        first = await c.rules()
        assert (first.version, first.changed, len(first.grants)) == (2, True, 2)
        same = await c.rules(2, none=False)
        assert (same.version, same.changed, len(same.grants)) == (2, False, 0)
        c.masters.processes[c.leader].kill()
        c.leader = await c.masters.leader(others(c.leader))
        again = await c.rules()
        assert sorted(g.user for g in again.grants) == ["ann", "bob"]
        await c.call(methods.REVOKE_GRANT, pb.RevokeGrantRequest(user="bob", prefix="hr."))
        last = await c.rules(2, none=False)
        assert (last.version, last.changed, [g.user for g in last.grants]) == (3, True, ["ann"])

    with_table(work)


def test_the_same_grant_again_changes_nothing_and_columns_are_added_and_removed():
    async def work(c):
        columns = list(c.masters.master(c.leader).find_table(How.NAME, "staff").columns.values())
        one, two = columns[0], columns[1]
        assert list((await c.grant("ann", "reader", table="staff", columns=[one])).columns) == [one]
        both = await c.grant("ann", "reader", table="staff", columns=[two])
        assert sorted(both.columns) == sorted([one, two])
        version = (await c.rules()).version
        await c.grant("ann", "reader", table="staff", columns=[one, two])
        assert (await c.rules()).version == version
        less = pb.RevokeGrantRequest(user="ann", table="staff", columns=[one])
        left = (await c.call(methods.REVOKE_GRANT, less)).left
        assert [list(g.columns) for g in left] == [[two]]
        whole = await c.grant("ann", "reader", table="staff")
        assert not whole.columns
        await c.grant("ann", "reader", table="staff", columns=[one])  # less than there is
        assert not (await c.rules()).grants[0].columns
        with pytest.raises(InvalidArgument, match="no single column can be revoked"):
            await c.call(methods.REVOKE_GRANT, less)

    with_table(work)


@pytest.mark.parametrize(
    ("fields", "error", "why"),
    [
        ({"role": "admin", "table": "staff"}, InvalidArgument, "cannot be granted on tables"),
        ({"user": "a b", "table": "staff"}, InvalidArgument, "name in a certificate"),
        ({}, InvalidArgument, "name one object"),
        ({"table": "staff", "prefix": "s"}, InvalidArgument, "name one object"),
        ({"prefix": "s", "columns": ["k"]}, InvalidArgument, "columns belong to one table"),
        (
            {"role": "writer", "table": "staff", "columns": ["k"]},
            InvalidArgument,
            "for reading only",
        ),
        ({"table": "stuff"}, NotFound, "no table 'stuff'"),
        ({"table": "staff", "columns": ["salry"]}, NotFound, "no column 'salry'"),
    ],
)
def test_wrong_grant_is_refused_with_what_to_do(fields, error, why):
    async def work(c):
        with pytest.raises(error, match=why):
            await c.grant(**{"user": "ann", "role": "reader", **fields})

    with_table(work)


def test_owners_grant_on_their_tables_only_and_nobody_else_grants():
    async def work(c):
        await c.grant("ann", "owner", table="staff")
        await c.grant("bob", "writer", table="staff")
        await c.create("other")
        be("ann", USER)
        assert (await c.grant("cy", "reader", table="staff")).granted_by == "ann"
        for fields in ({"table": "other"}, {"prefix": "s"}, {"all": True}, {"table": "missing"}):
            with pytest.raises(Forbidden, match="may grant only on tables"):
                await c.grant("cy", "reader", **fields)
        mine = await c.call(methods.LIST_GRANTS, pb.ListGrantsRequest())
        assert [g.user for g in mine.grants] == ["ann", "bob", "cy"]
        for name in ("bob", "eve"):
            be(name, USER)
            with pytest.raises(Forbidden):
                await c.grant("eve", "reader", table="staff")
        seen = await c.call(methods.LIST_GRANTS, pb.ListGrantsRequest())
        assert not seen.grants
        CALLER.set(None)
        with pytest.raises(Forbidden, match="has no certificates"):
            await c.grant("eve", "reader", table="staff")

    with_table(work)


def test_grant_stays_with_a_renamed_table_and_ends_with_a_dropped_one():
    """A table that is made later under the same name is another one, and no grant of the old one holds."""

    async def work(c):
        made = await c.grant("ann", "reader", table="staff")
        rename = nyala_pb2.AlterTableRequest(
            name="staff", steps=[nyala_pb2.AlterStep(rename_table="people")]
        )
        await c.masters.ask(c.leader, methods.ALTER_TABLE, rename)
        found = c.masters.master(c.leader).find_table(How.NAME, "people")
        assert found.id == made.table_id
        await c.masters.ask(c.leader, methods.DROP_TABLE, nyala_pb2.DropTableRequest(name="people"))
        await c.create("people")
        assert c.masters.master(c.leader).find_table(How.NAME, "people").id != made.table_id
        await c.grant("bob", "reader", all=True)
        assert [g.user for g in (await c.rules()).grants] == ["bob"]

    with_table(work)


def test_tables_are_found_as_requests_name_them():
    async def work(c):
        master = c.masters.master(c.leader)
        table = master.find_table(How.NAME, "staff")
        assert master.find_table(How.ID, table.id) == table
        wanted = nyala_pb2.TabletLocationsRequest(table_id=table.id)
        places = await c.masters.ask(c.leader, methods.TABLET_LOCATIONS, wanted)
        assert master.find_table(How.TABLET, places.tablets[0].id) == table
        assert table.keys < set(table.columns)
        new = master.find_table(How.NEW, "staff")
        assert (new.id, new.name) == ("", "staff")
        for how in (How.NAME, How.ID, How.TABLET):
            assert master.find_table(how, "") is None

    with_table(work)


def test_grants_end_with_the_account_of_their_user():
    """A later user of the name begins without them; grants of others stay."""
    catalog = Catalog()
    catalog.access.users["ann"] = cat.UserRecord(id="ann", role="user")

    def put(operation):
        catalog.publish(catalog.draft(operation.plan(catalog)))

    for user in ("ann", "bob"):
        put(grants.grant(pb.GrantRequest(user=user, role="reader", prefix="a"), 1, "r"))
    version = catalog.access.rules_version
    put(users.remove("ann", lambda: 5, "root"))
    assert [g.user for g in catalog.access.grants.values()] == ["bob"]
    assert (catalog.access.rules_version, catalog.access.users) == (version + 1, {})


def test_too_many_grants_are_refused(monkeypatch):
    monkeypatch.setattr(grants, "MAX_GRANTS", 1)
    catalog = Catalog()
    made = grants.grant(pb.GrantRequest(user="ann", role="reader", prefix="a"), 1, "r")
    catalog.publish(catalog.draft(made.plan(catalog)))
    with pytest.raises(Forbidden, match="the most that there may be"):
        grants.grant(pb.GrantRequest(user="bob", role="reader", prefix="a"), 1, "r").plan(catalog)
