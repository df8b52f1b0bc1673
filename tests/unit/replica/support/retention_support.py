"""A second group with so many writes that the shared log is replaced, beside an impaired one."""

import msgspec

from nyala.common.ids import TabletId
from nyala.common.options import Options

OTHER = TabletId("b" * 32)
BIG = b"k" * 200_000 + b" 1"
SMALL = Options(wal_segment_mb=1, wal_retain_mb=2, flush_log_bytes=1 << 20, flush_bytes=1 << 20)
STRICT = Options.load(
    flags={**msgspec.to_builtins(SMALL), "wal_retain_for_peers_mb": 0, "raft_cache_bytes": 0}
)


async def busy(fleet, writes=60, on=(0, 1)):
    """Write so much to another group that the log is replaced several times."""
    for _ in range(writes // 20):
        for _ in range(20):
            await fleet.write(BIG, group=OTHER)
        await fleet.pass_ms(2500)
    return [fleet.host(n).wal.stats().segments for n in on]


async def beside(fleet, on=(0, 1)):
    for n in on:
        await fleet.create(n, OTHER, fleet.configuration(on))
    await fleet.leader(OTHER)
