"""Options of a server, with units and defaults, read from a file, the environment and flags.

`Options` is immutable, created at process start and passed on. Precedence: flag, environment
(`NYALA_<NAME>`), TOML file, default.
"""

import difflib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, get_type_hints

import msgspec

from nyala.common.errors import InvalidArgument
from nyala.common.option_limits import ENTRY_MAX_BYTES, GIB, KIB, LIMITS, MIB

__all__ = [
    "ENTRY_MAX_BYTES", "ENTRY_SLACK_BYTES", "GIB", "KIB", "MIB", "Described", "Options", "describe",
]  # fmt: skip

ENVIRONMENT_PREFIX = "NYALA_"
NOT_OPTIONS = ("NYALA_MASTERS", "NYALA_CA", "NYALA_CERT", "NYALA_KEY")
"""Environment variables with the prefix that are not options (the client's masters)."""

ENTRY_SLACK_BYTES = 64 * KIB
"""Overhead of an entry beside its batch, in bytes: headers of sessions and operations."""


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a master or a tablet server; `option_limits` has limits and descriptions."""

    # ---- copies of replicas
    copy_rate_bytes: int = 0
    copy_busy_rate_bytes: int = 100_000_000
    copy_sessions_max: int = 10
    copy_staged_bytes: int = 128 << 30
    copy_session_ttl_ms: int = 60_000
    copy_retry_ms: int = 60_000
    copy_wait_ms: int = 600_000
    copy_chunk_bytes: int = 4 << 20

    # ---- repair of tablets
    repair: str = "on"
    repair_interval_ms: int = 1000
    member_failed_after_ms: int = 300_000
    repairs_per_server: int = 4
    repairs_max: int = 64

    # ---- memory (docs/internals/memory.md)
    memory_budget_bytes: int = 4 * GIB
    raft_cache_total_bytes: int = 256 * MIB
    write_queue_total_bytes: int = 256 * MIB
    scan_memory_bytes: int = GIB
    catalog_flush_bytes: int = 4 * MIB
    catalog_history_max_age_s: int = 60

    # ---- consensus
    raft_tick_ms: int = 50
    raft_heartbeat_ms: int = 100
    election_timeout_ms: int = 500
    raft_quiesce_ms: int = 500
    read_lease_ms: int = 100
    raft_append_bytes: int = MIB
    raft_inflight_bytes: int = 8 * MIB
    raft_cache_bytes: int = 4 * MIB

    # ---- write-ahead log
    wal_sync: str = "always"
    wal_sync_interval_ms: int = 200
    wal_reserve_mb: int = 64
    wal_cleanup_mb: int = 16
    wal_segment_mb: int = 8
    wal_queue_bytes: int = 64 * MIB
    wal_retain_mb: int = 256
    wal_retain_for_peers_mb: int = 1024

    # ---- slow logs
    slow_log_factor: int = 10
    slow_log_least_ms: int = 20
    slow_log_after_ms: int = 5_000
    slow_log_backoff_ms: int = 60_000

    # ---- writes
    write_max_bytes: int = 16 * MIB
    write_queue_bytes: int = 64 * MIB
    write_timeout_ms: int = 30_000
    apply_group_ops: int = 512
    apply_group_bytes: int = 2 * MIB
    client_result_ttl_s: int = 600
    client_results_bytes: int = 64 * MIB

    # ---- staged transactions
    txn_stage_bytes: int = 2 * GIB
    txn_stage_total_bytes: int = 8 * GIB

    # ---- storage
    flush_bytes: int = 64 * MIB
    flush_log_bytes: int = 64 * MIB
    history_max_age_s: int = 86_400

    # ---- time
    clock_max_ahead_ms: int = 10_000
    clock_max_offset_ms: int = 10_000

    # ---- reads
    scan_batch_bytes: int = 4 * MIB
    scan_batch_rows: int = 65_536
    scanners_max: int = 1000
    read_timeout_ms: int = 30_000
    reader_silent_ms: int = 60_000

    # ---- servers
    server_heartbeat_ms: int = 500
    tserver_unresponsive_ms: int = 5000
    report_batch_tablets: int = 1000
    order_timeout_ms: int = 10_000
    order_interval_ms: int = 250
    orders_per_server: int = 8
    tablet_creation_timeout_ms: int = 30_000
    catalog_timeout_ms: int = 10_000
    catalog_batch_bytes: int = 16 * MIB
    replicas: int = 3
    tablets_per_table_max: int = 1000
    locations_ttl_ms: int = 60_000
    txn_timeout_s: int = 300
    txn_prepare_timeout_ms: int = 1000
    job_ledger_days: int = 365
    server_certificate_s: int = 30 * 86_400
    user_certificate_s: int = 12 * 3_600
    jwt_issuers: str = ""
    compute_threads: int = 2

    # ---- shares of each user
    user_scans_max: int = 800
    user_write_bytes: int = 192 * MIB
    user_calls_max: int = 4096
    user_streams_max: int = 768

    def __post_init__(self) -> None:
        _check_sizes(self)
        if self.raft_heartbeat_ms >= self.election_timeout_ms:
            raise InvalidArgument(
                f"raft_heartbeat_ms ({self.raft_heartbeat_ms}) must be below election_timeout_ms "
                f"({self.election_timeout_ms}), or a single late heartbeat starts an election; "
                "raise election_timeout_ms or lower raft_heartbeat_ms"
            )
        if self.replicas % 2 == 0:
            raise InvalidArgument(
                f"replicas ({self.replicas}) must be odd: an even number tolerates no more "
                "failures than one replica less; choose an odd number"
            )

    @classmethod
    def load(
        cls,
        toml_path: str | None = None,
        environ: Mapping[str, str] | None = None,
        flags: Mapping[str, Any] | None = None,
    ) -> "Options":
        """Load the options of a process.

        Args:
            toml_path: TOML file of `name = value` lines; None: none.
            environ: environment variables; `NYALA_<NAME>` sets an option.
            flags: by name, from the command line; a value of None is ignored.

        Raises:
            InvalidArgument: an unknown name, a value of the wrong type or outside its limits, or an
                unreadable file; the message names the source and suggests a name.
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
    """Description of one option, for the docs and `nyala config list`.

    Attributes:
        name: as in files; in the environment in upper case after `NYALA_`.
        default: value if not set.
        limits: "least..most", or the pattern of the choices.
        description: its description.
    """

    name: str
    default: Any
    limits: str
    description: str


