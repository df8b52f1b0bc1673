"""Certificates of users that need the old authority, of those that the authority's folder lists. Pure."""

from collections.abc import Iterable, Sequence

from nyala.common.errors import InvalidArgument, NyalaError
from nyala.master.access.authorities import RotationStep, authorities_operation, id_of, step_of
from nyala.master.catalog.catalog import Catalog
from nyala.master.catalog.plan import AccessChanges, CatalogPlan
from nyala.master.ddl.operation import CatalogOperation
from nyala.security.identity import BACKDATED_S, PeerIdentity
from nyala.security.principal import AccessRole, Principal
from nyala.security.revocation import Revocations
from nyala.wire.proto import access_pb2 as pb
from nyala.wire.proto import catalog_pb2 as cat

MAX_RENEWED = 20_000
"""Serial numbers that are noted during a rotation; users above it count as not renewed."""
_SERIAL_BYTES = 20


def needing_old(
    record: cat.AuthoritiesRecord | None,
    issued: Iterable[pb.IssuedCertificate],
    revoked: Revocations,
    now_s: int,
) -> list[pb.IssuedCertificate]:
    """Return the certificates that the retirement of the old authority would end.

    They are valid, of an old authority, were not issued again, and are not revoked.

    Args:
        record: the authorities; None: the first one was never replaced.
        issued: certificates of users.
        revoked: the list of revoked certificates.
        now_s: time of the leader master, in seconds since the epoch.

    Raises:
        InvalidArgument: a serial number is none.
    """
    if record is None or step_of(record) is not RotationStep.ISSUING:
        return []
    old = {id_of(certificate) for certificate in record.certificates[1:]}
    renewed = set(record.renewed)
    return [
        entry
        for entry in issued
        if entry.authority in old
        and entry.ends_s > now_s
        and _packed(_serial_of(entry)) not in renewed
        and not _is_revoked(entry, revoked)
    ]


def renewed(serial: int) -> CatalogOperation:
    """Return the operation that notes that a certificate was issued again; nothing without an old one.

    Args:
        serial: serial number of the certificate.
    """

    def plan(catalog: Catalog) -> CatalogPlan:
        known, packed = catalog.access.authorities, _packed(serial)
        if known is None or step_of(known) is not RotationStep.ISSUING:
            return CatalogPlan()
        if packed in known.renewed or len(known.renewed) >= MAX_RENEWED:
            return CatalogPlan()
        changed = cat.AuthoritiesRecord()
        changed.CopyFrom(known)
        changed.renewed.append(packed)
        return CatalogPlan(access=AccessChanges(authorities=changed))

    return authorities_operation("note a renewed certificate", plan)


def texts(left: Sequence[pb.IssuedCertificate]) -> list[str]:
    """Return what to call certificates in messages."""
    return [f"{entry.user} (serial number {entry.serial})" for entry in left]


def _serial_of(entry: pb.IssuedCertificate) -> int:
    try:
        found = int(entry.serial, 16)
    except ValueError:
        found = 0
    if not 0 < found < 1 << 8 * _SERIAL_BYTES:
        raise InvalidArgument(
            f"{entry.serial[:80]!r} in the list of issued certificates is no serial number in hex"
        )
    return found


def _packed(serial: int) -> bytes:
    return serial.to_bytes(_SERIAL_BYTES, "big")


def _is_revoked(entry: pb.IssuedCertificate, revoked: Revocations) -> bool:
    holder = Principal("", AccessRole.USER, entry.user)
    begins_s = entry.issued_s - BACKDATED_S
    try:
        revoked.check(PeerIdentity(holder, _serial_of(entry), begins_s, entry.ends_s))
    except NyalaError:
        return True
    return False
