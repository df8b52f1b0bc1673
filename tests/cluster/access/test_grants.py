"""Grants on real servers: users of the role user read, write and define what is granted, and no more."""

import pickle
from pathlib import Path

import pyarrow as pa
import pyarrow.flight as fl
import pytest

import nyala
from nyala.client.results import PartlyWritten
from nyala.common.errors import Forbidden, Unauthenticated
from nyala.operate import run
from nyala.security import issue
from nyala.security.principal import AccessRole
from nyala.testing import MiniCluster
from nyala.wire import methods
from nyala.wire.proto import access_pb2 as pb
from nyala.wire.proto import nyala_pb2 as npb
from tests.cluster.support.ksck import wait_equal
from tests.waiting import wait_until

pytestmark = pytest.mark.full

SCHEMA = pa.schema(
    [pa.field("k", pa.int64(), nullable=False), ("city", pa.string()), ("salary", pa.int64())]
)
ROWS = [{"k": k, "city": f"c{k % 3}", "salary": k * 100} for k in range(300)]
MISSING = "no grant on these columns of table 'staff': salary"


@pytest.fixture(scope="module")
def secured():
    with MiniCluster(secure=True) as made:
        with as_admin(made) as admin:
            for name in ("staff", "other"):
                table = admin.create_table(
                    name, SCHEMA, primary_key=["k"],
                    partition=nyala.Partition(hash=[nyala.Hash(["k"], 2)]), replicas=3,
                )  # fmt: skip
                table.upsert(ROWS)
            admin.create_journal("events")
        yield made


def as_admin(cluster):
    """Return a client of the administrator: by itself, a process uses the files that it was given last."""
    certs = f"{cluster.dir}/certs"
    return nyala.connect(
        cluster.masters, ca=f"{certs}/ca.crt", cert=f"{certs}/admin.crt", key=f"{certs}/admin.key"
    )


def connected(cluster, user):
    files = issue.user(f"{cluster.dir}/certs", f"{cluster.dir}/{user}", user, AccessRole.USER)
    return nyala.connect(cluster.masters, ca=files.ca, cert=files.cert, key=files.key)


def ask(method, request, cluster):
    """Return the answer of the leader master to the user whose client was made last."""
    return run.ask_leader(cluster.masters, method, request)


def grant(cluster, user, role, **on):
    with as_admin(cluster):
        ask(methods.GRANT, pb.GrantRequest(user=user, role=role, **on), cluster)


def revoke(cluster, user, **on):
    with as_admin(cluster):
        ask(methods.REVOKE_GRANT, pb.RevokeGrantRequest(user=user, **on), cluster)


def in_force(step):
    """Run a step until it is allowed: grants reach every server within two seconds."""

    def good():
        try:
            step()
        except Forbidden:
            return False
        return True

    wait_until(good, "the grant is in force")


def refused(step, why=None):
    with pytest.raises(Forbidden, match=why):
        step()


@pytest.mark.row("A23")
def test_user_without_grants_sees_and_does_nothing(secured):
    with connected(secured, "eve") as eve:
        assert (eve.tables(), eve.journals()) == ([], [])
        for name in ("staff", "missing"):
            refused(lambda name=name: eve.table(name), "on this table, if there is one")
        refused(lambda: eve.create_table("mine", SCHEMA, primary_key=["k"]), "names that begin as")
        refused(lambda: eve.drop_table("staff"))
        refused(lambda: eve.journal("events"))
        refused(lambda: eve.sql("select * from staff"))


