"""The catalog that is rebuilt from answers of tablet servers: versions, configurations, ranges, losses."""

from random import Random

import pytest

from nyala.common.hybrid_time import from_micros
from nyala.common.ids import OpId
from nyala.common.partitioning.partition import EVERYTHING
from nyala.common.schema import Schema
from nyala.master.catalog.catalog import Catalog
from nyala.master.catalog.records.tables import TableState, TabletState
from nyala.master.rebuild.tables import COLUMN_GAP, VERSION_GAP
from nyala.wire import convert
from nyala.wire.proto import catalog_pb2 as cat
from tests.unit.master.rebuild.evidence import (
    HIGH,
    LOW,
    NOW,
    NOW_US,
    OTHER,
    RENAMED,
    SCHEMA,
    T,
    answer,
    everywhere,
    rebuilt,
    replica,
    table_of,
    tablet,
    uuid,
)

TXN = bytes(range(16))


def clean(made):
    found = made.findings
    notes = [note for note in found.notes if "only the masters had" not in note]
    assert (found.refused, found.losses, notes) == ([], [], [])
    return loaded(made)


def loaded(made):
    """Return the catalog that a leader master reads from the rows of a plan."""
    rows = Catalog().draft(made.catalog).rows
    catalog = Catalog()
    catalog.load(rows)
    return catalog


def refusal(made):
    (text,) = made.findings.refused
    return text


def loss(made):
    assert not made.findings.refused
    (text,) = made.findings.losses
    return text


@pytest.mark.row("A21")
def test_catalog_has_tables_and_tablets_as_they_are():
    catalog = clean(rebuilt(everywhere(*table_of())))
    table = catalog.named("t")
    assert (table.id, table.state, table.spec.replicas) == (T, TableState.ALTERING, 3)
    assert convert.partition_schema_from_proto(table.spec.partition).ranges == (LOW, HIGH)
    tablets = catalog.tablets_of(T)
    assert sorted(t.id for t in tablets) == [tablet(n) for n in (1, 2, 3, 4)]
    assert {t.state for t in tablets} == {TabletState.RUNNING}
    assert {t.config_id for t in tablets} == {OpId(1, 1)}
    assert {t.consensus.leader for t in tablets} == {uuid(1)}
    assert catalog.cluster.cluster_id == "c"


@pytest.mark.row("A21")
def test_numbers_of_the_lost_catalog_are_not_used_again():
    made = rebuilt(everywhere(*table_of(schema=RENAMED)))
    catalog = clean(made)
    schema = catalog.named("t").spec.schema
    assert schema.version == RENAMED.version + VERSION_GAP
    assert schema.next_column_id == RENAMED.next_column_id + COLUMN_GAP
    assert catalog.named("t").spec.ranges_version == schema.version
    assert catalog.access.rules_version >= NOW_US
    assert catalog.cluster.created_us >= NOW_US
    assert (catalog.decisions.marks.removed, catalog.decisions.marks.settled) == (NOW, 0)
    again = rebuilt(everywhere(*table_of()), rng=Random(6))
    assert loaded(again).cluster.catalog_incarnation != catalog.cluster.catalog_incarnation


@pytest.mark.row("A21")
def test_time_is_above_that_of_every_server():
    late = from_micros(NOW_US + 3_000_000)
    answers = [answer(1, *table_of()), answer(2, *table_of(), time=late), answer(3, *table_of())]
    made = rebuilt(answers)
    assert made.time == late
    assert clean(made).cluster.created_us > NOW_US + 3_000_000
    assert "3.0 s ahead of this machine's clock" in refusal(rebuilt(answers, ahead_us=1_000_000))


@pytest.mark.row("A21")
def test_highest_version_of_the_schema_counts_and_the_others_follow():
    lagging = table_of()
    ahead = table_of(schema=RENAMED, columns_from=NOW - 500, index=20)
    catalog = clean(rebuilt([answer(1, *ahead[:2], *lagging[2:]), *everywhere(*lagging)[1:]]))
    table = catalog.named("t")
    assert [c.name for c in table.spec.schema.columns] == ["k", "w"]
    assert table.record.fully_applied_schema.version == SCHEMA.version
    assert table.record.past_from == NOW - 500
    assert catalog.altering() == [table]


