"""Upkeep of a server's certificates: files that changed, the list of revoked ones, grants, renewal.

A server renews its own certificate after two thirds of its life, with a new key, if a master issued it.
Connections that are open stay open. The list of revoked certificates is kept in the data directory, so that
a server that starts without masters refuses those it knew of.
"""

import json
import logging
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from nyala.admin.authorities import AuthorityUpkeep, ReportingServer
from nyala.client.cluster.leader_calls import LeaderCalls
from nyala.common.errors import Corrupt, NyalaError
from nyala.env.env import Env
from nyala.env.rpc import Handlers
from nyala.env.tasks import Lane
from nyala.security.authorities import bundle
from nyala.security.authorities.keyring import Keyring
from nyala.security.authority import write_private
from nyala.security.credentials import Credentials
from nyala.security.identity import identity_of_pem
from nyala.security.revocation import Revocation, Revocations
from nyala.security.signing_request import new_request
from nyala.wire import methods
from nyala.wire.proto import access_pb2 as pb
from nyala.wire.proto.nyala_pb2 import ListTabletsRequest, ListTabletsResponse
from nyala.wire.tls.join_port import JoinPort
from nyala.wire.tls.requests import grant_of
from nyala.wire.tls.untrusted import RENEWAL

log = logging.getLogger(__name__)

INTERVAL_MS = 2_000
CALL_TIMEOUT_MS = 5_000
REVOKED_FILE = "revoked"
LATE = 6
"""A certificate that is not renewed is reported in the last sixth of its life,"""
LATE_S = 60 * 86_400
"""or this many seconds before its end, if that is later; so is an authority that is not replaced."""
RULES_MAX_AGE_S = 300
"""Time without an answer of a leader master after which grants are not believed any more, in seconds."""


