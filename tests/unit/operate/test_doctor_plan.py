"""The plan of `nyala doctor` as a function of the facts: steps, their conditions, entries at risk."""

from dataclasses import replace

import pytest
from typer.testing import CliRunner

from nyala.cli.main import app
from nyala.common.errors import InvalidArgument
from nyala.common.ids import OpId, ServerUuid
from nyala.operate.doctor.facts import (
    ClusterFacts,
    Declared,
    MasterFacts,
    TabletFacts,
    TServerFacts,
)
from nyala.operate.doctor.perform import chosen, require_same
from nyala.operate.doctor.plan import make_plan, remarks
from nyala.operate.doctor.steps import DeleteOrphan, RecoverTablet, RemoveMaster, ReplaceLostTablet
from nyala.operate.survivors import ServerEndpoint, Survivor
from nyala.raft.membership import Configuration, Member

pytestmark = pytest.mark.row("W9")

U = [ServerUuid(str(n) * 32) for n in range(6)]
TABLET = "a" * 32
CATALOG = "0" * 32


def place(number):
    return ServerEndpoint(U[number], f"s:{number}")


LAST = OpId(4, 100)


def survivor(number, last=LAST, *, members=(1, 2, 3), commit=0, known=0, state="RUNNING"):
    config = Configuration(tuple(Member(U[n], f"p:{n}", f"s:{n}") for n in members), OpId(1, 1))
    error = "the disk returned an I/O error" if state == "FAILED" else ""
    return Survivor(
        place(number), "metrics", state, "FOLLOWER", last.term, last, commit or last.index, known,
        config, config, error,
    )  # fmt: skip


def master(number, *, answers=True, error="", catalog=None):
    return MasterFacts(place(number), answers, error, catalog)


def facts(found, *, dead=(), voters=(1, 2, 3), **changes):
    """A cluster with three masters, tablet servers 1 to 3, and one tablet with these survivors."""
    made = ClusterFacts(
        "s:0",
        tuple(master(n) for n in (0, 4, 5)),
        tuple(TServerFacts(place(n), n not in dead, alive=n not in dead) for n in (1, 2, 3)),
        (TabletFacts(TABLET, "metrics", tuple(place(n) for n in voters), tuple(found)),),
        wanted=3,
    )
    return replace(made, **changes)


def names(steps):
    return [s.name for s in steps]


def plan(given, *lost, new=()):
    return make_plan(given, Declared(frozenset(lost), tuple(new)))


def test_healthy_cluster_has_an_empty_plan():
    assert plan(facts([survivor(1), survivor(2), survivor(3)])) == []


def test_servers_that_may_return_are_to_be_started_and_nothing_unsafe_is_ready():
    steps = plan(facts([survivor(1)], dead=(2, 3)))
    recover = steps[2]
    assert names(steps) == [f"start-{U[2]}", f"start-{U[3]}", f"recover-{TABLET}"]
    declared = plan(facts([survivor(1)], dead=(2, 3)), "s:2", "s:3")
    assert names(declared) == [f"recover-{TABLET}", "new-tserver"]
    assert (recover.ready, recover.undeclared) == (False, ("s:2", "s:3"))
    assert "1 tablet of which it is a voter has no majority" in steps[0].finding
    with pytest.raises(InvalidArgument, match="--lost s:2 --lost s:3"):
        chosen(steps, (recover.name,))
    assert chosen(steps, ()) == []


def test_server_that_does_not_list_its_replicas_yet_counts_as_one_that_may_return():
    tservers = tuple(
        TServerFacts(place(n), answers=n == 1, starting=n > 1, alive=n == 1) for n in (1, 2, 3)
    )
    steps = plan(facts([survivor(1)], tservers=tservers))
    assert names(steps)[:3] == [f"wait-{U[2]}", f"wait-{U[3]}", f"recover-{TABLET}"]
    assert chosen(steps, ()) == []
    mistaken = plan(facts([survivor(1)], tservers=tservers), "s:2", "s:3")
    assert chosen(mistaken, ()) == [], "a server that answers is not lost"


