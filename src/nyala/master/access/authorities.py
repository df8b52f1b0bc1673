"""Replacement of the certificate authority, in the catalog: add, issue, retire. Pure.

1. The new authority is added to those that are trusted; the old one issues.
2. Once every live server trusts it, it issues; servers renew their certificates.
3. The old one is retired, by an administrator. Before step 2, the replacement may be aborted instead.

The record says which step was reached, so that each leader master goes on from there.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from nyala.common.errors import AlreadyPresent, Forbidden, InvalidArgument, Unavailable
from nyala.master.access.tokens import ACCESS_LOCK
from nyala.master.access.users import certificate_us
from nyala.master.catalog.catalog import Catalog
from nyala.master.catalog.plan import AccessChanges, CatalogPlan, Scope
from nyala.master.config import MasterConfig
from nyala.master.ddl.operation import CatalogOperation
from nyala.security.authorities import bundle
from nyala.security.authorities.bundle import Successor
from nyala.security.authority import Authority
from nyala.wire.proto import catalog_pb2 as cat

MAX_LINKS = 8
"""Links that are kept, of the newest authorities."""
MAX_ABORTED = 32
"""Aborted replacements whose keys masters are told to remove, of the newest."""
NOT_RUNNING = (
    "a certificate of the new authority, as far as this leader master knows: it is not running, and without "
    "one it cannot join the cluster again; start it before"
)
"""State of a server that has not reported, for `lacks`."""


class RotationStep(Enum):
    """RotationStep of a replacement."""

    NONE = "no replacement is under way"
    ADDED = "the new authority is trusted, and the old one issues certificates"
    ISSUING = "the new authority issues certificates, and the old one is still trusted"


def step_of(record: cat.AuthoritiesRecord | None) -> RotationStep:
    """Return the step that was reached."""
    if record is None or len(record.certificates) == 1:
        return RotationStep.NONE
    return RotationStep.ISSUING if record.issuing_us else RotationStep.ADDED


def newest_of(record: cat.AuthoritiesRecord) -> bytes:
    """Return the certificate of the newest authority, as PEM."""
    return record.certificates[-1 if step_of(record) is RotationStep.ADDED else 0]


def id_of(certificate: bytes) -> str:
    """Return the key id of an authority, of its certificate as PEM."""
    return bundle.key_id(bundle.parse(certificate)[0])


def authority_of(config: MasterConfig, catalog: Catalog) -> Authority:
    """Return the authority that issues, with the key that this master has.

    Raises:
        Forbidden: the master does not have its key.
    """
    record, keys = catalog.access.authorities, config.keys
    found = None
    if keys is not None and record is None:
        found = keys.first
    elif keys is not None and record is not None:
        links = [c for link in record.links for c in bundle.parse(link)]
        found = keys.authority(bundle.parse(record.certificates[0])[0], links)
    if found is None:
        raise Forbidden(
            "the leader master cannot sign certificates, since it does not have the key of the "
            "certificate authority; put ca.key beside ca.crt on each master, and start it again"
        )
    return found


@dataclass(frozen=True, slots=True)
class Report:
    """Authorities that a server trusts, and keys that it has, as it reported.

    Attributes:
        role: "master" or "tserver".
        address: its public address.
        digest: of the certificates that it trusts.
        issuer: key id of the authority of its own certificate.
        keys: ids of the keys of authorities that it has.
    """

    role: str
    address: str
    digest: bytes = b""
    issuer: str = ""
    keys: tuple[str, ...] = ()


def lacks(record: cat.AuthoritiesRecord, report: Report) -> str:
    """Return what a server lacks for the next step; empty: nothing."""
    if not report.digest:
        return "a report: it has not asked this leader master yet"
    if report.digest != bundle.digest(b"".join(record.certificates)):
        return "the certificates of the authorities: its ca.crt is older"
    newest = id_of(newest_of(record))
    if report.keys and newest not in report.keys:
        return "the key of the new authority"
    if step_of(record) is not RotationStep.ADDED and report.issuer != newest:
        return (
            "a certificate of the new authority: it renews one that names its uuid, and for another one use "
            "nyala cert server"
        )
    return ""


def not_running(
    record: cat.AuthoritiesRecord,
    expected: Mapping[str, Report],
    running: Collection[str],
    heard: Mapping[str, Report],
) -> dict[str, tuple[Report, str]]:
    """Return the servers that the retirement of the old authority would lock out while they are down.

    Args:
        record: the authorities.
        expected: servers of the cluster, by uuid.
        running: uuids of those that run.
        heard: last report of each server, as far as there is one.
    """
    found: dict[str, tuple[Report, str]] = {}
    for uuid in sorted(expected.keys() - set(running)):
        if uuid not in heard or lacks(record, heard[uuid]):
            found[uuid] = expected[uuid], NOT_RUNNING
    return found


def begin(before: Authority, made: Successor, now_us: int, by: str) -> CatalogOperation:
    """Return the operation that adds a new authority.

    Its plan raises AlreadyPresent during a replacement.

    Args:
        before: the authority that issues.
        made: the new one, whose key a majority of masters has.
        now_us: time of the leader master, since the epoch.
        by: who replaces it.
    """

    def plan(catalog: Catalog) -> CatalogPlan:
        known = catalog.access.authorities
        check_none(known)
        if known is not None and known.certificates[0] != before.certificate_pem:
            raise Unavailable("the authority was replaced meanwhile; look at nyala ca show")
        links = [] if known is None else list(known.links)
        added = cat.AuthoritiesRecord(
            certificates=[before.certificate_pem, made.authority.certificate_pem],
            links=[*links, made.link][-MAX_LINKS:],
            changed_us=now_us,
            changed_by=by,
            aborted=[] if known is None else known.aborted,
        )
        return _change(added)

    return authorities_operation("add authority", plan)


def abort(now_us: int, by: str) -> CatalogOperation:
    """Return the operation that takes a new authority back which has issued nothing yet.

    Its plan raises InvalidArgument if no replacement is under way, or the new authority issues.

    Args:
        now_us: see `begin`.
        by: who aborts it.
    """

    def plan(catalog: Catalog) -> CatalogPlan:
        known = catalog.access.authorities
        if known is None or step_of(known) is not RotationStep.ADDED:
            raise InvalidArgument(
                f"there is no replacement to abort: {step_of(known).value}. Once the new authority issues "
                "certificates, go on: nyala ca show, and nyala ca retire"
            )
        (added,) = bundle.parse(newest_of(known))
        changed = cat.AuthoritiesRecord(
            certificates=known.certificates[:1],
            links=[
                link
                for link in known.links
                if bundle.parse(link)[0].public_key() != added.public_key()
            ],
            changed_us=now_us,
            changed_by=by,
            aborted=[*known.aborted, bundle.key_id(added)][-MAX_ABORTED:],
        )
        return _change(changed)

    return authorities_operation("abort the new authority", plan)


def issue(now_us: int) -> CatalogOperation:
    """Return the operation that makes the new authority issue; nothing if that is not the next step.

    Args:
        now_us: see `begin`.
    """

    def plan(catalog: Catalog) -> CatalogPlan:
        known = catalog.access.authorities
        if known is None or step_of(known) is not RotationStep.ADDED:
            return CatalogPlan()
        changed = cat.AuthoritiesRecord()
        changed.CopyFrom(known)
        del changed.certificates[:]
        changed.certificates.extend(reversed(known.certificates))
        changed.issuing_us = changed.changed_us = now_us
        return _change(changed)

    return authorities_operation("issue by the new authority", plan)


def retire(
    now_us: int, by: str, check: Callable[[Catalog], None], authority: str = ""
) -> CatalogOperation:
    """Return the operation that retires the old authority; nothing if the one that is named is retired.

    Its plan raises InvalidArgument if that is not the next step.

    Args:
        now_us: see `begin`.
        by: who retires it.
        check: raises if a server or user would be locked out.
        authority: key id of the old authority; empty: whichever it is.
    """

    def plan(catalog: Catalog) -> CatalogPlan:
        if is_retired(catalog, authority):
            return CatalogPlan()
        known = require_issuing(catalog, authority)
        check(catalog)
        changed = cat.AuthoritiesRecord()
        changed.CopyFrom(known)
        del changed.certificates[1:], changed.renewed[:]
        changed.changed_us, changed.changed_by = now_us, by
        return _change(changed)

    return authorities_operation("retire authority", plan)


def check_none(record: cat.AuthoritiesRecord | None) -> None:
    """Check that no replacement is under way.

    Raises:
        AlreadyPresent: one is.
    """
    step = step_of(record)
    if step is not RotationStep.NONE:
        raise AlreadyPresent(
            f"the certificate authority is being replaced already: {step.value}; see nyala ca show"
        )


def require_issuing(catalog: Catalog, authority: str = "") -> cat.AuthoritiesRecord:
    """Return the record of a replacement whose new authority issues.

    Args:
        catalog: the catalog.
        authority: key id of the old authority; empty: whichever it is.

    Raises:
        InvalidArgument: there is none, or the old authority is another one.
    """
    known = catalog.access.authorities
    if known is None or step_of(known) is not RotationStep.ISSUING:
        raise InvalidArgument(
            f"there is no authority to retire: {step_of(known).value}; see nyala ca show"
        )
    if authority and authority != id_of(known.certificates[-1]):
        raise InvalidArgument(
            f"authority {authority[:80]} is not the old one of this replacement; see nyala ca show"
        )
    return known


def is_retired(catalog: Catalog, authority: str) -> bool:
    """Return whether a named authority was replaced and is not trusted any more.

    Args:
        catalog: the catalog.
        authority: its key id; empty: none is named.
    """
    known = catalog.access.authorities
    return bool(authority) and known is not None and authority not in map(id_of, known.certificates)


def replacement_of(record: cat.AuthoritiesRecord | None, authority: str) -> bytes:
    """Return the certificate of the authority that is replacing another one; empty: none is.

    Args:
        record: the authorities.
        authority: key id of the one that is replaced.
    """
    if record is None or step_of(record) is RotationStep.NONE:
        return b""
    added = step_of(record) is RotationStep.ADDED
    old, new = record.certificates if added else reversed(record.certificates)
    return bytes(new) if id_of(old) == authority else b""


def check_nobody_left(
    behind: Mapping[str, str], logins: Sequence[str], users: Sequence[str], *, own: bool
) -> None:
    """Check that nobody needs the old authority.

    Args:
        behind: what each server lacks, by what to call it.
        logins: users whose logins may have a certificate of it.
        users: certificates of `nyala cert user` that are of it, as to be called.
        own: the caller's certificate is of it.

    Raises:
        Forbidden: somebody does; the message names them.
    """
    if own:
        raise Forbidden(
            "the certificate that this command uses is of the old authority; renew it with: nyala cert renew"
        )
    found = [f"{who} lacks {what}" for who, what in behind.items()]
    if logins:
        found.append(f"logins that may be of the old authority: {', '.join(logins[:20])}")
    if users:
        more = f" and {len(users) - 20} more" if len(users) > 20 else ""
        found.append(
            f"certificates of users that were not renewed: {', '.join(users[:20])}{more}; their holders run "
            "nyala cert renew, or nyala cert revoke ends those that are not used any more"
        )
    if found:
        raise Forbidden(
            f"the old authority is still needed, and was not retired: {'; '.join(found[:20])}. Wait until "
            "nyala ca show names nobody, or lock them out with --force"
        )


def old_logins(catalog: Catalog, now_us: int, valid_us: int) -> list[str]:
    """Return the users whose logins may have certificates of the old authority.

    An account has the time of its newest login only, so those of a later login may have an earlier one too.

    Args:
        catalog: the catalog.
        now_us: time of the leader master, since the epoch.
        valid_us: how long the certificate of a login is valid.
    """
    known = catalog.access.authorities
    if known is None or step_of(known) is not RotationStep.ISSUING:
        return []
    since_us = known.issuing_us
    if now_us >= since_us + valid_us:
        return []
    return sorted(
        u.id
        for u in catalog.access.users.values()
        if (issued_us := certificate_us(u))
        and u.changed_us < since_us
        and issued_us + valid_us > now_us
    )


def without_key(
    record: cat.AuthoritiesRecord, reports: Collection[Report], asking: Report
) -> list[str]:
    """Return the addresses of masters to which a master sends the key of the newest authority.

    Args:
        record: the authorities.
        reports: of the masters.
        asking: report of the master; without the key it sends none.
    """
    newest = id_of(newest_of(record))
    if step_of(record) is RotationStep.NONE or newest not in asking.keys:
        return []
    return sorted(r.address for r in reports if r.keys and newest not in r.keys)


def _change(record: cat.AuthoritiesRecord) -> CatalogPlan:
    return CatalogPlan(access=AccessChanges(authorities=record))


def authorities_operation(what: str, plan: Callable[[Catalog], CatalogPlan]) -> CatalogOperation:
    """Return an operation on the record of the authorities, which has the lock of all changes of access.

    Args:
        what: the operation, for the log.
        plan: see `CatalogOperation`.
    """
    return CatalogOperation(what, lambda _: Scope(tables=(ACCESS_LOCK,)), plan)