class CertificateUpkeep:
    """Upkeep of the certificates of one server. On the loop only.

    Args:
        env: calls, clock, tasks.
        credentials: of the server.
        directory: its data directory.
        masters: returns the public addresses of the masters that it knows.
        authorities: upkeep of the authorities that it trusts.
    """

    def __init__(
        self,
        env: Env,
        credentials: Credentials,
        directory: str,
        masters: Callable[[], Sequence[str]],
        authorities: AuthorityUpkeep,
    ) -> None:
        self._env = env
        self._credentials = credentials
        self._revoked = Path(directory, REVOKED_FILE)
        self._leader = LeaderCalls(env, masters)
        self._authorities = authorities
        self._rules_us = 0
        self._said = self._unrenewed = ""

    def load(self) -> None:
        """Put the list in the data directory in force; called before the ports are open.

        Raises:
            Corrupt: it cannot be read.
        """
        try:
            if self._revoked.exists():
                listed = json.loads(self._revoked.read_bytes())
                entries = [Revocation(str(id), int(at)) for id, at in listed]
                self._credentials.revocations.replace(entries)
        except (OSError, ValueError, TypeError) as err:
            raise Corrupt(
                f"the list of revoked certificates in {self._revoked} cannot be read: {err}; remove the file "
                "if the masters run: they send the list again"
            ) from err

    def start(self) -> None:
        """Start the upkeep."""
        self._env.tasks.spawn(self._run(), "upkeep of certificates")

    def problems(self) -> list[str]:
        """Return which certificates end soon, as sentences for operators."""
        now_s, pem, found = self._env.clock.wall_us() / 1_000_000, self._credentials.pem, []
        own = identity_of_pem(pem.cert)
        if _ends_soon(own.issued_s, own.ends_s, now_s):
            why = f" ({self._unrenewed})" if self._unrenewed else ""
            found.append(
                f"its certificate {self._credentials.files.cert} ends at {_utc(own.ends_s)}, and was not "
                f"renewed{why}; from then on nothing can connect to this server: {RENEWAL}"
            )
        authority = bundle.parse(pem.ca)[0]
        begins, ends = authority.not_valid_before_utc, authority.not_valid_after_utc
        if _ends_soon(int(begins.timestamp()), int(ends.timestamp()), now_s):
            found.append(
                f"the certificate authority of the cluster ends at {_utc(int(ends.timestamp()))}, and all "
                "certificates with it: replace it with nyala ca rotate (docs/operate/security.md)"
            )
        return found

    async def _run(self) -> None:
        while True:
            if self._credentials.refresh():
                log.info("the credentials were read again: %s", self._credentials.files.cert)
            for step in (self.learn, self.renew_if_due):
                try:
                    await step()
                except (NyalaError, OSError) as err:  # no leader, or a full disk: tried again
                    self._say(f"the certificates were not brought up to date: {err}")
                except Exception as bug:  # the task's top: without it certificates would end
                    log.error("the certificates were not brought up to date", exc_info=bug)
            self._expire_grants()
            await self._env.tasks.sleep_ms(INTERVAL_MS)

    async def learn(self) -> None:
        """Report to the leader master; put its grants, revoked certificates and authorities in force.

        Raises:
            NyalaError: no leader answers, or an authority is not certified by one that is trusted here.
            OSError: the list of revoked certificates was not written; it is in force. Or `ca.crt` was not.
        """
        grants, began_us = self._credentials.grants, self._env.clock.monotonic_us()
        request = pb.AccessRulesRequest(
            version=max(grants.version, 0),
            none=grants.version < 0,
            revoked=self._credentials.revocations.digest,
            authorities=self._authorities.report(),
        )
        answer = await self._leader.call(methods.ACCESS_RULES, request, timeout_ms=CALL_TIMEOUT_MS)
        if answer.changed:
            grants.replace(answer.version, map(grant_of, answer.grants))
            log.info("%d grants are in force (version %d)", len(grants), grants.version)
        grants.fresh, self._rules_us = True, began_us
        if answer.HasField("revocations"):
            await self._revoke(
                [Revocation(r.id, r.revoked_us) for r in answer.revocations.revocations]
            )
        await self._authorities.take(answer.authorities)

    async def _revoke(self, entries: Sequence[Revocation]) -> None:
        self._credentials.revocations.replace(entries)
        log.info("%d revocations of certificates are in force", len(entries))
        await self._env.tasks.run(Lane.DISK, self._save, entries)

    def _expire_grants(self) -> None:
        age_us = self._env.clock.monotonic_us() - self._rules_us
        if self._credentials.grants.fresh and age_us > RULES_MAX_AGE_S * 1_000_000:
            self._credentials.grants.fresh = False
            log.warning("grants of users are not in force, since no leader master answers")

    async def renew_if_due(self) -> None:
        """Renew the certificate of this server after two thirds of its life, or for a new authority.

        Raises:
            NyalaError: no leader answers, or it refuses.
            OSError: the new certificate was not written.
        """
        files, own = self._credentials.files, identity_of_pem(self._credentials.pem.cert)
        outdated = self._authorities.outdated
        if self._env.clock.wall_us() < own.renewal_s * 1_000_000 and not outdated:
            self._unrenewed = ""
            return
        if own.principal.server_uuid is None or files.cert != files.key:
            why = "is of the old authority" if outdated else "ends soon"
            self._unrenewed = "no master issued it"
            self._say(
                f"the certificate {files.cert} {why}, and was not issued by a master, so that it is not "
                "renewed by itself: make a new one (nyala cert server)"
            )
            return
        key, request = new_request()
        asked = pb.RenewRequest(csr=request)
        try:
            answer = await self._leader.call(methods.RENEW, asked, timeout_ms=CALL_TIMEOUT_MS)
        except NyalaError as err:
            self._unrenewed = err.message
            raise
        pem = answer.certificate + key
        await self._env.tasks.run(Lane.DISK, write_private, Path(files.cert), pem)
        self._credentials.refresh()
        ends_s = identity_of_pem(answer.certificate).ends_s
        log.info("the certificate was renewed; the new one ends at %d (Unix time)", ends_s)

    def _save(self, entries: Sequence[Revocation]) -> None:
        write_private(self._revoked, json.dumps([[e.id, e.revoked_us] for e in entries]).encode())

    def _say(self, text: str) -> None:
        """Log a problem once."""
        if text != self._said:
            log.warning("%s", text)
        self._said = text


