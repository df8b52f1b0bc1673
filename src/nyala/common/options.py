"""Every tunable of a server: default, unit in the name, limits, one sentence. From file, environment, flags.

Rules: values only. One frozen `Options` is made at a process's start and handed around; nothing here
is read again later. Precedence: flag, then environment (`NYALA_<NAME>`), then the TOML file, then default.
"""

import difflib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import msgspec

from nyala.common.errors import InvalidArgument
from nyala.common.memory_options import MemoryOptions

ENVIRONMENT_PREFIX = "NYALA_"
NOT_OPTIONS = ("NYALA_MASTERS",)
"""Variables with the prefix that mean something else (the client's masters)."""

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
ENTRY_MAX_BYTES = 48 * MIB
"""The most that any option lets into one entry of a log: less than a frame of the peer port and a record of
the log take (`wire/peers.py`, `wal/format.py`), whatever options the other servers have."""
ENTRY_SLACK_BYTES = 64 * KIB
"""What an entry has beside the batch that it carries: headers of sessions and operations."""


def _number(least: int, most: int, sentence: str) -> Any:
    return msgspec.Meta(ge=least, le=most, description=sentence)


def _choice(pattern: str, sentence: str) -> Any:
    return msgspec.Meta(pattern=pattern, description=sentence)


class ReplicaOptions(MemoryOptions, frozen=True, kw_only=True):
    """Consensus, log and the replicas' own limits."""

    # ---- consensus
    raft_tick_ms: Annotated[
        int, _number(1, 1000, "Step of Raft's timers; the two times below are rounded up to it.")
    ] = 50
    raft_heartbeat_ms: Annotated[
        int, _number(1, 10_000, "A leader that has nothing else to say speaks this often.")
    ] = 100
    election_timeout_ms: Annotated[
        int,
        _number(10, 60_000, "Least silence of a leader before an election; drawn from [n, 2n)."),
    ] = 500
    raft_quiesce_ms: Annotated[
        int,
        _number(
            0, 3_600_000, "A tablet idle for so long sends no heartbeats until used; 0: never."
        ),
    ] = 500
    raft_append_bytes: Annotated[
        int,
        _number(1, 16 * MIB, "Entries in one message to a follower, one at least (etcd: 1 MiB)."),
    ] = MIB
    raft_inflight_bytes: Annotated[
        int, _number(1, GIB, "Unacknowledged entries on the way to one follower of one tablet.")
    ] = 8 * MIB
    raft_cache_bytes: Annotated[
        int, _number(0, GIB, "Applied entries kept in memory per tablet for slow followers.")
    ] = 4 * MIB

    # ---- write-ahead log
    wal_sync: Annotated[
        str,
        _choice(
            "^(always|interval|never)$",
            "When a write is synced: before it is acknowledged, or later (then: no promises).",
        ),
    ] = "always"
    wal_sync_interval_ms: Annotated[
        int, _number(1, 3_600_000, "With wal_sync=interval, a power cut loses no more than this.")
    ] = 200
    wal_reserve_mb: Annotated[
        int,
        _number(0, 1 << 20, "Free disk space left for flushes: below it, writes are throttled."),
    ] = 64
    wal_cleanup_mb: Annotated[
        int,
        _number(0, 1 << 20, "Of wal_reserve_mb, what the log may use to shrink on a full disk."),
    ] = 16
    wal_segment_mb: Annotated[
        int, _number(1, 1024, "Preallocated length of a log segment (Kudu: 8).")
    ] = 8
    wal_queue_bytes: Annotated[
        int, _number(64 * KIB, GIB, "Entries on their way to the disk, over all tablets.")
    ] = 64 * MIB
    wal_retain_mb: Annotated[
        int,
        _number(0, 1 << 20, "Flushed entries kept for slow followers, shared by all tablets."),
    ] = 256
    wal_retain_for_peers_mb: Annotated[
        int,
        _number(0, 1 << 20, "Log kept for members that are away; those that need more are copied."),
    ] = 1024

    slow_log_factor: Annotated[
        int,
        _number(2, 1_000, "A log whose rounds take so many times a peer's is slow: leaders leave."),
    ] = 10
    slow_log_least_ms: Annotated[
        int, _number(1, 60_000, "A log whose rounds take less is never slow.")
    ] = 20
    slow_log_after_ms: Annotated[
        int, _number(1_000, 60_000, "Rounds of the log are compared over so long a time.")
    ] = 5_000
    slow_log_backoff_ms: Annotated[
        int, _number(0, 3_600_000, "A tablet's leader leaves a slow log no more often than this.")
    ] = 60_000

    # ---- writes
    write_max_bytes: Annotated[
        int, _number(KIB, ENTRY_MAX_BYTES, "Largest write of one batch; a larger one is refused.")
    ] = 16 * MIB
    write_queue_bytes: Annotated[
        int, _number(KIB, 4 * GIB, "Writes in flight per tablet; above it they are throttled.")
    ] = 64 * MIB
    write_timeout_ms: Annotated[
        int, _number(1, 3_600_000, "Deadline of a write that names none.")
    ] = 30_000
    apply_group_ops: Annotated[
        int, _number(1, 1 << 16, "Operations applied at one go (about 2 ms of the apply lane).")
    ] = 512
    apply_group_bytes: Annotated[
        int, _number(1, GIB, "Payload applied at one go, one operation at least.")
    ] = 2 * MIB
    client_result_ttl_s: Annotated[
        int,
        _number(1, 10_000_000, "Results of writes are kept so long for retries, by entry stamps."),
    ] = 600
    client_results_bytes: Annotated[
        int,
        _number(
            64 * KIB,
            GIB,
            "Memory of a tablet's results and clients kept for retries; beyond it the oldest go.",
        ),
    ] = 64 * MIB