def test_columns_hold_for_each_way_to_read(secured):
    """Abuse cases 9, 25: the hidden column in projections, conditions, changes, SQL, tokens, and Flight."""
    with as_admin(secured) as admin, connected(secured, "ann") as ann:
        whole = admin.table("staff")
        grant(secured, "ann", "reader", table="staff", columns=["k", "city"])
        in_force(lambda: ann.table("staff").scan(["k"]).to_arrow())
        table, since = ann.table("staff"), ann.now()
        assert table.scan(["k", "city"], where="city = 'c1'", order=True).to_arrow().num_rows == 100
        assert (table.count(), table.scan(where="city = 'c1'").count()) == (300, 100)
        assert table.get({"k": 3}, columns=["city"]) == {"city": "c0"}
        assert ann.sql("select city, count(*) c from staff group by city").num_rows == 3
        whole.upsert([{"k": 1, "city": "c1", "salary": 1}])
        assert table.changes(since=since, columns=["city"]).to_arrow().num_rows == 1
        tokens = whole.scan(["k", "salary"]).tokens()
        for step in (
            lambda: table.scan().to_arrow(),
            lambda: table.scan(["salary"]).to_arrow(),
            lambda: table.scan(["k"], where="salary > 5").to_arrow(),
            lambda: table.scan(where="salary > 5").count(),
            lambda: table.get({"k": 3}),
            lambda: table.get({"k": 3}, columns=["salary"]),
            lambda: table.changes(since=since).to_arrow(),
            lambda: ann.sql("select max(salary) from staff"),
            lambda: ann.sql("select k from staff where salary > 5"),
        ):
            refused(step, MISSING)
        with connected(secured, "ann"):  # a token is no way around: it is checked for its caller
            refused(pickle.loads(pickle.dumps(tokens[0])).to_arrow_batches, MISSING)
        files = issue.user(f"{secured.dir}/certs", f"{secured.dir}/ann2", "ann", AccessRole.USER)
        ca, cert, key = (Path(p).read_bytes() for p in (files.ca, files.cert, files.key))
        address = pickle.loads(pickle.dumps(tokens[0])).replicas[0]
        with (
            fl.connect(
                f"grpc+tls://{address}", tls_root_certs=ca, cert_chain=cert, private_key=key
            ) as plain,
            pytest.raises(fl.FlightUnauthorizedError, match="salary"),
        ):
            plain.do_get(fl.Ticket(bytes(tokens[0]))).read_all()
        for step in (
            lambda: table.upsert([ROWS[0]]),
            lambda: table.delete_where("k = 1"),
            lambda: ann.drop_table("staff"),
            lambda: ann.table("other"),
        ):
            refused(step)
        assert whole.count() == 300


def test_writers_write_in_transactions_too_and_not_beside_their_tables(secured):
    with as_admin(secured) as admin, connected(secured, "bob") as bob:
        grant(secured, "bob", "writer", table="staff")
        in_force(lambda: bob.table("staff").upsert([{"k": 1000, "city": "x", "salary": 1}]))
        staff = bob.table("staff")
        with bob.transaction() as txn:
            staff.upsert([{"k": 1001, "city": "y", "salary": 2}], txn=txn)
            staff.delete_where("k = 1000", txn=txn)
        assert staff.get({"k": 1000}) is None
        assert staff.delete_where("k >= 1000")
        assert staff.count() == 300
        refused(lambda: bob.table("other"))
        refused(lambda: bob.drop_table("staff"), "role owner on 'staff'")  # abuse case 21
        grant(secured, "bob", "reader", table="other")
        in_force(lambda: bob.table("other").count())
        other = bob.table("other")

        def both():
            with bob.transaction() as txn:
                staff.upsert([{"k": 2000, "city": "z", "salary": 3}], txn=txn)
                other.upsert([{"k": 2000, "city": "z", "salary": 3}], txn=txn)

        refused(both, "role writer on 'other'")
        assert (staff.get({"k": 2000}), admin.table("other").count()) == (None, 300)


def test_owners_of_a_prefix_create_alter_and_drop_and_grant_on_their_tables(secured):
    with connected(secured, "cy") as cy, connected(secured, "dan") as dan:
        grant(secured, "cy", "owner", prefix="cy.")
        in_force(lambda: cy.create_table("cy.t", SCHEMA, primary_key=["k"]))
        table = cy.table("cy.t")
        table.upsert(ROWS[:5])
        table.alter().add_column("note", pa.string()).commit()
        refused(lambda: cy.create_table("not.cy", SCHEMA, primary_key=["k"]))
        with connected(secured, "cy"):
            wanted = pb.GrantRequest(user="dan", role="reader", table="cy.t")
            ask(methods.GRANT, wanted, secured)
        for on in ({"table": "staff"}, {"all": True}, {"prefix": "cy."}):
            wanted = pb.GrantRequest(user="dan", role="reader", **on)
            refused(lambda wanted=wanted: ask(methods.GRANT, wanted, secured), "may grant only on")
        in_force(lambda: dan.table("cy.t").count())
        assert dan.tables() == ["cy.t"]
        cy.create_journal("cy.log")
        cy.journal("cy.log")
        cy.drop_table("cy.t")
        assert dan.tables() == []


