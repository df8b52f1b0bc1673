"""Reconciliation of the tablets of one table or journal: its definition, and its ranges. Pure.

Tablets may have applied different versions of the definition; the highest counts, and the others get it as
an alteration. The table's ranges are those of its tablets: no tablet knows which ranges the table has.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise, product

from nyala.common.ids import TableId
from nyala.common.partitioning.partition import (
    EVERYTHING,
    KeyRange,
    PartitionSchema,
    TabletPartition,
)
from nyala.machines import registry
from nyala.machines.kind import MachineKind
from nyala.master.ddl.table_spec import MAX_REPLICAS
from nyala.master.rebuild.evidence import Findings
from nyala.master.rebuild.tablets import FoundTablet
from nyala.wire import convert
from nyala.wire.proto import nyala_pb2 as pb

VERSION_GAP = 1_000
"""Number of versions of a definition that are skipped.

An alteration that the lost masters had begun may still be applied by a tablet whose leader has it in its log.
Its version and the ids of its columns are then those of no later alteration.
"""
COLUMN_GAP = 1_000
"""Number of column ids that are skipped, for the same reason."""


@dataclass(frozen=True, slots=True)
class FoundTable:
    """One table or journal, as its tablets show it.

    Attributes:
        id: of the table.
        kind: of its tablets.
        spec: its definition, with the next version, and with the ranges of its tablets.
        applied: the version that every tablet has applied.
        tablets: of the ranges that it has.
        dropped: of dropped ranges.
        missing: partitions of its ranges that no tablet has.
    """

    id: TableId
    kind: MachineKind
    spec: pb.TableSpec
    applied: int
    tablets: tuple[FoundTablet, ...]
    dropped: tuple[FoundTablet, ...]
    missing: tuple[TabletPartition, ...]

    @property
    def every_tablet(self) -> tuple[FoundTablet, ...]:
        """All tablets that there are."""
        return (*self.tablets, *self.dropped)

    def __str__(self) -> str:
        return f"{self.kind.name} {self.spec.name!r} ({self.id})"


def found_table(
    table: str, tablets: Sequence[FoundTablet], findings: Findings
) -> FoundTable | None:
    """Return a table of which there are tablets; None: it has no range left, or cannot be described.

    Args:
        table: its id.
        tablets: its tablets, one at least.
        findings: gets what the tablets contradict, and what is missing.
    """
    newest = max(tablets, key=lambda t: (t.version, t.applied))
    spec = pb.TableSpec()
    spec.CopyFrom(newest.definition.spec)
    kind = registry.kind_of(spec.kind)
    label = f"{kind.name} {spec.name!r} ({table})"
    base = convert.partition_schema_from_proto(spec.partition)
    for other in tablets:
        same = convert.partition_schema_from_proto(other.definition.spec.partition)
        levels = (same.hash, same.range_column_ids, same.version)
        if other.version == newest.version and _columns(other) != _columns(newest):
            findings.refused.append(
                f"{label}: {other} and {newest} have different definitions of version {newest.version}; "
                f"leave the wrong one out with --without {other.id}"
            )
        if levels != (base.hash, base.range_column_ids, base.version):
            findings.refused.append(
                f"{label}: {other} and {newest} are partitioned differently; leave the wrong one out with "
                f"--without {other.id}"
            )
            return None
    retired = [t for t in tablets if t.retired_at]
    live = [t for t in tablets if not t.retired_at]
    ending = [t for t in live if _is_ending(t, retired)]
    live = [t for t in live if t not in ending]
    for tablet in ending:
        findings.notes.append(
            f"{label}: the range of {tablet} was being dropped: the other tablets of it have ended, and the "
            "drop is completed"
        )
    _refuse_doubles(label, live, findings)
    if not live:
        findings.losses.append(f"{label} has no tablet but those of dropped ranges: it is left out")
        return None
    missing = _missing(base, live)
    if missing:
        findings.losses.append(
            f"{label} lacks {len(missing)} of its tablets: no replica of them is on any server that was "
            "asked; they are made again, empty, and their rows are lost"
        )
    _complete(spec, base, kind, tablets, live)
    _note_groups(label, tablets, findings)
    return FoundTable(
        TableId(table),
        kind,
        spec,
        min(t.version for t in tablets),
        tuple(live),
        (*retired, *ending),
        missing,
    )


def _columns(tablet: FoundTablet) -> tuple[object, ...]:
    spec = tablet.definition.spec
    return spec.name, spec.schema.SerializeToString(deterministic=True), dict(spec.options)


def _is_ending(tablet: FoundTablet, retired: Sequence[FoundTablet]) -> bool:
    """Return whether a tablet is of a range whose drop other tablets of it have applied already.

    A tablet of a range that was added again in the same place was created with a later version.
    """
    return any(
        t.partition.range == tablet.partition.range
        and t.retired_by
        and not _has_followed(tablet, t.retired_by)
        for t in retired
    )


def _has_followed(tablet: FoundTablet, version: int) -> bool:
    """Return whether a tablet has followed a change of its table's ranges."""
    return any(r.version >= version for r in tablet.definition.ranges)


