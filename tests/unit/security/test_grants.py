"""Grants: who may use which table and columns, compared with a model; versions; what refusals contain."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nyala.common.errors import Forbidden, InvalidArgument, Unavailable
from nyala.security.principal import AccessRole
from nyala.security.tables.grants import (
    GRANTED_ROLES,
    Grant,
    Grants,
    TableRef,
    TableUse,
    granted_role,
)

READER, WRITER, OWNER = GRANTED_ROLES
COLUMNS = {1: "k", 2: "city", 3: "salary"}
TABLES = [TableRef(f"id-{n}", n, COLUMNS, frozenset({1})) for n in ("hr.staff", "hr.pay", "sales")]


def grant(user="ann", role=READER, table="", prefix="", columns=()):
    return Grant(f"{user}{role}{table}{prefix}", user, role, table, prefix, tuple(columns))


def known(*grants, version=1):
    made = Grants()
    made.replace(version, grants)
    made.fresh = True
    return made


def allowed(grants, user, use, table):
    try:
        grants.require(user, use, table)
    except Forbidden:
        return False
    return True


ONE = st.builds(
    grant,
    st.sampled_from(["ann", "bob"]),
    st.sampled_from(GRANTED_ROLES),
    st.sampled_from(["", *(t.id for t in TABLES)]),
    st.sampled_from(["", "hr.", "hr.p"]),
    st.frozensets(st.sampled_from(sorted(COLUMNS)), max_size=2).map(sorted),
)
USES = st.builds(
    TableUse,
    st.sampled_from(GRANTED_ROLES),
    st.none() | st.frozensets(st.sampled_from(sorted(COLUMNS))),
)


@pytest.mark.row("A23")
@given(
    st.lists(ONE, max_size=5), st.sampled_from(["ann", "bob", "eve"]), USES, st.sampled_from(TABLES)
)
def test_decisions_equal_the_model(grants, user, use, table):
    """Some grant of the role covers the table, and its columns, if it has any, cover those of the use."""
    cover = [
        g
        for g in grants
        if g.user == user
        and g.role.value >= use.role.value
        and (g.table_id == table.id or (not g.table_id and table.name[: len(g.prefix)] == g.prefix))
    ]
    readable = {c for g in cover for c in (g.columns or COLUMNS)}
    wanted = set(COLUMNS) if use.columns is None else set(use.columns)
    whole = any(not g.columns for g in cover)
    assert allowed(known(*grants), user, use, table) == (
        bool(cover) and (whole or wanted <= readable)
    )


def test_nothing_is_granted_by_default_and_no_table_is_told_apart_from_one_not_granted():
    said = set()
    for table in (TABLES[0], None):
        with pytest.raises(Forbidden) as caught:
            known(grant("bob", OWNER)).require("ann", TableUse(READER), table)
        said.add(str(caught.value))
    assert len(said) == 1
    assert "staff" not in said.pop()


def test_refusal_names_the_table_that_the_caller_sees_and_the_columns_that_are_missing():
    some = known(grant(table=TABLES[1].id, columns=[1, 2]))
    with pytest.raises(Forbidden, match=r"role writer on 'hr\.pay'"):
        some.require("ann", TableUse(WRITER), TABLES[1])
    with pytest.raises(Forbidden, match=r"columns of table 'hr\.pay': salary; name the columns"):
        some.require("ann", TableUse(READER, frozenset({2, 3})), TABLES[1])
    some.require("ann", TableUse(READER, frozenset({1, 2})), TABLES[1])
    with pytest.raises(Forbidden, match="names that begin as 'new' does"):
        some.require("ann", TableUse(OWNER), TableRef("", "new"))


def test_filter_on_a_hidden_column_is_a_read_of_it():
    """Abuse case 25: the columns of a use are those of its conditions too; see test_tables_of.py."""
    some = known(grant(table=TABLES[0].id, columns=[1]))
    assert not allowed(some, "ann", TableUse(READER, frozenset({1, 3})), TABLES[0])


def test_older_version_changes_nothing():
    """Abuse case 24: a master that is behind does not bring back what was revoked."""
    grants = known(grant(role=OWNER), version=7)
    grants.replace(8, [])
    grants.replace(7, [grant(role=OWNER)])
    assert (grants.version, len(grants)) == (8, 0)
    assert not allowed(grants, "ann", TableUse(READER), TABLES[0])


def test_grants_that_are_not_fresh_allow_nothing_and_say_why():
    stale = known(grant(role=OWNER))
    stale.fresh = False
    for ask in (
        lambda: stale.require("ann", TableUse(READER), TABLES[0]),
        lambda: stale.is_visible("ann", TABLES[0]),
    ):
        with pytest.raises(Unavailable, match="does not know the grants of users at present"):
            ask()


def test_visible_are_tables_with_any_grant():
    some = known(grant(prefix="hr."), grant("bob", table=TABLES[2].id, columns=[1]))
    assert [some.is_visible("ann", t) for t in TABLES] == [True, True, False]
    assert [some.is_visible("bob", t) for t in TABLES] == [False, False, True]


def test_roles_that_can_be_granted():
    assert [granted_role(r.name.lower()) for r in GRANTED_ROLES] == list(GRANTED_ROLES)
    for bad in ("admin", "user", "server", ""):
        with pytest.raises(InvalidArgument, match="reader, writer, owner"):
            granted_role(bad)


def test_order_of_grants_does_not_matter():
    grants = [grant(columns=[1], table=TABLES[0].id), grant(columns=[2], prefix="hr.")]
    random.Random(1).shuffle(grants)
    for order in (grants, grants[::-1]):
        assert allowed(known(*order), "ann", TableUse(READER, frozenset({1, 2})), TABLES[0])
        assert not allowed(known(*order), "ann", TableUse(AccessRole.WRITER), TABLES[0])
