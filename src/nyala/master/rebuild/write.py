"""Writing of a rebuilt catalog into the empty data directory of a new master.

Until the end the directory says that its master has no catalog yet: a master does not start with a part of
one. The new group of masters has one member, and a term above any that masters of the cluster have had.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from random import Random

from nyala.common.errors import InvalidArgument, NotLeader, TimedOut, Unavailable
from nyala.common.ids import SYS_CATALOG, OpId, ServerUuid
from nyala.datadir.identity import CLOCK_FILE
from nyala.datadir.instance import format_instance
from nyala.env.clock import random_id, write_ceiling
from nyala.env.env import Env
from nyala.env.files import Files
from nyala.env.tasks import Lane
from nyala.master.catalog import sys_catalog
from nyala.master.catalog.catalog import Catalog
from nyala.master.catalog.records.rows import CatalogRow
from nyala.master.catalog.sys_catalog import SysCatalog
from nyala.master.rebuild.plan import RebuildPlan
from nyala.offline import rewrite_config
from nyala.offline.copy import StoppedServer
from nyala.raft import membership
from nyala.raft.membership import Configuration, Member
from nyala.raft.messages import HardState
from nyala.replica.replica import Replica
from nyala.tablet.tablet import Tablet

ROWS = 500
"""Number of rows in one batch; a large row has a batch of its own."""
COMMON_BYTES = 8 << 10
"""Size of a row's record in bytes up to which it is written together with others."""
ELECTION_MS = 30_000
"""Time in which the only member of the new group has to become its leader, in milliseconds."""
POLL_MS = 20
CLIENT_ID_BYTES = 16
"""Length of the id of the writer of the rows."""


async def write(
    server: StoppedServer, plan: RebuildPlan, member: Member, accepted: Sequence[Sequence[str]]
) -> Configuration:
    """Write a catalog; durable on return.

    Args:
        server: the directory, formatted by `prepare`.
        plan: the catalog.
        member: the new master, with its addresses.
        accepted: lists of addresses with which the master may be started, besides its own.

    Returns:
        The configuration of the new group.

    Raises:
        NyalaError, OSError: the directory stays incomplete, and no master starts with it.
    """
    env, directory = server.env, server.directory
    draft = Catalog().draft(plan.catalog)
    identity = server.identity()
    identity.open()
    first = membership.initial([member])
    host = await server.open(identity)
    try:
        create = partial(Tablet.create, env.files, info=sys_catalog.tablet_info())
        replica = await host.create_replica(SYS_CATALOG, first, create)
        await _wait_for_leader(env, replica)
        await _replicate(server, replica, draft.rows)
        last = replica.status().last
    finally:
        await host.close()
    term = env.clock.wall_us() // 1_000_000
    assert term > last.term, f"{term} is no term after {last}"
    config = replace(first, id=OpId(term, last.index))
    await env.tasks.run(
        Lane.DISK, rewrite_config.put, env.files, directory, SYS_CATALOG, HardState(term), config
    )
    for addresses in (*accepted, [member.address]):
        await identity.learn(masters=addresses)
    await identity.learn(cluster_id=plan.cluster_id, initialised=True)
    return config


def check_empty(files: Files, directory: str) -> None:
    """Check that a directory is missing or empty. Blocking.

    Raises:
        InvalidArgument: it has content.
    """
    names = files.list(directory) if files.exists(directory) else []
    if names:
        raise InvalidArgument(
            f"the directory {directory} is not empty (it holds {names[0]}), and a rebuilt catalog needs an "
            "empty one: if it is what is left of a lost master, or of an interrupted unsafe_rebuild, move "
            "its content away; if it has a catalog, start the master with it instead"
        )


def prepare(files: Files, directory: str, rng: Random, time: int) -> ServerUuid:
    """Format an empty directory for a master that may not start yet; return its uuid. Blocking.

    Args:
        files: the file system; the caller releases the lock of the directory.
        directory: the directory.
        rng: makes the uuid.
        time: hybrid time above which the master's clock begins.

    Raises:
        InvalidArgument: the directory has content.
    """
    check_empty(files, directory)
    uuid = ServerUuid(random_id(rng))
    made, _ = format_instance(files, directory, "master", uuid, replaces=True)
    write_ceiling(files, f"{directory}/{CLOCK_FILE}", time)
    return made.uuid


async def _wait_for_leader(env: Env, replica: Replica) -> None:
    """Wait until the only member of a group leads it.

    Raises:
        TimedOut: it does not within `ELECTION_MS`.
    """
    end_us = env.clock.monotonic_us() + ELECTION_MS * 1000
    while True:
        try:
            await replica.read_point(None, ELECTION_MS)
        except (NotLeader, Unavailable) as err:
            if env.clock.monotonic_us() > end_us:
                raise TimedOut(f"the new catalog has no leader: {err.message}") from err
            await env.tasks.sleep_ms(POLL_MS)
        else:
            return


async def _replicate(server: StoppedServer, replica: Replica, rows: Sequence[CatalogRow]) -> None:
    """Write all rows, in batches; the group's only member acknowledges them."""
    machine = replica.machine
    assert isinstance(machine, Tablet), machine
    options = server.options
    catalog = SysCatalog(
        server.env, replica, machine,
        client_id=server.env.random.randbytes(CLIENT_ID_BYTES),
        timeout_ms=options.catalog_timeout_ms,
        max_batch_bytes=min(options.catalog_batch_bytes, options.write_max_bytes),
    )  # fmt: skip
    small = [row for row in rows if len(row.body) <= COMMON_BYTES]
    for begin in range(0, len(small), ROWS):
        await catalog.replicate(small[begin : begin + ROWS])
    for row in rows:
        if len(row.body) > COMMON_BYTES:
            await catalog.replicate([row])