def test_user_logs_in_with_a_password_and_may_what_is_granted(secured):
    password = "correct horse battery"
    with as_admin(secured):
        ask(
            methods.ADD_USER, pb.AddUserRequest(name="gil", role="user", password=password), secured
        )
    grant(secured, "gil", "reader", table="staff", columns=["k"])
    ca = f"{secured.dir}/certs/ca.crt"
    with pytest.raises(Unauthenticated, match="password"):
        nyala.connect(secured.masters, user="gil", password="wrong horse battery", ca=ca)
    with nyala.connect(secured.masters, user="gil", password=password, ca=ca) as gil:
        in_force(lambda: gil.table("staff").scan(["k"]).to_arrow())
        refused(lambda: gil.table("staff").scan(["k", "salary"]).to_arrow(), MISSING)
        with as_admin(secured):
            ask(methods.REMOVE_USER, pb.RemoveUserRequest(name="gil"), secured)
        table = gil.table

        def ended():
            try:
                table("staff").count()
            except (Unauthenticated, Forbidden):
                return True
            return False

        wait_until(ended, "the certificate of the removed user is refused")
    with as_admin(secured):
        left = ask(methods.LIST_GRANTS, pb.ListGrantsRequest(user="gil"), secured)
    assert not left.grants


def test_revoked_grants_end_within_seconds_and_stay_revoked_under_the_next_leader(secured):
    """Abuse case 24."""
    with connected(secured, "fay") as fay:
        grant(secured, "fay", "reader", all=True)
        in_force(lambda: fay.table("staff").count())
        revoke(secured, "fay", all=True)
        table = fay.table

        def ended():
            try:
                table("staff").count()
            except Forbidden:
                return True
            return False

        wait_until(ended, "the grant is revoked")
        listed = ask(methods.LIST_SERVERS, npb.ListServersRequest(), secured).servers
        address = next(m.address for m in listed if m.leader)
        leader = f"master-{secured.masters.split(',').index(address)}"
        secured.kill(leader)
        try:  # a server that has not asked since the change does so when there is a leader
            wait_until(ended, "the next leader refuses it")
            for _ in range(5):
                with pytest.raises(Forbidden):
                    fay.table("staff").count()
        finally:
            secured.start(leader)


def test_transaction_whose_user_loses_the_grant_before_the_commit_has_no_effect(secured):
    own = [{"k": k, "city": "g", "salary": 1} for k in range(1_000, 1_100)]
    with connected(secured, "gus") as gus:
        grant(secured, "gus", "writer", table="other")
        in_force(lambda: gus.table("other").upsert(ROWS[:1]))
        table, open_, ended = gus.table("other"), gus.transaction(), gus.transaction()
        parts = [t.part("0") for t in (open_, ended)]
        for part in parts:
            table.upsert(own, txn=part)
        revoke(secured, "gus", table="other")

        def revoked():
            """Return whether no server takes rows any more, and the leader master shows no table."""
            try:
                table.upsert(ROWS)
            except PartlyWritten:
                return False
            except Forbidden:
                return "other" not in gus.tables()
            return False

        wait_until(revoked, "the grant is revoked at every server")
        refused(lambda: table.upsert(own, txn=parts[0]), "needs a grant of the role writer")
        refused(ended.commit, "needs a grant of the role writer")
    with as_admin(secured) as admin:
        assert admin.table("other").scan(where="k >= 1000").count() == 0


def test_replicas_stay_equal_while_grants_change(secured):
    """Abuse case 29: who may read changes nothing in what is stored."""
    with as_admin(secured) as admin:
        table = admin.table("staff")
        for number in range(10):
            grant(secured, f"u{number}", "writer", table="staff")
            table.upsert([{"k": 5000 + number, "city": "w", "salary": number}])
            revoke(secured, f"u{number}", table="staff")
    with as_admin(secured):  # wait_equal uses its files
        wait_equal(secured)
