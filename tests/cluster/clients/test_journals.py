"""Journals on real processes: steps, reads, tails, keys; kinds that are mixed up; the command line."""

import json
import threading

import pytest
from typer.testing import CliRunner

import nyala
from nyala.cli.main import app
from nyala.common.errors import AlreadyPresent, InvalidArgument, NotFound
from nyala.testing import MiniCluster
from tests.unit.cli.support import verbs
from tests.waiting import wait_until


@pytest.fixture(scope="module")
def client(cluster: MiniCluster):
    with cluster.connect() as made:
        yield made


@pytest.fixture
def journal(client: nyala.Client, request: pytest.FixtureRequest):
    name = request.node.name[:60]
    yield client.create_journal(name)
    client.drop_journal(name)


def data(log: nyala.Log, **how: int) -> list[bytes]:
    return [e.data for e in log.read(**how)]


@pytest.mark.row("S3.21")
def test_appends_conditions_and_invalidations(journal):
    log = journal.log("coordinator")
    assert (log.last_id(), data(log)) == (0, [])
    first = log.append(b"1", expected=0)
    second = log.append(b"2", expected=first, invalidates=[first])
    with pytest.raises(nyala.ConditionFailed) as failed:
        log.append(b"3", expected=first)
    assert failed.value.last == second == log.last_id()
    assert data(log) == [b"2"]
    third = log.invalidate([second], expected=second)
    assert (log.last_id(), data(log)) == (third, [])
    assert [(g.name, g.created, g.last, g.entries) for g in journal.logs()] == [
        ("coordinator", first, third, 0)
    ]
    assert journal.log("nobody").invalidate([1]) == 0


