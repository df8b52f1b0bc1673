"""The four issues behind Kudu's design of several masters, each reproduced as far as possible.

Three real masters over one shared catalog (`master_runner.py`): KUDU-1358, 1353, 1374 and 495.
"""

import pytest

from tests.unit.master.scenarios.master_runner import after, play

SERVERS = ["servers a b c", "lead m1", "pass 1500"]
TABLE = [
    *SERVERS, "create t", "pass 100",
    "report a full t.0=a/1@1.1:a,b,c", "report b full t.0=a/1@1.1:a,b,c",
    "report c full t.0=a/1@1.1:a,b,c", "pass 100",
]  # fmt: skip
FULL = [f"report {server} full t.0=a/1@1.1:a,b,c" for server in "abc"]


def elected(master):
    """An election, and the time in which the catalog is read; less than any heartbeat interval."""
    return [f"lead {master}", "pass 60"]


def orders(lines, kind):
    """Names of servers that received an order, answered or not."""
    found = [line.split() for line in lines if line.startswith(f"orders {kind} ")]
    return sorted({words[words.index("to") + 1].rstrip(":,") for words in found})


@pytest.mark.row("S0.31", "S0.32")
def test_kudu_1358_create_table_during_election_uses_every_server():
    """No heartbeat comes between election and create, nor within it."""
    known = ["servers a b c d e f", "pass 1500", *(f"silent {s}" for s in "abcdef")]
    transcript = play(
        [
            *known,
            *elected("m2"),
            "create t buckets=30 replicas=1",
            *elected("m3"),
            "create u",
            "tables",
        ]
    )
    assert after(transcript, "tables") == [
        "-> t RUNNING of 30 tablets",
        "-> u RUNNING of 1 tablets",
    ]
    (made,) = (line for line in transcript if line.startswith("writes table t "))
    placed = [tablet.rpartition(" on ")[2] for tablet in made.split("; ")[1:]]
    assert sorted(set(placed)) == list("abcdef")
    assert all(3 <= placed.count(server) <= 8 for server in "abcdef"), (
        "replicas are spread over all servers"
    )


@pytest.mark.row("S0.33", "S0.34", "S0.35")
def test_kudu_1353_a_former_leader_that_leads_again_alters_locates_and_drops():
    """All reports since its earlier term were empty."""
    again = [*TABLE, "lead m2", "pass 100", *FULL, "lead m1", "pass 100"]
    transcript = play(
        [
            *again,
            "report a",
            "locate t",
            "add t n",
            *FULL,
            "pass 700",
            "describe t",
            "drop t",
            "pass 100",
        ]
    )
    assert "m1 answers a: leader, wants a full report" in after(transcript, "report a")
    assert after(transcript, "locate t") == ["-> t.0 RUNNING: a:1* b:1 c:1"], (
        "located before any report"
    )
    altered = transcript[transcript.index("> add t n") : transcript.index("> describe t")]
    assert orders(altered, "AlterTablet") == ["a"]
    assert after(transcript, "describe t") == ["-> RUNNING, ready, 1 of 1 run"]
    assert orders(after(transcript, "drop t"), "DeleteTablet") == ["a", "b", "c"]


@pytest.mark.row("S0.37", "S0.38", "S0.39")
@pytest.mark.parametrize(
    ("asked", "kind", "to", "news"),
    [
        ("drop t", "DeleteTablet", ["a", "b", "c"], []),
        ("add t n", "AlterTablet", ["a"], []),
        ("pass 1200", "ChangeConfig", ["a"], ["report a t.0=a/1@1.1:a,b,c!c"]),
    ],
)
def test_kudu_1374_next_leader_sends_orders_that_failed_leader_did_not(asked, kind, to, news):
    """The leader answers, and crashes before any order arrives."""
    begun = [
        *TABLE,
        "servers d",
        "unanswered a b c d",
        *news,
        asked,
        "lead m2",
        "unanswered",
        "pass 100",
    ]
    last = [line.replace("report a", "report a full") for line in news] or FULL[:1]
    transcript = play([*begun, "report d full", *FULL[1:], *last, "pass 1200"])
    cut = transcript.index("> lead m2")
    assert not [
        line for line in transcript[:cut] if f"orders {kind}" in line and "unanswered" not in line
    ]
    assert orders(transcript[cut:], kind) == to
    assert all(
        " in term 2" in line for line in transcript[cut:] if line.startswith(f"orders {kind}")
    )


@pytest.mark.row("S0.40", "S0.58")
@pytest.mark.parametrize("failure", ["refused", "lost", "unknown"])
@pytest.mark.parametrize(
    "asked", ["create u op=1", "add t n op=1", "rename t v op=1", "drop t op=1", FULL[1]]
)
def test_kudu_495_failed_catalog_write_returns_error_and_master_keeps_running(asked, failure):
    """The repeated operation, there or at the next leader, takes effect once."""
    begun = TABLE if asked is not FULL[1] else [*SERVERS, "create t", "pass 100", "report b full"]
    transcript = play(
        [*begun, f"fail {failure}", asked, "lead m1", "pass 100", asked, asked, "tables"]
    )
    first, second, _ = (n for n, line in enumerate(transcript) if line == f"> {asked}")
    if asked is not FULL[1]:
        code = {"refused": "THROTTLED"}.get(failure, "OUTCOME_UNKNOWN")
        assert f"-> {code}" in transcript[first:second]
        assert transcript[second + 1 :].count(f"-> {code}") == 0
    changes = [
        line for line in transcript[first:] if line.startswith(("writes table", "writes tablet"))
    ]
    names = {"create u op=1": ["t", "u"], "rename t v op=1": ["v"], "drop t op=1": []}
    shown = after(transcript, "tables")
    if names.get(asked, ["t"]):
        assert [line.split()[1] for line in shown] == names.get(asked, ["t"])
    else:
        assert shown == ["-> no tables"]
    per_name = [c for c in changes if not c.startswith("writes table t RUNNING at version")]
    assert len(per_name) == 1, f"once: {changes}"
