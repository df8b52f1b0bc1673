"""Replacement of the certificate authority at the masters; the steps are in `master/access/authorities.py`.

Servers report what they trust and have every two seconds. The leader keeps the reports in memory, and takes
the next step when no live server lacks anything: so a new leader goes on once they have reported to it.
"""

import asyncio

from nyala.admin.authority_keys import KeyReceiver, send_key
from nyala.common.errors import Forbidden, InvalidArgument, NyalaError, Unavailable
from nyala.env.env import Env
from nyala.env.rpc import Handlers
from nyala.env.tasks import Lane
from nyala.master.access import authorities, issued
from nyala.master.access.authorities import Report, RotationStep, authority_of, step_of
from nyala.master.config import MasterConfig
from nyala.master.leader import Term
from nyala.master.services.access import name_of
from nyala.master.services.reissues import Reissues, revoked_in
from nyala.master.services.tables import MasterContext
from nyala.master.tservers import TServers
from nyala.security.authorities import bundle
from nyala.security.authorities.bundle import Successor
from nyala.security.authorities.keyring import Keyring
from nyala.security.identity import CALLER
from nyala.wire import methods
from nyala.wire.proto import access_pb2 as pb

SETTLED_US = 6_000_000
"""Time after the first report in a term before a step is taken, in microseconds: three reports of each."""
FRESH_US = 10_000_000
"""Age of a report, in microseconds, up to which it counts. A master without one is not alive."""
MAX_REPORTS, MAX_REPORT_BYTES = 4_096, 16 << 10
"""Reports that are kept, the oldest ones go first; largest report."""


class ServerReports:
    """The last report of each server to a leader, in one term. On the loop only.

    Args:
        env: clock.
    """

    def __init__(self, env: Env) -> None:
        self._clock = env.clock
        self._reports: dict[str, tuple[Report, int]] = {}  # the oldest first
        self._term, self._since_us = 0, 0

    def record(self, term: Term, uuid: str, report: Report) -> None:
        """Record a report; those of earlier terms are forgotten, and the oldest of too many.

        Args:
            term: of the leader.
            uuid: of the server.
            report: what it reports.
        """
        now_us = self._clock.monotonic_us()
        if term.memory.term != self._term:
            self._term, self._since_us, self._reports = term.memory.term, now_us, {}
        self._reports.pop(uuid, None)
        self._reports[uuid] = report, now_us
        if len(self._reports) > MAX_REPORTS:
            del self._reports[next(iter(self._reports))]

    @property
    def settled(self) -> bool:
        """True if servers have had the time to report in this term."""
        return self._clock.monotonic_us() - self._since_us >= SETTLED_US

    def fresh(self, term: Term) -> dict[str, Report]:
        """Return the reports of servers that are alive, by uuid."""
        oldest_us = self._clock.monotonic_us() - FRESH_US
        return {u: report for u, (report, at_us) in self._of(term).items() if at_us >= oldest_us}

    def last(self, term: Term) -> dict[str, Report]:
        """Return the last report of each server in a term, by uuid."""
        return {u: report for u, (report, _) in self._of(term).items()}

    def _of(self, term: Term) -> dict[str, tuple[Report, int]]:
        return self._reports if self._term == term.memory.term else {}