class Options(ReplicaOptions, frozen=True, kw_only=True):
    """All tunables of a master or a tablet server; `describe()` lists them with their limits."""

    # ---- storage
    flush_bytes: Annotated[
        int, _number(1, 64 * GIB, "A tablet's memory above this is flushed to disk.")
    ] = 64 * MIB
    flush_log_bytes: Annotated[
        int, _number(1, 64 * GIB, "A tablet whose unflushed log is longer than this is flushed.")
    ] = 64 * MIB
    history_max_age_s: Annotated[
        int, _number(0, 10_000_000_000, "Row versions older than this may be forgotten.")
    ] = 86_400

    # ---- time
    clock_max_ahead_ms: Annotated[
        int,
        _number(
            0,
            4_000_000_000_000,
            "A time that others tell may be so far in the future; a longer step of a clock is a jump.",
        ),
    ] = 10_000
    clock_max_offset_ms: Annotated[
        int,
        _number(1, 86_400_000, "A leader whose clock is further from a majority's hands over."),
    ] = 10_000

    # ---- reads
    scan_batch_bytes: Annotated[
        int, _number(KIB, 16 * MIB, "Size of the batches of a scan that asks for none.")
    ] = MIB
    scan_batch_rows: Annotated[
        int, _number(1, 10_000_000, "Most rows in a batch of a scan that asks for none.")
    ] = 65_536
    scanners_max: Annotated[
        int, _number(1, 1_000_000, "Scans open at a time on one tablet server.")
    ] = 1000
    read_timeout_ms: Annotated[
        int, _number(1, 3_600_000, "Deadline of a read that names none.")
    ] = 30_000

    reader_silent_ms: Annotated[
        int,
        _number(
            100,
            86_400_000,
            "A Flight client that takes nothing for so long loses its stream, and the scan.",
        ),
    ] = 60_000

    # ---- servers
    server_heartbeat_ms: Annotated[
        int, _number(10, 60_000, "A tablet server reports to every master this often.")
    ] = 500
    tserver_unresponsive_ms: Annotated[
        int, _number(100, 3_600_000, "A tablet server silent for longer counts as dead.")
    ] = 5000
    report_batch_tablets: Annotated[
        int, _number(1, 1_000_000, "Tablets that a master takes from a report at one go.")
    ] = 1000
    order_timeout_ms: Annotated[
        int, _number(10, 3_600_000, "Deadline of an order from a master to a tablet server.")
    ] = 10_000
    order_interval_ms: Annotated[
        int, _number(10, 60_000, "A master derives the orders that are due this often.")
    ] = 250
    orders_per_server: Annotated[
        int, _number(1, 1000, "Orders under way from a master to one tablet server.")
    ] = 8
    tablet_creation_timeout_ms: Annotated[
        int,
        _number(
            100, 3_600_000, "A new tablet without a leader for so long is replaced by another one."
        ),
    ] = 30_000
    catalog_timeout_ms: Annotated[
        int, _number(10, 3_600_000, "Deadline of one replication of catalog rows.")
    ] = 10_000
    catalog_batch_bytes: Annotated[
        int, _number(KIB, ENTRY_MAX_BYTES, "Largest batch of catalog rows of one operation.")
    ] = 8 * MIB
    replicas: Annotated[
        int, _number(1, 7, "Copies of each tablet of a table that names no number; odd.")
    ] = 3
    tablets_per_table_max: Annotated[int, _number(1, 1_000_000, "Tablets of one new table.")] = 1000
    locations_ttl_ms: Annotated[
        int, _number(100, 86_400_000, "Clients may keep tablet locations this long.")
    ] = 60_000
    compute_threads: Annotated[
        int, _number(1, 256, "Threads for flushes, compactions and scans.")
    ] = 2

    def __post_init__(self) -> None:
        _check_sizes(self)
        if self.raft_heartbeat_ms >= self.election_timeout_ms:
            raise InvalidArgument(
                f"raft_heartbeat_ms ({self.raft_heartbeat_ms}) must be below election_timeout_ms "
                f"({self.election_timeout_ms}), or every pause starts an election"
            )
        if self.replicas % 2 == 0:
            raise InvalidArgument(f"replicas ({self.replicas}) must be odd, so that majorities are")

    @classmethod
    def load(
        cls,
        toml_path: str | None = None,
        environ: Mapping[str, str] | None = None,
        flags: Mapping[str, Any] | None = None,
    ) -> "Options":
        """Gather the options of a process.

        Args:
            toml_path: a TOML file of `name = value` lines; None: no file.
            environ: environment variables; `NYALA_<NAME>` sets an option.
            flags: by name, from the command line; None values mean "not given".

        Raises:
            InvalidArgument: an unknown name, a value of the wrong type or out of its limits, or a file
                that cannot be read; the message says where it stands and what was meant.
        """
        given: dict[str, tuple[Any, str]] = {}
        if toml_path is not None:
            for name, value in _read_toml(toml_path).items():
                given[_known(name, toml_path)] = (value, toml_path)
        for variable, text in sorted((environ or {}).items()):
            if variable.startswith(ENVIRONMENT_PREFIX) and variable not in NOT_OPTIONS:
                name = variable.removeprefix(ENVIRONMENT_PREFIX).lower()
                given[_known(name, f"the environment variable {variable}")] = (text, variable)
        for name, value in (flags or {}).items():
            if value is not None:
                where = f"the flag --{name.replace('_', '-')}"
                given[_known(name, where)] = (value, where)
        checked = {name: _convert(name, value, where) for name, (value, where) in given.items()}
        return cls(**checked)