def test_server_whose_certificate_has_expired_gets_a_new_one_and_is_not_declared_lost():
    why = "certificate has expired"
    tservers = tuple(
        TServerFacts(
            place(n), n == 1, n > 1, n == 1, why if n > 1 else "", untrusted=why if n > 1 else ""
        )
        for n in (1, 2, 3)
    )
    masters = (master(0), replace(master(4), problem=why, untrusted=why), master(5))
    given = facts([survivor(1)], tservers=tservers, masters=masters)
    for steps in (plan(given), plan(given, "s:2", "s:3", "s:4")):
        assert names(steps) == [
            f"certify-{U[4]}", f"certify-{U[2]}", f"certify-{U[3]}", f"recover-{TABLET}",
        ]  # fmt: skip
        assert f"--name master-{U[4]} --host s " in steps[0].command
        assert f"--name tserver-{U[2]} --host s " in steps[1].command
        assert why in steps[1].finding
        assert not any("--lost" in s.command for s in steps[:3])
        assert chosen(steps, ()) == []
    leaderless = plan(replace(given, leader="", masters=masters[1:2]))
    assert names(leaderless) == [f"certify-{U[4]}"]


def test_voter_that_the_leader_master_does_not_list_may_return_too():
    tservers = tuple(TServerFacts(place(n), answers=True) for n in (1,))
    steps = plan(facts([survivor(1)], tservers=tservers))
    assert steps[0].undeclared == ("s:2", "s:3")
    assert plan(facts([survivor(1)], tservers=tservers), U[2], "s:3")[0].ready


def test_one_of_two_lost_servers_declared_is_not_enough():
    steps = plan(facts([survivor(1)], dead=(2, 3)), "s:2")
    assert [s.undeclared for s in steps if s.name == f"recover-{TABLET}"] == [("s:3",)]


def test_tablet_without_majority_continues_from_the_most_up_to_date_survivor():
    steps = plan(facts([survivor(1, OpId(4, 100), commit=90, known=103)], dead=(2, 3)), "s:2", U[3])
    recover = chosen(steps, ())[0]
    assert recover.action == RecoverTablet(TABLET, place(1), (U[1],))
    assert recover.command == f"nyala tablet unsafe_change_config {TABLET} {U[1]} {U[1]}"
    assert recover.as_dict(1)["data_at_risk"] == {
        "survivors": [
            {"server": U[1], "address": "s:1", "state": "RUNNING", "last": "4.100",
             "committed": 90, "known_commit": 103}
        ],
        "last_kept": "4.100",
        "known_lost": [101, 103],
        "acknowledged_entries_may_be_lost": True,
        "fetched_from": None,
    }  # fmt: skip


def test_no_acknowledged_entry_is_at_risk_if_lost_servers_were_no_majority():
    members = (1, 2, 3, 4)
    found = [survivor(n, OpId(4, 100 - n), members=members) for n in (1, 2)]
    steps = plan(facts(found, dead=(3,), voters=members), "s:3", U[4])
    (recover,) = [s for s in steps if isinstance(s.action, RecoverTablet)]
    assert recover.action == RecoverTablet(TABLET, place(1), (U[1], U[2]))
    assert recover.risk is not None
    assert recover.risk.bounded
    assert "no acknowledged entry" in recover.risk.lines[-1]


def with_witness(number, one):
    """The survivor in a group of five voters, one of which is a witness."""
    config = Configuration(
        tuple(Member(U[n], f"p:{n}", f"s:{n}", electable=n != number) for n in range(1, 6)),
        OpId(1, 1),
    )
    return replace(one, committed=config, active=config)


@pytest.mark.parametrize(("known", "lost"), [(100, None), (103, [101, 103])])
def test_entries_that_a_witness_has_are_fetched_from_it_and_not_lost(known, lost):
    """Of five voters two answer: the only one with data, and a witness with a newer log."""
    witness = replace(with_witness(2, survivor(2, OpId(4, 100), known=known)), table="")
    dead, declared = (3, 4, 5), [f"s:{n}" for n in (3, 4, 5)]
    found = [witness, with_witness(2, survivor(1, OpId(4, 98)))]
    steps = plan(facts(found, dead=dead, voters=(1, 2, 3, 4, 5)), *declared)
    (recover,) = [s for s in steps if isinstance(s.action, RecoverTablet)]
    assert recover.action == RecoverTablet(TABLET, place(1), (U[1], U[2]))
    risk = recover.as_dict(1)["data_at_risk"]
    assert (risk["last_kept"], risk["fetched_from"], risk["known_lost"]) == ("4.100", U[2], lost)
    assert risk["acknowledged_entries_may_be_lost"], "three of five voters are lost"