def _ends_soon(begins_s: int, ends_s: int, now_s: float) -> bool:
    """Return whether a certificate is to be reported."""
    return now_s >= ends_s - min(LATE_S, (ends_s - begins_s) / LATE)


def _utc(time_s: int) -> str:
    return f"{datetime.fromtimestamp(time_s, UTC):%Y-%m-%d %H:%M} UTC"


def with_problems(handlers: Handlers, upkeep: CertificateUpkeep | None) -> Handlers:
    """Return handlers whose list of replicas names the server's certificates that end soon, for ksck.

    Args:
        handlers: of a server.
        upkeep: of its certificates; None: it has none.
    """
    if upkeep is None or methods.LIST_TABLETS not in handlers:
        return handlers
    listing: Any = handlers[methods.LIST_TABLETS]

    async def list_tablets(request: ListTabletsRequest) -> ListTabletsResponse:
        answer: ListTabletsResponse = await listing(request)
        answer.problems.extend(upkeep.problems())
        return answer

    return {**handlers, methods.LIST_TABLETS: list_tablets}


def upkeep_of(
    env: Env, credentials: Credentials, directory: str, masters: Callable[[], Sequence[str]],
    reporter: Callable[[], ReportingServer], keys: Keyring | None = None,
) -> CertificateUpkeep:  # fmt: skip
    """Return the upkeep of the certificates of one process.

    Args:
        env: calls, clock, tasks.
        credentials: of the process.
        directory: its data directory, which keeps the list of revoked certificates.
        masters: returns the public addresses of the masters that it knows.
        reporter: returns what the process reports of itself.
        keys: keys of authorities of a master that signs.
    """
    authorities = AuthorityUpkeep(env, credentials, reporter, keys)
    return CertificateUpkeep(env, credentials, directory, masters, authorities)


def known_revocations(credentials: Credentials | None) -> Handlers:
    """Return the handler that answers with the revoked certificates that a server knows of.

    Args:
        credentials: of the server; None: it has none, and knows of no certificate.
    """
    revocations = Revocations() if credentials is None else credentials.revocations

    async def answer(request: pb.RevocationsRequest) -> pb.RevocationsResponse:
        found = pb.RevocationsResponse(digest=revocations.digest)
        if request.digest != found.digest:
            for entry in revocations.entries:
                found.revocations.add(id=entry.id, revoked_us=entry.revoked_us)
        return found

    return {methods.REVOCATIONS: answer}


def join_port(env: Env, credentials: Credentials, masters: Callable[[], Sequence[str]]) -> JoinPort:
    """Return the join port of a master, which passes requests on to the leader, which it remembers.

    Args:
        env: calls.
        credentials: of this master.
        masters: returns the public addresses of the masters.
    """
    leader = LeaderCalls(env, masters)

    async def join(request: pb.JoinRequest) -> pb.JoinResponse:
        if request.HasField("login"):
            request.login.csr = request.csr
            found = await leader.call(methods.LOGIN, request.login, timeout_ms=CALL_TIMEOUT_MS)
            return pb.JoinResponse(
                ca=credentials.pem.ca,
                certificate=found.certificate,
                master_addresses=found.master_addresses,
            )
        answer = await leader.call(methods.JOIN, request, timeout_ms=CALL_TIMEOUT_MS)
        assert isinstance(answer, pb.JoinResponse), answer
        return answer

    return JoinPort(credentials, join)