@dataclass(frozen=True, slots=True)
class Described:
    """One option as the docs and `nyala config list` show it.

    Attributes:
        name: as in files and, upper-cased after `NYALA_`, in the environment.
        default: its value when nobody sets it.
        limits: "least..most", or the pattern of the choices.
        sentence: what it is for.
    """

    name: str
    default: Any
    limits: str
    sentence: str


def describe() -> list[Described]:
    """Return every option, in the order in which they stand here."""
    found = []
    for field in msgspec.structs.fields(Options):
        meta = _meta(field.name)
        limits = meta.pattern.strip("^$()") if meta.pattern else f"{meta.ge}..{meta.le}"
        assert meta.description, f"option {field.name} has no sentence"
        found.append(Described(field.name, field.default, limits, meta.description))
    return found


_HINTS = get_type_hints(Options, include_extras=True)


def _meta(name: str) -> msgspec.Meta:
    hint = _HINTS[name]
    assert get_origin(hint) is Annotated, f"option {name} has no limits"
    meta = get_args(hint)[1]
    assert isinstance(meta, msgspec.Meta), f"option {name} has no limits"
    return meta


def _check_sizes(options: Options) -> None:
    """Refuse limits that do not fit each other: what one lets in, another would never let through.

    Raises:
        InvalidArgument: names both options, and what to change.
    """
    for queue, inner in (
        ("write_queue_bytes", ("write_max_bytes",)),
        ("write_queue_total_bytes", ("write_max_bytes", "catalog_batch_bytes")),
        ("wal_queue_bytes", ("write_max_bytes", "catalog_batch_bytes", "raft_append_bytes")),
    ):
        room = getattr(options, queue)
        for name in inner:
            needed = getattr(options, name) + ENTRY_SLACK_BYTES * (queue == "wal_queue_bytes")
            if needed > room:
                raise InvalidArgument(
                    f"{queue} ({room}) has no room for {name} ({getattr(options, name)}): what is so large "
                    f"would wait for ever behind others; set {queue} to {needed} or more, or lower {name}"
                )


def _known(name: str, where: str) -> str:
    if name in Options.__struct_fields__:
        return name
    near = difflib.get_close_matches(name, Options.__struct_fields__, 1)
    hint = f"; did you mean {near[0]}?" if near else "; `nyala config list` names them all"
    raise InvalidArgument(f"{where} names an unknown option {name!r}{hint}")


def _convert(name: str, value: Any, where: str) -> Any:
    try:
        return msgspec.convert(value, _HINTS[name], strict=not isinstance(value, str))
    except msgspec.ValidationError as err:
        meta = _meta(name)
        allowed = meta.pattern.strip("^$()") if meta.pattern else f"{meta.ge}..{meta.le}"
        raise InvalidArgument(
            f"{where} sets {name} to {value!r}, which is not allowed ({err}); allowed: {allowed}"
        ) from err


def _read_toml(path: str) -> dict[str, Any]:
    try:
        with open(path, "rb") as file:
            return tomllib.load(file)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as err:
        raise InvalidArgument(f"the options file {path} cannot be read: {err}") from err