def test_columns_of_a_time_that_no_replica_knows_are_not_guessed():
    old = table_of(schema=RENAMED)
    old[3].definition.columns_unknown = True
    assert clean(rebuilt(everywhere(*old))).named("t").record.past_from == NOW


@pytest.mark.row("A21")
def test_configuration_with_the_highest_op_id_counts_and_the_leader_of_the_highest_term():
    one = replica(1, (0, LOW), servers=(1, 2, 3), at=(1, 1), term=9, leader=None)
    two = replica(1, (0, LOW), servers=(1, 2, 4), at=(2, 8), term=7, leader=4)
    three = replica(1, (0, LOW), servers=(1, 2, 4), at=(2, 8), term=8, leader=2)
    rest = table_of()[1:]
    answers = [answer(1, one, *rest), answer(2, two, *rest), answer(3, *rest), answer(4, three)]
    found = clean(rebuilt(answers)).tablet(tablet(1))
    assert found.config_id == OpId(2, 8)
    assert set(found.members) == {uuid(1), uuid(2), uuid(4)}
    assert (found.consensus.leader, found.consensus.term) == (uuid(2), 8)


@pytest.mark.row("A21")
def test_no_member_is_ordered_to_create_a_replica_that_it_has_lost():
    first = table_of(at=None)
    catalog = loaded(rebuilt([answer(1, *first), answer(2, *first), answer(3)]))
    assert catalog.awaited() == []


def test_server_that_is_not_asked_is_a_loss_and_the_tablet_keeps_it_as_a_member():
    made = rebuilt([answer(1, *table_of()), answer(2, *table_of())])
    assert len(made.findings.losses) == 4
    assert f"{uuid(3)} at s3:1" in made.findings.losses[0]
    assert uuid(3) in loaded(made).tablet(tablet(1)).members


@pytest.mark.row("A21")
def test_missing_tablet_of_a_range_is_made_again_empty():
    made = rebuilt(everywhere(*table_of()[:3]))
    assert "lacks 1 of its tablets" in loss(made)
    catalog = loaded(made)
    (new,) = [t for t in catalog.tablets_of(T) if t.id not in map(tablet, range(5))]
    assert new.state is TabletState.CREATING
    assert convert.partition_from_proto(new.record.partition).buckets == (1,)
    assert len(new.awaited) == 3
    assert catalog.named("t").definition(new.record.first_schema_version) is not None


def test_range_without_any_tablet_is_not_a_range_of_the_table():
    catalog = clean(rebuilt(everywhere(*table_of()[:2])))
    assert convert.partition_schema_from_proto(catalog.named("t").spec.partition).ranges == (LOW,)


@pytest.mark.row("A21")
def test_dropped_range_is_kept_for_its_history():
    retired = [
        replica(n, (b, LOW), retired_at=NOW - 9 + b, ranges=((3, NOW - 9 + b),))
        for n, b in ((1, 0), (2, 1))
    ]
    live = [replica(n, (b, HIGH), ranges=((3, NOW - 7),)) for n, b in ((3, 0), (4, 1))]
    catalog = clean(rebuilt(everywhere(*retired, *live)))
    assert {t.id: t.record.dropped_at for t in catalog.dropped_of(T)} == {
        tablet(1): NOW - 9, tablet(2): NOW - 8,
    }  # fmt: skip
    assert convert.partition_schema_from_proto(catalog.named("t").spec.partition).ranges == (HIGH,)
    assert catalog.named("t").record.history_from == NOW - from_micros(1_000_000_000)


def test_drop_of_a_range_that_was_under_way_is_completed():
    retired = replica(1, (0, LOW), retired_at=NOW - 9, ranges=((3, NOW - 9),))
    behind = replica(2, (1, LOW))
    live = [replica(n, (b, HIGH), ranges=((3, NOW - 7),)) for n, b in ((3, 0), (4, 1))]
    made = rebuilt(everywhere(retired, behind, *live))
    assert (made.findings.refused, made.findings.losses) == ([], [])
    assert "was being dropped" in made.findings.notes[0]
    dropped = {t.id: t.record.dropped_at for t in loaded(made).dropped_of(T)}
    assert dropped == {tablet(1): NOW - 9, tablet(2): 0}