class AuthoritiesService:
    """Handlers of `AccessService` for certificate authorities. On the loop only.

    Args:
        context: context of this master.
        config: has the keys of authorities, if this master signs.
    """

    def __init__(self, context: MasterContext, config: MasterConfig) -> None:
        self._context = context
        self._config = config
        self._reissues = Reissues(context, config)
        self._receiver = KeyReceiver(context.env, config.keys)
        self._reports = ServerReports(context.env)
        self._rotating = asyncio.Lock()

    def handlers(self) -> Handlers:
        """Return the methods that this service answers."""
        return {
            methods.AUTHORITY_STATUS: self.status,
            methods.ROTATE_AUTHORITY: self.rotate,
            methods.ABORT_AUTHORITY: self.abort,
            methods.RETIRE_AUTHORITY: self.retire,
            methods.REISSUE: self._reissues.reissue,
            methods.OFFER_AUTHORITY: self._receiver.offer,
            methods.TAKE_AUTHORITY: self._receiver.take,
        }

    async def report(self, term: Term, request: pb.AuthoritiesReport) -> pb.AuthoritiesAnswer:
        """Record the report of a server, take the next step if it is due, and return the authorities.

        Args:
            term: the confirmed term.
            request: the report.

        Raises:
            Forbidden: it names another server than the certificate of the caller.
            InvalidArgument: it is too large.
        """
        caller, size = CALLER.get(), request.ByteSize()
        if size > MAX_REPORT_BYTES:
            raise InvalidArgument(
                f"a report of a server has at most {MAX_REPORT_BYTES} bytes, not {size}; servers of this "
                "version send no larger ones"
            )
        if caller is not None and caller.principal.server_uuid not in (None, request.uuid):
            raise Forbidden(
                f"a report of server {request.uuid[:80]} arrived with the certificate of {caller.principal}"
            )
        report = Report(
            request.role, request.address, request.digest, request.issuer, tuple(request.keys)
        )
        self._reports.record(term, request.uuid, report)
        known = term.catalog.access.authorities
        if known is None:
            return pb.AuthoritiesAnswer()
        settled = self._reports.settled and not self._behind(term)
        if step_of(known) is RotationStep.ADDED and settled:
            now_us = self._context.env.clock.wall_us()
            await self._context.require_leading().run(authorities.issue(now_us), term)
            known = term.catalog.access.authorities
            assert known is not None
        masters = [r for r in self._reports.fresh(term).values() if r.role == "master"]
        return pb.AuthoritiesAnswer(
            certificates=known.certificates,
            links=known.links,
            send_key_to=authorities.without_key(known, masters, report),
            aborted=known.aborted,
        )

    async def status(self, request: pb.AuthorityStatusRequest) -> pb.AuthorityStatusResponse:
        """Return the authorities, the step of a replacement, and who is behind.

        Raises:
            InvalidArgument: a serial number in the request is none.
        """
        term = await self._context.confirmed()
        known = term.catalog.access.authorities
        if known is None:
            first = authority_of(self._config, term.catalog).certificate_pem
            return pb.AuthorityStatusResponse(certificates=[first])
        answer = pb.AuthorityStatusResponse(
            certificates=known.certificates, issuing_us=known.issuing_us,
            changed_us=known.changed_us, changed_by=known.changed_by, logins=self._logins(term),
            users=self._users(term, request.issued),
        )  # fmt: skip
        for uuid, (report, what) in self._left(term).items():
            answer.behind.add(uuid=uuid, role=report.role, address=report.address, lacks=what)
        return answer

    async def rotate(self, request: pb.RotateAuthorityRequest) -> pb.RotateAuthorityResponse:
        """Begin to replace the authority: the new one is trusted; durable on return.

        A request that names the authority may be sent again: it returns the replacement that it has begun.

        Raises:
            AlreadyPresent: a replacement is under way.
            InvalidArgument: the authority that is named issues no more.
            Forbidden: this master does not sign.
            Unavailable: the new key did not reach a majority of the masters.
        """
        async with self._rotating:
            return await self._rotate(request)

    async def _rotate(self, request: pb.RotateAuthorityRequest) -> pb.RotateAuthorityResponse:
        term = await self._context.confirmed()
        known = term.catalog.access.authorities
        if begun := authorities.replacement_of(known, request.replaces):
            return pb.RotateAuthorityResponse(certificate=begun)
        authorities.check_none(known)
        before = authority_of(self._config, term.catalog)
        if request.replaces and request.replaces != bundle.key_id(before.certificate):
            raise InvalidArgument(
                f"authority {request.replaces[:80]} does not issue any more; see nyala ca show"
            )
        made = bundle.successor(before)
        keys = self._config.keys
        assert keys is not None
        await self._context.env.tasks.run(Lane.DISK, keys.add, made.authority.key)
        await _spread(self._context, keys, made, before.certificate_pem)
        wanted = authorities.begin(before, made, self._context.env.clock.wall_us(), _caller_name())
        await self._context.require_leading().run(wanted, term)
        return pb.RotateAuthorityResponse(certificate=made.authority.certificate_pem)

    async def abort(self, request: pb.AbortAuthorityRequest) -> pb.AbortAuthorityResponse:
        """Take the new authority back, which has issued nothing yet; durable on return.

        Servers stop trusting it, and masters remove its key, at their next reports to any leader.

        Raises:
            InvalidArgument: no replacement is under way, or the new authority issues.
        """
        term = await self._context.confirmed()
        wanted = authorities.abort(self._context.env.clock.wall_us(), _caller_name())
        await self._context.require_leading().run(wanted, term)
        known = term.catalog.access.authorities
        return pb.AbortAuthorityResponse(certificates=[] if known is None else known.certificates)

    async def retire(self, request: pb.RetireAuthorityRequest) -> pb.RetireAuthorityResponse:
        """Retire the old authority; durable on return.

        A request that names it may be sent again.

        Raises:
            InvalidArgument: there is none, it is another one, or users' certificates are not listed.
            Forbidden: servers, logins, users or the caller need it; not if the request forces it.
        """
        term = await self._context.confirmed()
        if authorities.is_retired(term.catalog, request.authority):
            return self._trusted(term)
        known = authorities.require_issuing(term.catalog, request.authority)
        if not request.force and not request.HasField("issued"):
            raise InvalidArgument(
                "the masters do not know of the certificates that nyala cert user made, which retirement "
                "would end; name the authority's folder, which lists them: nyala ca retire --dir FOLDER"
            )
        caller = CALLER.get()
        own = caller is not None and caller.authority == authorities.id_of(known.certificates[-1])

        def check(_: object) -> None:
            behind = {f"{r.role} {r.address}": what for r, what in self._left(term).values()}
            if not request.force:
                users = issued.texts(self._users(term, request.issued))
                authorities.check_nobody_left(behind, self._logins(term), users, own=own)

        now_us = self._context.env.clock.wall_us()
        wanted = authorities.retire(now_us, _caller_name(), check, request.authority)
        await self._context.require_leading().run(wanted, term)
        return self._trusted(term)

    def _trusted(self, term: Term) -> pb.RetireAuthorityResponse:
        left = term.catalog.access.authorities
        return pb.RetireAuthorityResponse(certificates=[] if left is None else left.certificates)

    def _behind(self, term: Term) -> dict[str, tuple[Report, str]]:
        """Return what each live server lacks for the next step; nothing without a replacement."""
        known = term.catalog.access.authorities
        if known is None or step_of(known) is RotationStep.NONE:
            return {}
        fresh = self._reports.fresh(term)
        members = {m.uuid for m in self._context.status().consensus.members}
        live = {u: r for u, r in fresh.items() if u in members or r.role == "member"}
        for server in self._context.servers.alive(self._now_us()):
            silent = Report("tserver", server.registration.address)
            live[str(server.uuid)] = fresh.get(str(server.uuid), silent)
        found = {uuid: (r, authorities.lacks(known, r)) for uuid, r in live.items()}
        return {uuid: entry for uuid, entry in sorted(found.items()) if entry[1]}

    def _left(self, term: Term) -> dict[str, tuple[Report, str]]:
        """Return what each server lacks; servers that are not running count if the old one may be retired."""
        left, known = self._behind(term), term.catalog.access.authorities
        if known is None or step_of(known) is not RotationStep.ISSUING:
            return left
        servers = self._context.servers
        running = {str(s.uuid) for s in servers.alive(self._now_us())}
        running |= self._reports.fresh(term).keys()
        members = self._context.status().consensus.members
        expected = {str(m.uuid): Report("master", m.address) for m in members}
        expected |= _tablet_servers(term, servers)
        return left | authorities.not_running(known, expected, running, self._reports.last(term))

    def _logins(self, term: Term) -> list[str]:
        valid_us = self._config.options.user_certificate_s * 1_000_000
        now_us = self._context.env.clock.wall_us()
        return authorities.old_logins(term.catalog, now_us, valid_us)

    def _users(self, term: Term, listed: pb.IssuedCertificates) -> list[pb.IssuedCertificate]:
        now_s = self._context.env.clock.wall_us() // 1_000_000
        known = term.catalog.access.authorities
        return issued.needing_old(known, listed.certificates, revoked_in(term), now_s)

    def _now_us(self) -> int:
        return self._context.env.clock.monotonic_us()


