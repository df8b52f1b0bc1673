"""Keys of certificate authorities that a master has: `ca.key` and, during a rotation, `ca-<key id>.key`."""

import contextlib
import os
from collections.abc import Collection, Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from nyala.security import authority
from nyala.security.authorities.bundle import key_id, parse, pem_of
from nyala.security.authority import (
    CA_CERTIFICATE,
    CA_LINKS,
    Authority,
    key_pem,
    write_private,
)
from nyala.security.files import CA_KEY, sync_folder

ABANDONED_S = 3_600
"""Age, in seconds, of the key of a replacement that was never written; one takes seconds to be written."""


class Keyring:
    """Keys of authorities in the folder of a master's `ca.crt`.

    Args:
        directory: the folder.

    Attributes:
        first: the first authority of `ca.crt` whose key is here, as it was at the start.

    Raises:
        NotFound, Corrupt: see `security.authority.load`.
        InvalidArgument: other users of this machine may read a key.
    """

    def __init__(self, directory: str) -> None:
        self._folder = Path(directory)
        self._keys: dict[str, ec.EllipticCurvePrivateKey] = {}
        for path in self._folder.glob("ca*.key"):
            authority.check_private(str(path))
            key = authority.read_key(path)
            self._keys[_id_of(key)] = key
        certificates, links = (self._read(name) for name in (CA_CERTIFICATE, CA_LINKS))
        known = (self.authority(certificate, links) for certificate in certificates)
        self.first = next((a for a in known if a is not None), None) or authority.load(directory)

    @classmethod
    def beside(cls, certificate: str) -> "Keyring | None":
        """Return the keys in the folder of a `ca.crt`; None: there is no `ca.key`. Raises as the class."""
        folder = Path(certificate).parent
        return cls(str(folder)) if (folder / CA_KEY).exists() else None

    def _read(self, name: str) -> list[x509.Certificate]:
        path = self._folder / name
        return parse(path.read_bytes()) if path.exists() else []

    @property
    def ids(self) -> list[str]:
        """Ids of the keys."""
        return sorted(self._keys)

    def key(self, wanted: str) -> ec.EllipticCurvePrivateKey | None:
        """Return the key with an id; None: this master does not have it."""
        return self._keys.get(wanted)

    def authority(
        self, certificate: x509.Certificate, links: Sequence[x509.Certificate]
    ) -> Authority | None:
        """Return an authority; None: this master does not have its key.

        Args:
            certificate: its certificate.
            links: see `Authority`; that of another key is not used.
        """
        key = self._keys.get(key_id(certificate))
        if key is None:
            return None
        link = [c for c in links if c.public_key() == certificate.public_key()]
        return Authority(certificate, key, pem_of(link))

    def add(self, key: ec.EllipticCurvePrivateKey) -> None:
        """Keep the key of a new authority; durable on return. Blocking.

        Raises:
            OSError: it was not written.
        """
        name = _id_of(key)
        if name not in self._keys:
            write_private(self._folder / f"ca-{name}.key", key_pem(key))
            self._keys[name] = key

    def discard(self, aborted: Collection[str]) -> None:
        """Remove the keys of authorities that were to replace the present one, and do not. Blocking.

        `ca.key` stays, whatever is named.

        Args:
            aborted: ids of the keys.

        Raises:
            OSError: a file was not removed.
        """
        found = sorted(self._keys.keys() & set(aborted))
        if not found:
            return
        last = _id_of(authority.read_key(self._folder / CA_KEY))
        for name in found:
            if name != last:
                (self._folder / f"ca-{name}.key").unlink(missing_ok=True)  # masters of one folder
                sync_folder(self._folder)
                del self._keys[name]

    def settle(self, newest: str, links: bytes, now_s: float) -> None:
        """Make the key of the only authority `ca.key`, and remove those of authorities before it. Blocking.

        Interrupted at any point, it may be repeated. Nothing changes if that key is not here. The key of an
        authority that is to replace this one, and that no server trusts yet, stays for `ABANDONED_S`: later
        it is of a replacement whose leader master ended before it was written.

        Args:
            newest: id of its key.
            links: PEM text of all links, which is kept for `nyala cert`.
            now_s: the time, in seconds since the epoch.

        Raises:
            OSError: a file was not written.
        """
        if newest not in self._keys:
            return
        own, last = self._folder / f"ca-{newest}.key", self._folder / CA_KEY
        linked = parse(links) if links else []  # none: the only replacement was aborted
        before = {key_id(link) for link in linked} - {newest}
        before |= self._abandoned(before | {newest}, now_s)
        if not own.exists() and not before & self._keys.keys():
            return
        write_private(self._folder / CA_LINKS, links)
        if own.exists():
            before.add(_id_of(authority.read_key(last)))
            os.replace(own, last)
            sync_folder(self._folder)
        for other in before - {newest}:
            with contextlib.suppress(FileNotFoundError):  # masters of one folder
                (self._folder / f"ca-{other}.key").unlink()
            self._keys.pop(other, None)

    def _abandoned(self, known: Collection[str], now_s: float) -> set[str]:
        """Return the ids of old keys in files of their own, but for those of known authorities."""
        found = set()
        for name in self._keys.keys() - set(known):
            with contextlib.suppress(FileNotFoundError):  # it is in `ca.key`, or gone
                written_s = (self._folder / f"ca-{name}.key").stat().st_mtime
                if now_s - written_s > ABANDONED_S:
                    found.add(name)
        return found


def _id_of(key: ec.EllipticCurvePrivateKey) -> str:
    return x509.SubjectKeyIdentifier.from_public_key(key.public_key()).digest.hex()