def _refuse_doubles(label: str, live: Sequence[FoundTablet], findings: Findings) -> None:
    """Name tablets of the same keys: only the lost catalog said which one had replaced the other."""
    ordered = sorted(
        live, key=lambda t: (t.partition.buckets, t.partition.range.lower or b"", t.id)
    )
    for one, other in pairwise(ordered):
        same_buckets = one.partition.buckets == other.partition.buckets
        if same_buckets and _overlap(one.partition.range, other.partition.range):
            findings.refused.append(
                f"{label}: {one} and {other} have the same keys; the lost catalog had replaced one of "
                f"them: leave it out with --without {one.id} or --without {other.id}"
            )


def _overlap(one: KeyRange, other: KeyRange) -> bool:
    below = one.upper is not None and other.lower is not None and one.upper <= other.lower
    above = other.upper is not None and one.lower is not None and other.upper <= one.lower
    return not below and not above


def _missing(base: PartitionSchema, live: Sequence[FoundTablet]) -> tuple[TabletPartition, ...]:
    """Return the partitions of the ranges of some tablets that none of these has."""
    have = {t.partition for t in live}
    buckets = list(product(*(range(level.buckets) for level in base.hash)))
    wanted = (TabletPartition(b, r) for r in _ranges(live) for b in buckets)
    return tuple(p for p in wanted if p not in have)


def _ranges(live: Sequence[FoundTablet]) -> list[KeyRange]:
    """Return the ranges of tablets, in their order."""
    found = {t.partition.range for t in live}
    return sorted(found, key=lambda r: (r.lower is not None, r.lower or b""))


def _complete(
    spec: pb.TableSpec,
    base: PartitionSchema,
    kind: MachineKind,
    tablets: Sequence[FoundTablet],
    live: Sequence[FoundTablet],
) -> None:
    """Set in a definition what no single tablet knows: version, ids, ranges, number of replicas.

    Args:
        spec: definition of the newest tablet; changed in place.
        base: its partition schema.
        kind: of the table.
        tablets: every tablet.
        live: those of the ranges that the table has.
    """
    spec.schema.version += VERSION_GAP
    count = Counter(t.voters for t in live).most_common(1)[0][0]
    spec.replicas = min(MAX_REPLICAS, count + 1 - count % 2)
    if kind is not registry.TABLE:
        spec.ClearField("partition")
        return
    following = max(t.definition.spec.schema.next_column_id for t in tablets)
    spec.schema.next_column_id = following + COLUMN_GAP
    spec.ranges_version = spec.schema.version
    ranges = _ranges(live)
    del spec.partition.ranges[:]
    if ranges != [EVERYTHING]:
        spec.partition.ranges.extend(map(convert.range_to_proto, ranges))


def _note_groups(label: str, tablets: Sequence[FoundTablet], findings: Findings) -> None:
    for tablet in tablets:
        if 2 * tablet.working <= tablet.voters:
            findings.notes.append(
                f"{label}: {tablet} has {tablet.working} of {tablet.voters} voters that work, and cannot be "
                "written until a majority does (docs/operate/lost-majority.md)"
            )