async def _spread(context: MasterContext, keys: Keyring, made: Successor, before: bytes) -> None:
    """Send the key of a new authority to the other masters, before anything depends on it.

    Args:
        context: of this master.
        keys: keys of authorities of this master.
        made: the new authority.
        before: certificate of the one that it replaces.

    Raises:
        Unavailable: a majority does not have it.
    """
    own = context.info().uuid
    masters = [m for m in context.status().consensus.members if m.voter]
    errors, have = [], 0
    trusted = [before, made.authority.certificate_pem]
    for master in masters:
        try:
            if master.uuid != own:
                await send_key(context.env, keys, master.address, trusted, [made.link])
            have += 1
        except NyalaError as err:
            errors.append(f"{master.address}: {err.message}")
    if 2 * have <= len(masters):
        raise Unavailable(
            "the key of the new authority has not reached a majority of the masters "
            f"({'; '.join(errors)}); nothing was changed"
        )


def _tablet_servers(term: Term, known: TServers) -> dict[str, Report]:
    """Return the tablet servers that have replicas, with what is known of them."""
    registered = {server: known.get(server) for server in term.catalog.replica_counts()}
    return {
        str(server): Report("tserver", str(server) if s is None else s.registration.address)
        for server, s in registered.items()
    }


def _caller_name() -> str:
    return name_of(CALLER.get())