def test_server_whose_address_another_one_has_may_have_been_started_with_a_wrong_directory():
    tservers = (
        TServerFacts(place(1), answers=True),
        *(TServerFacts(place(n), answers=False, alive=False, other=U[0]) for n in (2, 3)),
    )
    steps = plan(facts([survivor(1)], tservers=tservers))
    assert chosen(steps, ()) == []
    assert names(steps)[:2] == [f"start-{U[2]}", f"start-{U[3]}"]
    assert "or one that was not mounted; if its data are lost for good" in steps[0].command
    declared = plan(facts([survivor(1)], tservers=tservers), U[2], U[3])
    assert names(chosen(declared, ())) == [f"recover-{TABLET}"]
    healthy = [survivor(n, members=(1, 4, 5)) for n in (1, 4, 5)]
    assert names(plan(facts(healthy, voters=(1, 4, 5), tservers=tservers))) == ["new-tserver"]


def test_address_at_which_another_server_answers_declares_neither_of_them_lost():
    tservers = (
        TServerFacts(place(1), answers=True),
        TServerFacts(place(2), answers=False, alive=False, other=U[0]),
        TServerFacts(place(3), answers=False, alive=False),
    )
    found = facts([survivor(1)], tservers=tservers)
    steps = plan(found, "s:2", "s:3")
    assert [s.undeclared for s in steps if s.name == f"recover-{TABLET}"] == [(U[2],)]
    assert chosen(steps, ()) == []
    declared = Declared(frozenset({"s:2", "s:3"}))
    assert any(f"--lost {U[2]}" in text for text in remarks(found, declared))
    assert names(chosen(plan(found, U[2], "s:3"), ())) == [f"recover-{TABLET}"]


def test_address_at_which_another_server_answers_declares_no_unreported_voter_lost():
    tservers = (
        TServerFacts(place(1), answers=True),
        TServerFacts(ServerEndpoint(U[4], "s:2"), answers=True),
        TServerFacts(ServerEndpoint(U[5], "s:3"), answers=False, starting=True),
    )
    found = facts([survivor(1)], tservers=tservers)
    (recover,) = [s for s in plan(found, "s:2", "s:3") if isinstance(s.action, RecoverTablet)]
    assert (recover.ready, recover.undeclared) == (False, (U[2], U[3]))
    (recover,) = [s for s in plan(found, U[2], U[3]) if isinstance(s.action, RecoverTablet)]
    assert recover.ready


@pytest.mark.parametrize("leader", ["s:0", ""])
def test_address_at_which_another_master_answers_declares_no_master_lost(leader):
    wrong = MasterFacts(place(4), answers=False, problem="another master, x, answers", other=U[1])
    found = facts([survivor(n) for n in (1, 2, 3)], leader=leader, masters=(master(0), wrong))
    (start,) = plan(found, "s:4")[:1]
    assert start.name == f"start-{U[4]}"
    assert start.command.endswith(f"nyala doctor --lost {U[4]}")
    assert any(f"--lost {U[4]}" in t for t in remarks(found, Declared(frozenset({"s:4"}))))
    assert f"start-{U[4]}" not in names(plan(found, U[4]))


def test_empty_name_declares_no_server_of_unknown_address_or_uuid_lost():
    declared = Declared(frozenset({""}))
    assert not declared.is_lost(ServerEndpoint("", "s:2"))
    assert not declared.is_lost(ServerEndpoint(U[2], ""))
    done = CliRunner().invoke(app, ["doctor", "--masters", "127.0.0.1:1", "--lost", "", "--yes"])
    assert (done.exit_code, "has an empty value" in done.output) == (2, True)


def test_voter_of_a_newer_configuration_than_the_catalogs_may_return():
    found = [survivor(1, members=(1, 4, 5))]
    steps = plan(facts(found, dead=(2, 3)), "s:2", "s:3")
    assert steps[0].undeclared == ("s:4", "s:5")
    assert chosen(steps, ()) == []


def test_server_that_the_leader_master_hears_is_not_lost_whatever_was_declared():
    tservers = (
        TServerFacts(place(1), answers=True),
        TServerFacts(place(2), answers=False, alive=True, problem="connection refused"),
        TServerFacts(place(3), answers=False, alive=False),
    )
    steps = plan(facts([survivor(1)], tservers=tservers), "s:2", "s:3")
    start, recover = steps[:2]
    assert (start.name, recover.running) == (f"start-{U[2]}", ("s:2",))
    assert "connection refused" in start.finding
    assert "check the network from here to it" in start.command
    assert chosen(steps, ()) == []
    with pytest.raises(InvalidArgument, match=r"only if the data of s:2 are lost\. It runs"):
        chosen(steps, (recover.name,))


