"""Options: precedence, limits, unknown names with a suggestion; metrics: one registry per server."""

import msgspec
import pytest

from nyala.common.errors import InvalidArgument
from nyala.common.metrics import Metrics
from nyala.common.options import Options, describe


def toml(tmp_path, text):
    path = tmp_path / "nyala.toml"
    path.write_text(text)
    return str(path)


def test_precedence_is_flags_environment_file_default(tmp_path):
    path = toml(tmp_path, "flush_bytes = 1\nscanners_max = 2\nwrite_max_bytes = 4096\n")
    environ = {"NYALA_SCANNERS_MAX": "3", "NYALA_WRITE_MAX_BYTES": "8192", "HOME": "/root"}
    options = Options.load(path, environ, {"write_max_bytes": 16384, "flush_bytes": None})
    assert options.flush_bytes == 1
    assert options.scanners_max == 3
    assert options.write_max_bytes == 16384
    assert options.wal_segment_mb == Options().wal_segment_mb


def test_defaults_equal_documentation():
    options = Options()
    assert (options.raft_heartbeat_ms, options.election_timeout_ms) == (100, 500)
    assert (options.wal_segment_mb, options.wal_sync) == (8, "always")
    assert (options.write_max_bytes, options.client_result_ttl_s) == (16 << 20, 600)
    assert (options.replicas, options.clock_max_ahead_ms) == (3, 10_000)


@pytest.mark.parametrize(
    ("environ", "flags", "message"),
    [
        ({"NYALA_FLUSH_BYTE": "1"}, {}, "did you mean flush_bytes?"),
        ({}, {"zzz": 1}, "nyala config list"),
        ({"NYALA_FLUSH_BYTES": "many"}, {}, "NYALA_FLUSH_BYTES sets flush_bytes to 'many'"),
        ({}, {"replicas": 9}, "allowed are: 1..7"),
        ({}, {"replicas": 2}, "odd"),
        ({}, {"wal_sync": "maybe"}, "allowed are: always|interval|never"),
        ({}, {"flush_bytes": 1.5}, "the flag --flush-bytes"),
        ({}, {"flush_bytes": True}, "the flag --flush-bytes"),
        ({}, {"raft_heartbeat_ms": 600}, "must be below election_timeout_ms"),
    ],
)
def test_invalid_option_is_refused_with_source_and_name(environ, flags, message):
    with pytest.raises(InvalidArgument) as caught:
        Options.load(None, environ, flags)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("flush_bytes = [", "cannot be read"),
        ("flush_byts = 1", "did you mean flush_bytes?"),
        ("flush_bytes = 'x'", "is not allowed"),
        ("[storage]\nflush_bytes = 1", "unknown option 'storage'"),
    ],
)
def test_invalid_file_is_refused_by_name(tmp_path, text, message):
    path = toml(tmp_path, text)
    with pytest.raises(InvalidArgument) as caught:
        Options.load(path)
    assert message in str(caught.value)
    assert path in str(caught.value)


def test_missing_options_file_is_refused(tmp_path):
    with pytest.raises(InvalidArgument, match="cannot be read"):
        Options.load(str(tmp_path / "none.toml"))


def test_client_masters_are_not_an_option():
    assert Options.load(None, {"NYALA_MASTERS": "host:7051"}) == Options()


def test_every_option_has_description_and_valid_default():
    units = ("_ms", "_s", "_bytes", "_mb", "_ops", "_rows", "_rowsets", "_tablets", "_max", "_days")
    words = (
        "wal_sync repair replicas orders_per_server repairs_per_server compute_threads scanners_max "
        "slow_log_factor jwt_issuers"
    )
    others = words.split()
    for option in describe():
        assert option.description.endswith("."), option
        assert option.limits, option
        assert option.name.endswith(units) or option.name in others, option
        assert Options.load(None, {}, {option.name: option.default}) == Options()


def test_options_are_immutable():
    with pytest.raises(AttributeError):
        Options().replicas = 5  # type: ignore[misc]
    assert msgspec.structs.replace(Options(), replicas=5).replicas == 5


def test_two_servers_in_one_process_have_separate_metrics():
    one, two = Metrics(), Metrics()
    one.counter("replica_applied_entries", "Entries applied.").inc(3)
    two.counter("replica_applied_entries", "Entries applied.").inc(4)
    one.counter("replica_applied_entries", "Entries applied.").inc()
    assert one.registry.get_sample_value("nyala_replica_applied_entries_total") == 4
    assert two.registry.get_sample_value("nyala_replica_applied_entries_total") == 4 + 0


def test_gauges_are_evaluated_when_rendered():
    metrics = Metrics()
    level = [1.0]
    metrics.gauge("wal_queue_bytes", "Waiting.", read=lambda: level[0])
    level[0] = 7.0
    assert metrics.registry.get_sample_value("nyala_wal_queue_bytes") == 7


@pytest.mark.parametrize("name", ["Applied", "applied", "replica-applied", "replica_"])
def test_metric_names_have_component_name_and_unit(name):
    with pytest.raises(AssertionError, match="component"):
        Metrics().counter(name, "Whatever.")


def test_metric_name_has_one_kind():
    metrics = Metrics()
    metrics.gauge("a_b_bytes", "One.")
    with pytest.raises(AssertionError, match="is a Gauge"):
        metrics.counter("a_b_bytes", "Other.")