def test_range_that_was_added_again_in_the_place_of_a_dropped_one_is_kept():
    retired = [
        replica(n, (b, LOW), retired_at=NOW - 9, ranges=((3, NOW - 9),))
        for n, b in ((1, 0), (2, 1))
    ]
    again = [replica(n, (b, LOW), ranges=((4, 0),)) for n, b in ((5, 0), (6, 1))]
    live = [replica(n, (b, HIGH), ranges=((3, NOW - 7), (4, NOW - 5))) for n, b in ((3, 0), (4, 1))]
    catalog = clean(rebuilt(everywhere(*retired, *again, *live)))
    assert sorted(t.id for t in catalog.current_of(T)) == [tablet(n) for n in (3, 4, 5, 6)]
    assert sorted(t.id for t in catalog.dropped_of(T)) == [tablet(1), tablet(2)]


@pytest.mark.row("A21")
def test_two_tablets_of_the_same_keys_are_refused_until_one_is_left_out():
    answers = everywhere(*table_of(), replica(9, (1, HIGH), rows=77))
    text = refusal(rebuilt(answers))
    assert tablet(9) in text
    assert tablet(4) in text
    assert "77 rows" in text
    catalog = clean(rebuilt(answers, without=frozenset([tablet(9)])))
    assert catalog.tablet(tablet(9)) is None


@pytest.mark.row("A21")
def test_two_tables_of_one_name_are_refused_until_one_is_left_out_or_renamed():
    others = [replica(10 + n, (n % 2, LOW), table=OTHER) for n in (0, 1)]
    answers = everywhere(*table_of(), *others)
    assert "named 't'" in refusal(rebuilt(answers))
    assert [t.name for t in clean(rebuilt(answers, without=frozenset([OTHER]))).tables()] == ["t"]
    both = clean(rebuilt(answers, names={OTHER: "t2"})).tables()
    assert [(t.id, t.name) for t in both] == [(T, "t"), (OTHER, "t2")]
    strange = rebuilt(answers, without=frozenset([OTHER, "f" * 32]))
    assert "with the id " + "f" * 32 in refusal(strange)
    assert "a name is 1 to 256 bytes" in refusal(rebuilt(answers, names={OTHER: "x" * 300}))


def test_servers_of_two_clusters_are_refused():
    answers = [answer(1, *table_of()), answer(2, *table_of(), cluster="d"), answer(3, *table_of())]
    assert "s1:1, s3:1: c; s2:1: d" in refusal(rebuilt(answers))
    assert "none yet" in refusal(rebuilt([answer(1, cluster="")]))


def test_replicas_that_differ_where_none_can_are_refused():
    other = replica(1, (0, LOW), name="other")
    answers = [answer(1, *table_of()), answer(2, other, *table_of()[1:]), answer(3, *table_of())]
    assert "their logs have diverged" in rebuilt(answers).findings.refused[0]
    rewritten = replica(1, (0, LOW), servers=(1, 2, 9))
    answers = [
        answer(1, *table_of()),
        answer(2, rewritten, *table_of()[1:]),
        answer(3, *table_of()),
    ]
    assert "different configurations of 1.1" in rebuilt(answers).findings.refused[0]
    versions = [*table_of()[:3], replica(4, (1, HIGH), name="other")]
    assert (
        "different definitions of version 0" in rebuilt(everywhere(*versions)).findings.refused[0]
    )


def test_server_that_opens_replicas_is_waited_for():
    opening = replica(1, (0, LOW), state="BOOTSTRAPPING")
    answers = [answer(1, opening, *table_of()[1:]), *everywhere(*table_of())[1:]]
    assert "still opens 1 of its replicas" in refusal(rebuilt(answers))


def test_tablet_whose_replicas_all_failed_is_named():
    failed = replica(1, (0, LOW), state="FAILED", error="the log is gone")
    made = rebuilt(everywhere(failed, *table_of()[1:]))
    assert "the log is gone" in made.findings.losses[0]
    assert "lacks 1 of its tablets" in made.findings.losses[1]
    tombstone = replica(1, (0, LOW), state="TOMBSTONED")
    assert "lacks 1 of its tablets" in loss(rebuilt(everywhere(tombstone, *table_of()[1:])))


def test_tablet_without_a_working_majority_is_noted():
    failed = replica(1, (0, LOW), state="FAILED")
    answers = [answer(1, *table_of()), *[answer(n, failed, *table_of()[1:]) for n in (2, 3)]]
    made = rebuilt(answers)
    assert (made.findings.refused, made.findings.losses) == ([], [])
    assert "1 of 3 voters that work" in made.findings.notes[0]