def test_steps_that_have_changed_since_they_were_confirmed_are_refused():
    confirmed = chosen(plan(facts([survivor(1)], dead=(2, 3)), "s:2", "s:3"), ())
    assert names(confirmed) == [f"recover-{TABLET}"]
    require_same(confirmed, plan(facts([survivor(1)], dead=(2, 3)), "s:2", "s:3"))
    for changed in (
        facts([survivor(1), survivor(2)], dead=(3,)),
        facts([survivor(1)], tservers=(TServerFacts(place(2), False, starting=True),)),
        facts([survivor(2), survivor(1)], dead=(3,), voters=(1, 2, 3, 4, 5)),
    ):
        with pytest.raises(
            InvalidArgument, match="the cluster has changed since the plan was printed"
        ):
            require_same(confirmed, plan(changed, "s:2", "s:3"))


def test_names_of_lost_servers_that_have_no_effect_are_named():
    given = facts([survivor(1)], dead=(2, 3))
    declared = Declared(frozenset({"s:2", U[1], "s:77"}))
    told = remarks(given, declared)
    assert told == [
        "--lost s:77: no server has this uuid or address; those that do not answer: s:2, s:3",
        f"--lost {U[1]}: s:1 answers, so it is not lost",
    ]


def test_replica_that_failed_is_no_survivor_and_its_server_is_named():
    found = [survivor(1), survivor(2, state="FAILED"), survivor(3, state="FAILED")]
    failed = ((TABLET, "the disk returned an I/O error"),)
    tservers = tuple(
        TServerFacts(place(n), answers=True, failed=failed if n > 1 else ()) for n in (1, 2, 3)
    )
    steps = plan(facts(found, tservers=tservers))
    assert names(steps) == [f"check-{U[2]}", f"check-{U[3]}", f"recover-{TABLET}"]
    assert steps[2].ready, "all three servers answer: nothing has to be declared"


def test_tablet_of_which_all_replicas_failed_is_recovered_from_files_by_the_operator():
    steps = plan(facts([survivor(n, state="FAILED") for n in (1, 2, 3)]))
    (step,) = steps
    assert f"local_replica unsafe_recover {TABLET} --dir ITS_DIRECTORY --dry-run" in step.command
    assert step.action is None
    with pytest.raises(InvalidArgument, match="is for the operator: stop the tablet server s:1"):
        chosen(steps, (step.name,))


def test_tablet_without_any_replica_is_replaced_only_if_the_step_is_named():
    steps = plan(facts([]))
    assert chosen(steps, ()) == []
    (step,) = chosen(steps, (f"replace-{TABLET}",))
    assert step.action == ReplaceLostTablet(TABLET)
    assert step.risk is not None
    assert step.risk.lines == ["every row of it is lost, acknowledged or not"]
    waiting = plan(facts([], dead=(3,)))[1]
    assert waiting.undeclared == ("s:3",), "a server that may return may have the rows"


def test_journal_of_which_nothing_is_left_is_replaced_by_the_operator_who_forces_it():
    (tablet,) = facts([]).tablets
    (step,) = plan(facts([], tablets=(replace(tablet, kind="journal"),)))
    assert step.finding == f"journal metrics, tablet {TABLET}: no replica is left"
    assert f"unsafe_replace_tablet {TABLET} --force" in step.command
    with pytest.raises(InvalidArgument, match="is for the operator"):
        chosen([step], (step.name,))


def test_orphan_is_deleted_only_if_the_step_is_named():
    healthy = [survivor(1), survivor(2), survivor(3)]
    steps = plan(facts(healthy, orphans=(("b" * 32, survivor(2)),)))
    assert chosen(steps, ()) == []
    (step,) = chosen(steps, (f"orphan-{'b' * 32}-{U[2]}",))
    assert step.action == DeleteOrphan(U[2], "b" * 32)


HEALTHY = [survivor(1), survivor(2), survivor(3)]