def describe() -> list[Described]:
    """Return the description of each option, in the order of `Options`."""
    found = []
    for field in msgspec.structs.fields(Options):
        meta = LIMITS[field.name]
        assert meta.description, f"option {field.name} has no sentence"
        found.append(Described(field.name, field.default, _allowed(meta), meta.description))
    return found


def _allowed(meta: msgspec.Meta) -> str:
    """Return what values an option may have, in words."""
    if meta.max_length is not None:
        return f"text of at most {meta.max_length} characters"
    return meta.pattern.strip("^$()") if meta.pattern else f"{meta.ge}..{meta.le}"


_HINTS = get_type_hints(Options)
assert list(_HINTS) == list(LIMITS), "Options and LIMITS name other options, or in another order"


def _check_sizes(options: Options) -> None:
    """Reject limits that contradict each other: a request that one option allows could never pass another.

    Raises:
        InvalidArgument: the message names both options and the change to make.
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
                    f"{queue} ({room}) is smaller than {name} ({getattr(options, name)}) needs: a "
                    "request of that "
                    f"size would wait forever; set {queue} to {needed} or more, or lower {name}"
                )


def _known(name: str, where: str) -> str:
    if name in Options.__struct_fields__:
        return name
    near = difflib.get_close_matches(name, Options.__struct_fields__, 1)
    hint = f"; did you mean {near[0]}?" if near else "; `nyala config list` prints all options"
    raise InvalidArgument(f"{where} names an unknown option {name!r}{hint}")


def _convert(name: str, value: Any, where: str) -> Any:
    hint = Annotated[_HINTS[name], LIMITS[name]]  # type: ignore[valid-type]
    try:
        return msgspec.convert(value, hint, strict=not isinstance(value, str))
    except msgspec.ValidationError as err:
        allowed = _allowed(LIMITS[name])
        raise InvalidArgument(
            f"{where} sets {name} to {value!r}, which is not allowed ({err}); allowed are: {allowed}"
        ) from err


def _read_toml(path: str) -> dict[str, Any]:
    try:
        with open(path, "rb") as file:
            return tomllib.load(file)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as err:
        raise InvalidArgument(f"the options file {path} cannot be read: {err}") from err
