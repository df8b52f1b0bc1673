"""What the options mean to each part of a master."""

from dataclasses import dataclass

from nyala.common.options import Options
from nyala.master.ddl.table_spec import WITNESS_FIRST
from nyala.master.leader import LeadingOptions
from nyala.master.orders.dispatcher import Pace
from nyala.master.repair.repairer import RepairLimits
from nyala.master.services.tables import ServiceOptions


@dataclass(frozen=True, slots=True)
class Settings:
    """The options, as the parts take them.

    Attributes:
        unresponsive_us: a server that was silent for so long is not alive.
        ahead_us: a server whose time is further ahead has a wrong clock.
        heartbeat_ms: between two looks at the other masters.
        timeout_ms: of a question to another server.
        report_batch: tablets of a report in one catalog write.
        leading: of the leader's role.
        service: of the control plane.
    """

    unresponsive_us: int
    ahead_us: int
    heartbeat_ms: int
    timeout_ms: int
    report_batch: int
    leading: LeadingOptions
    service: ServiceOptions

    @classmethod
    def of(cls, options: Options) -> "Settings":
        """Return what some options mean."""
        return cls(
            unresponsive_us=options.tserver_unresponsive_ms * 1000,
            ahead_us=2 * options.clock_max_ahead_ms * 1000,
            heartbeat_ms=options.server_heartbeat_ms,
            timeout_ms=2 * options.server_heartbeat_ms,
            report_batch=options.report_batch_tablets,
            leading=LeadingOptions(
                look_ms=options.raft_tick_ms,
                fresh_ms=options.server_heartbeat_ms,
                pace=Pace(
                    interval_ms=options.order_interval_ms,
                    timeout_ms=options.order_timeout_ms,
                    per_server=options.orders_per_server,
                    creation_us=options.tablet_creation_timeout_ms * 1000,
                    history_s=options.history_max_age_s,
                    repair=RepairLimits(
                        on=options.repair == "on",
                        interval_ms=options.repair_interval_ms,
                        failed_us=options.member_failed_after_ms * 1000,
                        per_server=options.repairs_per_server,
                        most=options.repairs_max,
                    ),
                ),
            ),
            service=ServiceOptions(
                max_tablets=options.tablets_per_table_max,
                default_replicas=options.replicas,
                warm_up_ms=2 * options.server_heartbeat_ms,
                patience_ms=options.tserver_unresponsive_ms,
                look_ms=options.raft_tick_ms,
                locations_ttl_ms=options.locations_ttl_ms,
                write_max_bytes=options.write_max_bytes,
                table_options=TABLE_OPTIONS,
            ),
        )


TABLE_OPTIONS = ("compression", "history_max_age_s", WITNESS_FIRST)
"""What `create_table(options=...)` may hold."""