@pytest.mark.parametrize(
    ("masters", "lost", "new", "expected", "performed"),
    [
        ((master(0), master(4), master(5, answers=False)), (), (), [f"start-{U[5]}"], []),
        ((master(0), master(4), master(5, answers=False)), ("s:5",), (),
         [f"remove-{U[5]}", "new-master"], [f"remove-{U[5]}"]),
        ((master(0), master(4), master(5, answers=False)), ("s:5",), ("s:9",),
         [f"remove-{U[5]}", "add-s:9"], [f"remove-{U[5]}", "add-s:9"]),
        ((master(0), master(4), master(5, error="damaged log")), (), (),
         [f"remove-{U[5]}", "new-master"], [f"remove-{U[5]}"]),
        ((master(0), master(4)), (), (), ["new-master"], []),
        ((master(0), master(4), master(5)), (), ("s:5",), [], []),
    ],
    ids=["may return", "lost", "lost and replaced", "failed", "interrupted", "added already"],
)  # fmt: skip
def test_masters_that_are_dead_or_failed_are_replaced(masters, lost, new, expected, performed):
    steps = plan(facts(HEALTHY, masters=masters), *lost, new=new)
    assert names(steps) == expected
    assert names(chosen(steps, ())) == performed
    removed = [s.action for s in steps if s.name.startswith("remove-")]
    assert removed == [RemoveMaster(U[5])] * len(removed)


def test_catalog_without_majority_continues_from_a_remaining_master():
    catalog = survivor(0, OpId(7, 50), members=(0, 4, 5))
    masters = (
        master(0, catalog=catalog),
        master(4, answers=False),
        master(5, answers=False),
    )
    given = ClusterFacts("", masters)
    assert names(plan(given)) == [f"start-{U[4]}", f"start-{U[5]}"]
    (step,) = plan(given, "s:4", "s:5")
    assert f"cmeta rewrite_raft_config catalog {U[0]} --dir ITS_DIRECTORY" in step.command
    assert step.risk is not None
    assert step.risk.last == OpId(7, 50)


def test_catalog_of_which_all_masters_are_gone_is_rebuilt():
    given = ClusterFacts("", tuple(master(n, answers=False) for n in (0, 4, 5)))
    assert names(plan(given)) == [f"start-{U[0]}", f"start-{U[4]}", f"start-{U[5]}"]
    (step,) = plan(given, "s:0", "s:4", "s:5")
    assert step.command.startswith("nyala master unsafe_rebuild TSERVER_ADDRESS...")
    assert step.action is None


def test_catalog_is_not_rebuilt_while_a_master_that_answers_may_have_it():
    masters = (MasterFacts(place(0), True, problem="it is opening its catalog"),)
    gone = tuple(master(n, answers=False) for n in (4, 5))
    (step,) = plan(ClusterFacts("", (*masters, *gone)), "s:4", "s:5")
    assert step.name == f"wait-{U[0]}"
    assert "it is opening its catalog" in step.finding
    left = master(4, catalog=survivor(4, members=(0, 4, 5)))
    steps = plan(ClusterFacts("", (*masters, left, master(5, answers=False))), "s:5")
    assert names(steps) == [f"wait-{U[0]}"], "its log may be longer than that of the other one"


def test_decommissioned_server_that_was_stopped_is_started_only_for_a_tablet_that_needs_it():
    dead = TServerFacts(place(4), answers=False, alive=False, retired=True)
    running = tuple(TServerFacts(place(n), answers=True) for n in (1, 2, 3))
    assert plan(facts(HEALTHY, tservers=(*running, dead))) == []
    alone = plan(facts([survivor(1)], tservers=(running[0], replace(dead, place=place(2)))))
    assert f"start-{U[2]}" in names(alone)
    assert "new-tserver" in names(plan(facts(HEALTHY, tservers=(*running[:2], dead))))


def test_tablet_server_that_reports_nothing_is_found():
    tservers = (
        TServerFacts(place(1), answers=True, alive=False, masters=("other:1",)),
        *(TServerFacts(place(n), answers=True) for n in (2, 3)),
    )
    (step,) = plan(facts(HEALTHY, tservers=tservers))
    assert step.name == f"report-{U[1]}"
    assert "it reports to other:1" in step.finding


def test_step_that_is_done_is_refused_by_name():
    with pytest.raises(InvalidArgument, match="no step 'recover-x': it may be done already"):
        chosen([], ("recover-x",))
