"""Certificate authorities that a server trusts: its report to the masters, and its `ca.crt`.

Running listeners and connections take the file up without a restart (`security/credentials.py`).
"""

import logging
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from nyala.admin.authority_keys import send_key
from nyala.common.errors import NyalaError, Unauthenticated
from nyala.env.env import Env
from nyala.env.tasks import Lane
from nyala.security.authorities import bundle
from nyala.security.authorities.keyring import Keyring
from nyala.security.authority import issuer_among, write_private
from nyala.security.credentials import Credentials
from nyala.security.identity import KEPT, identity_of_pem
from nyala.wire.proto import access_pb2 as pb

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ReportingServer:
    """Server that reports.

    Attributes:
        role: "master", "tserver" or "member" (of an ensemble).
        uuid: its permanent id; of a member whose certificate names no uuid, its address.
        address: its public address.
    """

    role: str
    uuid: str
    address: str


class AuthorityUpkeep:
    """Upkeep of the authorities of one server. On the loop only.

    Args:
        env: calls and tasks.
        credentials: of the server.
        reporter: returns the server, once it is open.
        keys: keys of authorities of a master; None: another server, or a master that does not sign.
    """

    def __init__(
        self,
        env: Env,
        credentials: Credentials,
        reporter: Callable[[], ReportingServer],
        keys: Keyring | None = None,
    ) -> None:
        self._env = env
        self._credentials = credentials
        self._reporter = reporter
        self._keys = keys

    def report(self) -> pb.AuthoritiesReport:
        """Return the report to the leader master."""
        ca, me = self._credentials.pem.ca, self._reporter()
        return pb.AuthoritiesReport(
            uuid=me.uuid, role=me.role, address=me.address, digest=bundle.digest(ca),
            issuer=identity_of_pem(self._credentials.pem.cert).authority,
            keys=[] if self._keys is None else self._keys.ids,
        )  # fmt: skip

    async def take(self, answer: pb.AuthoritiesAnswer) -> None:
        """Take over the authorities that the leader master names.

        A master also sends the key of a new authority to masters that lack it, and removes that of one that
        was retired, or whose replacement of the old one was aborted.

        Args:
            answer: to the report.

        Raises:
            Unauthenticated: an authority is not certified by one that is trusted here; nothing was changed.
            OSError: `ca.crt` was not written.
        """
        if not answer.certificates:
            return
        for address in answer.send_key_to:
            await self._send_key(address, answer)
        wanted = b"".join(answer.certificates)
        if bundle.digest(wanted) != bundle.digest(self._credentials.pem.ca):
            await self._trust(wanted, b"".join(answer.links))
        if self._keys is not None and answer.aborted:
            trusted = {bundle.key_id(c) for c in bundle.parse(self._credentials.pem.ca)}
            aborted = set(answer.aborted) - trusted  # the key of one that issues is never removed
            await self._env.tasks.run(Lane.DISK, self._keys.discard, aborted)
        if self._keys is not None and len(answer.certificates) == 1:
            newest = bundle.key_id(bundle.parse(wanted)[0])
            links = b"".join(answer.links)
            now_s = self._env.clock.wall_us() / 1e6
            await self._env.tasks.run(Lane.DISK, self._keys.settle, newest, links, now_s)

    @property
    def outdated(self) -> bool:
        """True if another authority than that of this server's certificate issues now."""
        return not _is_issued_by_newest(self._credentials.pem.cert, self._credentials.pem.ca)

    async def _trust(self, wanted: bytes, links: bytes) -> None:
        offered = bundle.parse(wanted)
        linked = bundle.parse(links) if links else []
        bundle.check_accepted(bundle.parse(self._credentials.pem.ca), offered, linked)
        if issuer_among(offered, bundle.parse(self._credentials.pem.cert)[0]) is None:
            raise Unauthenticated(
                f"the authority of {self._credentials.files.cert} was retired, and the file is not accepted "
                "any more: make a new one (nyala cert server), with the ca.crt of another server"
            )
        await self._env.tasks.run(Lane.DISK, _replace, Path(self._credentials.files.ca), wanted)
        self._credentials.refresh()
        log.info("%d certificate authorities are trusted: %s", len(offered), ", ".join(
            bundle.key_id(c) for c in offered
        ))  # fmt: skip

    async def _send_key(self, address: str, answer: pb.AuthoritiesAnswer) -> None:
        assert self._keys is not None, "keys were reported"
        try:
            await send_key(self._env, self._keys, address, answer.certificates, answer.links)
            log.info("master %s has the key of the new certificate authority", address)
        except NyalaError as err:  # tried again with the next report
            log.warning("master %s did not get the key of the new authority: %s", address, err)


@lru_cache(maxsize=KEPT)
def _is_issued_by_newest(cert: bytes, ca: bytes) -> bool:
    """Return whether the first of some authorities issued a certificate; both in PEM form.

    It is asked every two seconds, and verifies a signature.
    """
    return issuer_among(bundle.parse(ca)[:1], bundle.parse(cert)[0]) is not None


def _replace(path: Path, content: bytes) -> None:
    """Replace a file of certificates, atomically; it keeps its mode."""
    mode = stat.S_IMODE(os.stat(path).st_mode)
    write_private(path, content)
    path.chmod(mode)