def test_journal_is_rebuilt_with_its_limit():
    status = replica(1, (None, EVERYTHING), kind=1, name="j", schema=Schema((), (), 2, 0))
    status.definition.spec.options["journal_bytes"] = "1000"
    catalog = clean(rebuilt(everywhere(status)))
    journal = catalog.named("j")
    assert (journal.kind.name, dict(journal.spec.options)) == ("journal", {"journal_bytes": "1000"})
    assert journal.version == 2 + VERSION_GAP
    assert not journal.spec.HasField("partition")


@pytest.mark.row("A21")
def test_transaction_that_one_tablet_has_applied_is_decided_for_the_others():
    ended = replica(1, (0, LOW), transactions=[(TXN, 0, 77)])
    waiting = replica(2, (1, LOW), transactions=[(TXN, 70, 0)])
    made = rebuilt(everywhere(ended, waiting, *table_of()[2:]))
    (decision,) = clean(made).decisions.rows.values()
    assert (decision.at, list(decision.tablet_ids)) == (77, [tablet(1), tablet(2)])
    behind = [replica(1, (0, LOW), transactions=[(TXN, 70, 0)]), waiting, *table_of()[2:]]
    first = rebuilt(
        [answer(1, ended, waiting, *table_of()[2:]), answer(2, *behind), answer(3, *behind)]
    )
    assert list(clean(first).decisions.rows) == [TXN], "one replica is behind the other"


@pytest.mark.row("A21")
def test_transaction_whose_commit_time_a_leader_was_sent_is_decided_for_the_others():
    sent = replica(1, (0, LOW), transactions=[(TXN, 70, 0, 77)])
    waiting = replica(2, (1, LOW), transactions=[(TXN, 71, 0)])
    made = rebuilt(everywhere(sent, waiting, *table_of()[2:]))
    (decision,) = clean(made).decisions.rows.values()
    assert (decision.at, list(decision.tablet_ids)) == (77, [tablet(1), tablet(2)])


@pytest.mark.row("A21")
def test_transaction_is_not_undone_while_a_decision_may_be_in_a_log_that_no_leader_has_applied():
    waiting = replica(2, (1, LOW), transactions=[(TXN, 70, 0)])
    others = table_of()[2:]
    silent = replica(1, (0, LOW), leader=0)  # it may lack even the PREPARE of its log
    made = rebuilt(everywhere(silent, waiting, *others))
    assert f"no leader of {tablet(1)} answered" in made.findings.losses[0]
    assert not any("was not acknowledged" in note for note in made.findings.notes)
    new = replica(1, (0, LOW))
    new.applied_term -= 1  # elected, and its own entry is not applied yet
    made = rebuilt(everywhere(new, waiting, *others))
    assert "whether another tablet commits it is not known" in made.findings.losses[0]
    made = rebuilt(everywhere(silent, *table_of()[1:]))
    assert not made.findings.losses, "nothing is prepared"


def test_transaction_that_no_tablet_has_applied_is_undone():
    waiting = replica(2, (1, LOW), transactions=[(TXN, 70, 0)])
    made = rebuilt(everywhere(table_of()[0], waiting, *table_of()[2:]))
    assert any("was not acknowledged" in note for note in made.findings.notes)
    assert not loaded(made).decisions.rows


@pytest.mark.row("A21")
def test_revocations_that_some_server_knows_are_kept_at_their_latest_time():
    def revoked(**entries):
        return [cat.RevocationRecord(id=f"name-{n}", revoked_us=at) for n, at in entries.items()]

    answers = everywhere(*table_of())
    answers[0] = answer(1, *table_of(), revocations=revoked(ann=5, bob=9))
    answers[2] = answer(3, *table_of(), revocations=revoked(ann=7))
    made = rebuilt(answers)
    kept = loaded(made).access.revocations
    assert {r.id: r.revoked_us for r in kept.values()} == {"name-ann": 7, "name-bob": 9}
    assert min(r.until_us for r in kept.values()) > NOW_US + 3_000 * 86_400_000_000
    (note,) = [n for n in made.findings.notes if "accounts" in n]
    assert "2 revocations of certificates are kept" in note