def test_one_of_concurrent_conditional_appends_succeeds(cluster, journal):
    results: list[int | None] = []

    def race() -> None:
        with cluster.connect() as own:
            try:
                results.append(own.journal(journal.name).log("a").append(b"x", expected=0))
            except nyala.ConditionFailed:
                results.append(None)

    threads = [threading.Thread(target=race) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (won,) = [r for r in results if r is not None]
    assert len(results) == 8
    assert journal.log("a").last_id() == won


def test_step_takes_effect_as_a_whole_or_not_at_all(journal):
    log = journal.log("a")
    with journal.atomically() as step:
        step.require(log, last=0)
        step.require(key="owner", version=0)
        step.append(log, b"1")
        step.set("owner", b"me")
    entry, version = step.ids
    assert journal.get("owner") == nyala.Key("owner", b"me", version)
    step = journal.atomically()
    step.require(log, last=entry)
    step.require(key="owner", version=entry)
    step.append(log, b"2")
    step.delete("owner")
    with pytest.raises(nyala.ConditionFailed):
        step.send()
    assert data(log) == [b"1"]
    assert journal.delete("owner", expected_version=version)
    assert journal.get("owner") is None
    assert journal.delete("owner") == 0


def test_pages_of_a_log_and_limits(journal):
    log = journal.log("a")
    ids = [log.append(b"x" * 700_000) for _ in range(5)]
    assert [e.id for e in log.read()] == ids
    assert [e.id for e in log.read(after=ids[1], limit=2)] == ids[2:4]
    with pytest.raises(nyala.errors.TooLarge, match="split it"):
        log.append(b"x" * (1 << 21))
    wait_until(lambda: len(data(log, max_age_ms=600_000)) == 5, "a replica answers")


def test_full_journal_accepts_deletions_only(client):
    small = client.create_journal("small", journal_bytes=10_000)
    log = small.log("a")
    first = log.append(b"x" * 9_000)
    with pytest.raises(nyala.JournalFull, match="Invalidate entries"):
        log.append(b"x" * 2_000)
    log.append(b"y" * 9_000, invalidates=[first])
    client.drop_journal("small")


def test_tails_and_watches_follow_other_clients(cluster, journal):
    events, changes = journal.log("a").tail(), journal.watch("k/")
    with cluster.connect() as other:
        same_journal = other.journal(journal.name)
        first = same_journal.log("a").append(b"1")
        second = same_journal.log("a").append(b"2", invalidates=[first])
        version = same_journal.set("k/1", b"v")
        deletion = same_journal.delete("k/1")
    seen = [next(events) for _ in range(2)]
    if seen[0] == nyala.Entry(first, b"1"):  # the read was sent before the second entry
        seen = [seen[1], next(events)]
    assert seen == [nyala.Entry(second, b"2"), nyala.Invalidated((first,), second)]
    found = next(changes)
    if found.value is not None:
        assert found == nyala.Key("k/1", b"v", version)
        found = next(changes)
    assert found == nyala.Key("k/1", None, deletion)
    events.close()
    changes.close()


def test_readers_of_deleted_log_get_log_gone(journal):
    log = journal.log("a")
    log.append(b"1")
    events = journal.log("a").tail()
    next(events)
    assert log.delete()
    with pytest.raises(nyala.LogGone):
        next(events)
    with pytest.raises(nyala.LogGone):
        data(log)
    log.append(b"of another")
    with pytest.raises(nyala.LogGone):
        data(log)
    assert data(journal.log("a")) == [b"of another"]


def test_journal_opened_as_table_and_table_as_journal_are_refused(client, journal):
    name = journal.name
    assert name in client.journals()
    assert name not in client.tables()
    for door in (client.table, client.drop_table, client.describe):
        with pytest.raises(InvalidArgument, match="journal"):
            door(name)
    with pytest.raises(AlreadyPresent):
        client.create_journal(name)
    with pytest.raises(NotFound, match="the journals are"):
        client.journal("nobody")
    table = client.create_table("no_journal", [{"k": 1, "v": 1}], ["k"])
    for door in (client.journal, client.drop_journal):
        with pytest.raises(InvalidArgument, match="table"):
            door(table.name)
    client.drop_table(table.name)


def test_dropped_journal_can_be_recalled(client):
    journal = client.create_journal("recalled")
    entry = journal.log("a").append(b"1")
    client.drop_journal("recalled", reserve_seconds=600)
    assert client.dropped_journals() == {journal.id: "recalled"}
    with pytest.raises(NotFound):
        client.journal("recalled")
    again = client.recall_journal(journal.id, "again")
    assert [e.id for e in again.log("a").read()] == [entry]
    client.drop_journal("again")


def nyala_cli(cluster: MiniCluster, *words: str) -> str:
    return nyala_run(cluster, *words)[0]


def nyala_run(cluster: MiniCluster, *words: str) -> tuple[str, str]:
    """(standard output, standard error) of a verb that succeeds"""
    status, out, err = verbs.nyala("journal", *words, "--masters", cluster.masters)
    assert status == 0, err
    return out, err


@pytest.mark.full
def test_command_line_of_journals(cluster):
    nyala_cli(cluster, "create", "cli")
    first = nyala_cli(cluster, "append", "cli", "a", "one").strip()
    second = nyala_cli(cluster, "append", "cli", "a", "two", "--invalidates", first).strip()
    nyala_cli(cluster, "set", "cli", "k", "value", "--expected-version", "0")
    assert nyala_cli(cluster, "get", "cli", "k") == "value"
    (entry,) = json.loads(nyala_cli(cluster, "read", "cli", "a", "--format", "json"))
    assert (str(entry["id"]), entry["data"]) == (second, "two")
    events = [
        json.loads(line)
        for line in nyala_cli(cluster, "tail", "cli", "a", "--count", "2").splitlines()
    ]
    assert events == [
        {"id": int(second), "timestamp": entry["timestamp"], "data": "two"},
        {"id": int(second), "invalidated": [int(first)]},
    ]
    third = nyala_cli(cluster, "append", "cli", "a", "three").strip()
    part, more = nyala_run(cluster, "read", "cli", "a", "--limit", "1", "--format", "json")
    assert [str(e["id"]) for e in json.loads(part)] == [second]
    assert f"go on with --after {second}" in more
    rest, more = nyala_run(
        cluster, "read", "cli", "a", "--limit", "1", "--after", second, "--format", "json"
    )
    assert [str(e["id"]) for e in json.loads(rest)] == [third]
    assert more == ""
    lines = [json.loads(line) for line in nyala_cli(cluster, "dump", "cli").splitlines()]
    assert [sorted(line) for line in lines] == [
        ["created", "last", "log"], *[["data", "id", "log"]] * 2, ["key", "value", "version"]
    ]  # fmt: skip
    assert int(nyala_cli(cluster, "invalidate", "cli", "a", second, third, "--yes")) > int(third)
    assert json.loads(nyala_cli(cluster, "read", "cli", "a", "--format", "json")) == []
    nyala_cli(cluster, "append", "cli", "b", "of b")
    checked = json.loads(nyala_cli(cluster, "verify", "cli", "--format", "json"))
    assert len(checked) == 3
    assert len({(c["last"], c["digest"]) for c in checked}) == 1
    (described,) = [json.loads(nyala_cli(cluster, "describe", "cli", "--format", "json"))]
    assert (described["entries"], described["keys"], len(described["members"])) == (1, 1, 3)
    assert "cli" in nyala_cli(cluster, "list")
    nyala_cli(cluster, "drop", "cli", "--yes")


def test_verbs_list_logs_and_keys_and_recall_a_journal(cluster):
    def run(*words: str, code: int = 0) -> str:
        done = CliRunner().invoke(app, ["journal", *words, "--masters", cluster.masters])
        assert done.exit_code == code, done.output
        return done.stdout if code == 0 else done.output

    run("create", "cli2", "--journal-bytes", "4096")
    first = int(run("append", "cli2", "b", "one"))
    last = int(run("append", "cli2", "b", "two!"))
    other = int(run("append", "cli2", "a", "x", "--expected", "0"))
    assert json.loads(run("logs", "cli2", "--format", "json")) == [
        {"log": "a", "entries": 1, "data_bytes": 1, "last": other, "created": other},
        {"log": "b", "entries": 2, "data_bytes": 7, "last": last, "created": first},
    ]
    versions = [int(run("set", "cli2", key, "v" + key)) for key in ("k/1", "k/2", "z")]
    assert json.loads(run("keys", "cli2", "k/", "--format", "json")) == [
        {"key": key, "version": version, "value": "v" + key}
        for key, version in zip(("k/1", "k/2"), versions, strict=False)
    ]
    assert "journal_bytes" in run("append", "cli2", "a", "x" * 5000, code=6)
    run("drop", "cli2", "--reserve-seconds", "600", "--yes")
    assert "cli2" not in run("list")
    (dropped,) = [
        j
        for j in json.loads(run("list", "--dropped", "--format", "json"))
        if j["journal"] == "cli2"
    ]
    run("recall", dropped["id"], "--name", "cli3")
    assert run("get", "cli3", "z") == "vz"
    assert [e["id"] for e in json.loads(run("read", "cli3", "b", "--format", "json"))] == [
        first,
        last,
    ]
    run("drop", "cli3", "--yes")


def test_verbs_that_discard_data_ask_first(cluster, journal):
    version, entry = journal.set("k", b"value"), journal.log("a").append(b"1")
    verbs = (
        ("delete", journal.name, "k", "--expected-version", str(version)),
        ("invalidate", journal.name, "a", str(entry), "--expected", str(entry)),
        ("delete-log", journal.name, "a"),
    )
    runner = CliRunner()
    for words in verbs:
        command = ["journal", *words, "--masters", cluster.masters]
        refused = runner.invoke(app, command, input="n\n")
        assert (refused.exit_code, "nothing was deleted" in refused.output) == (1, True)
    assert (journal.get("k").version, journal.log("a").last_id()) == (version, entry)
    for words in verbs:
        command = ["journal", *words, "--masters", cluster.masters]
        done = runner.invoke(app, command, input="y\n")
        assert done.exit_code == 0, done.output
        assert int(done.stdout.split()[-1]) > entry
    assert journal.get("k") is None
    assert journal.logs() == []
    for what, *more in (("delete", "k"), ("invalidate", "a", "1"), ("delete-log", "a")):
        command = ["journal", what, journal.name, *more, "--yes"]
        missing = runner.invoke(app, [*command, "--masters", cluster.masters])
        assert (missing.exit_code, "has no" in missing.output) == (5, True)


def test_verbs_of_the_other_kind_name_the_verb_to_use(cluster, client, journal):
    table = client.create_table("verbs", [{"k": 1, "v": 1}], ["k"])
    cases = (
        ("table", "drop", journal.name, "nyala journal"),
        ("table", "describe", journal.name, "nyala journal"),
        ("journal", "drop", table.name, "nyala table"),
        ("journal", "describe", table.name, "nyala table"),
    )
    for group, name, thing, advice in cases:
        words = [group, name, thing, "--masters", cluster.masters]
        refused = CliRunner().invoke(app, words, input="y\n")
        assert refused.exit_code != 0
        assert advice in refused.output
    client.drop_table(table.name)
