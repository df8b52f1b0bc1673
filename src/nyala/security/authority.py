"""Certificate authority of a cluster: a folder with its key, which issues certificates of servers and users.

Keys are ECDSA P-256. Private keys are files of mode 0600 in folders of mode 0700, whatever the umask.
"""

import datetime
import hashlib
import ipaddress
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from nyala.common.errors import AlreadyPresent, Corrupt, InvalidArgument, NotFound
from nyala.security.files import CA_KEY, sync_folder
from nyala.security.identity import BACKDATED_S
from nyala.security.principal import SCHEME, AccessRole, Principal, check_name

CA_CERTIFICATE = "ca.crt"
CA_LINKS = "ca.links"
"""File with the links of an authority that replaced another one (`Authority`)."""
AUTHORITY_NAME = "next"
CA_DAYS = 3_650
DAYS = 365
MAX_DAYS = 3_650
BACKDATED = datetime.timedelta(seconds=BACKDATED_S)
"""Certificates are valid from this time before now, for clocks that differ."""

_OTHERS_READ = 0o007


class Authority:
    """A certificate authority in memory.

    Args:
        certificate: its certificate.
        key: its private key.
        link: its key certified by the authority before it, as PEM (`security/authorities/`); empty: there was
            none. It follows each certificate that is issued, for those who trust the one before only.
    """

    def __init__(
        self, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey, link: bytes = b""
    ) -> None:
        self._certificate = certificate
        self._key = key
        self._link = link

    @property
    def certificate(self) -> x509.Certificate:
        """Its certificate."""
        return self._certificate

    @property
    def key(self) -> ec.EllipticCurvePrivateKey:
        """Its private key."""
        return self._key

    @property
    def cluster(self) -> str:
        """Cluster part of the principals that it names."""
        return cluster_of(self._certificate)

    @property
    def certificate_hash(self) -> str:
        """SHA-256 of the DER form of its certificate, in hex; join tokens contain it."""
        return self._certificate.fingerprint(hashes.SHA256()).hex()

    @property
    def certificate_pem(self) -> bytes:
        """Its certificate."""
        return self._certificate.public_bytes(serialization.Encoding.PEM)

    def issue(
        self, role: AccessRole, name: str, hosts: Sequence[str] = (), days: int = DAYS
    ) -> tuple[bytes, bytes]:
        """Return a new certificate and its private key, as PEM.

        Args:
            role: what its holder may call.
            name: name of the user, or of the server.
            hosts: names and addresses of a server, under which others connect to it.
            days: how long it is valid.

        Raises:
            InvalidArgument: a name or host that no certificate can carry, or days outside 1 to MAX_DAYS.
        """
        if not 1 <= days <= MAX_DAYS:
            raise InvalidArgument(f"{days} days: a certificate is valid for 1 to {MAX_DAYS} days")
        key, valid = ec.generate_private_key(ec.SECP256R1()), datetime.timedelta(days=days)
        return self.sign(key.public_key(), role, name, hosts, valid), key_pem(key)

    def sign(
        self, holder: ec.EllipticCurvePublicKey, role: AccessRole, name: str,
        hosts: Sequence[str], valid: datetime.timedelta, issued_us: int | None = None,
        serial: int | None = None,
    ) -> bytes:  # fmt: skip
        """Return a new certificate of a public key, and the link of this authority, as PEM.

        Args:
            holder: public key of its holder.
            role: see `issue`, as for the others.
            name: of its holder.
            hosts: of a server.
            valid: how long it is valid; it does not outlive the authority.
            issued_us: time of issue, since the epoch, which revocations are compared with; None: now.
            serial: its serial number; None: a new one.

        Raises:
            InvalidArgument: a name or host that no certificate can carry.
        """
        principal = Principal(self.cluster, role, check_name(name))
        names: list[x509.GeneralName] = [x509.UniformResourceIdentifier(principal.uri)]
        names += [_host(h) for h in hosts]
        usages = [ExtendedKeyUsageOID.CLIENT_AUTH]
        if role is AccessRole.SERVER:
            usages.append(ExtendedKeyUsageOID.SERVER_AUTH)
        now = datetime.datetime.now(datetime.UTC)
        if issued_us is not None:
            now = datetime.datetime.fromtimestamp(issued_us // 1_000_000, datetime.UTC)
        ends = min(now + valid, self._certificate.not_valid_after_utc)
        made = (
            x509.CertificateBuilder()
            .subject_name(_name(str(principal)))
            .issuer_name(self._certificate.subject)
            .public_key(holder)
            .serial_number(serial or x509.random_serial_number())
            .not_valid_before(now - BACKDATED)
            .not_valid_after(ends)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(signs=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(_own_key_id(holder), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()),
                critical=False,
            )
            .sign(self._key, hashes.SHA256())
        )
        return made.public_bytes(serialization.Encoding.PEM) + self._link


def create(directory: str, days: int = CA_DAYS) -> Authority:
    """Make a certificate authority in a folder, which is created.

    Raises:
        AlreadyPresent: the folder has one.
        OSError: it cannot be written.
    """
    folder = private_folder(directory)
    for name in (CA_CERTIFICATE, CA_KEY):
        if (folder / name).exists():
            raise AlreadyPresent(
                f"{folder / name} exists: {directory} has a certificate authority, and a new one would not "
                "accept its certificates; choose another folder"
            )
    key = ec.generate_private_key(ec.SECP256R1())
    authority = Authority(self_signed(key, days), key)
    write_private(folder / CA_KEY, key_pem(key))
    write_private(folder / CA_CERTIFICATE, authority.certificate_pem)
    return authority


def self_signed(
    key: ec.EllipticCurvePrivateKey, days: int = CA_DAYS, cluster: str = ""
) -> x509.Certificate:
    """Return the certificate of an authority, signed by its own key.

    Args:
        key: its private key.
        days: how long it is valid.
        cluster: cluster part of principals; empty: that of its key, as for the first authority of a cluster.
    """
    return certified(key.public_key(), key, days, cluster)


def certified(
    holder: ec.EllipticCurvePublicKey, signer: ec.EllipticCurvePrivateKey, days: int, cluster: str
) -> x509.Certificate:
    """Return a certificate of an authority's key.

    All authorities have the same name. So a certificate of one by another counts as self-issued (RFC 5280),
    which a path length of 0 permits.

    Args:
        holder: public key of the authority.
        signer: private key that signs: its own, or that of the authority before it.
        days: how long it is valid.
        cluster: see `self_signed`.
    """
    now, subject = datetime.datetime.now(datetime.UTC), _name("nyala certificate authority")
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(holder)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATED)
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(signs=True), critical=True)
        .add_extension(_own_key_id(holder), critical=False)
    )
    if signer.public_key() != holder:
        signed_by = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
        made = made.add_extension(signed_by, critical=False)
    if cluster:
        uri = x509.UniformResourceIdentifier(f"{SCHEME}://{cluster}/authority/{AUTHORITY_NAME}")
        made = made.add_extension(x509.SubjectAlternativeName([uri]), critical=False)
    return made.sign(signer, hashes.SHA256())


def load(directory: str) -> Authority:
    """Return the certificate authority of a folder: that of the first certificate in `ca.crt`.

    Raises:
        NotFound: the folder has none.
        Corrupt: its files cannot be read, or the key of the certificate is missing.
    """
    try:
        certificates = x509.load_pem_x509_certificates(Path(directory, CA_CERTIFICATE).read_bytes())
        Path(directory, CA_KEY).stat()
        keys = [read_key(path) for path in sorted(Path(directory).glob("ca*.key"))]
        links = Path(directory, CA_LINKS)
        linked = x509.load_pem_x509_certificates(links.read_bytes()) if links.exists() else []
    except FileNotFoundError as err:
        raise NotFound(
            f"{directory} has no certificate authority ({err.filename} does not exist); make one with: "
            f"nyala init {directory}"
        ) from err
    except ValueError as err:
        raise Corrupt(
            f"the certificate authority in {directory} cannot be read: {err}; restore its files from a backup"
        ) from err
    own = certificates[0].public_key()
    for key in keys:
        if key.public_key() == own:
            link = next((c for c in linked if c.public_key() == own), None)
            pem = b"" if link is None else link.public_bytes(serialization.Encoding.PEM)
            return Authority(certificates[0], key, pem)
    raise Corrupt(
        f"{CA_KEY} in {directory} is not the key of {CA_CERTIFICATE}; restore both from the same backup, or, "
        f"if the authority was replaced (nyala ca rotate), copy {CA_CERTIFICATE}, {CA_KEY} and {CA_LINKS} "
        "from a master"
    )


def read_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """Return the private key of an authority in a file.

    Raises:
        Corrupt: it is not one.
        OSError: it cannot be read.
    """
    try:
        secret = serialization.load_pem_private_key(path.read_bytes(), None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as err:
        raise Corrupt(f"{path} cannot be read: {err}; restore it from a backup") from err
    if not isinstance(secret, ec.EllipticCurvePrivateKey):
        raise Corrupt(f"{path} is not an elliptic curve key; restore it from a backup")
    return secret


def cluster_of(certificate: x509.Certificate) -> str:
    """Return the cluster part of principals, of the certificate of an authority.

    It is 32 hex digits of the hash of the first authority's public key; later ones name it in their
    certificates.
    """
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        (uri,) = names.get_values_for_type(x509.UniformResourceIdentifier)
        return uri.removeprefix(f"{SCHEME}://").partition("/")[0]
    except (x509.ExtensionNotFound, ValueError):
        pass
    raw = certificate.public_key().public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return hashlib.sha256(raw).hexdigest()[:32]


def issuer_among(
    authorities: Sequence[x509.Certificate], certificate: x509.Certificate
) -> x509.Certificate | None:
    """Return the authority that issued a certificate; None: none of them did."""
    for authority in authorities:
        try:
            certificate.verify_directly_issued_by(authority)
        except (ValueError, TypeError, InvalidSignature):
            continue
        return authority
    return None


def private_folder(directory: str) -> Path:
    """Create a folder for private keys, mode 0700, and return it; an existing one stays as it is."""
    folder = Path(directory)
    if not folder.exists():
        folder.mkdir(parents=True)
        folder.chmod(0o700)
    return folder


def write_private(path: Path, content: bytes) -> None:
    """Write a file of mode 0600, atomically: it has its old content or the new one, and no other mode.

    It is durable on return.
    """
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # mode 0600
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:  # also when interrupted: no part of a key stays
        Path(name).unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def check_private(path: str) -> None:
    """Check that no other user of this machine may read a private key.

    Raises:
        InvalidArgument: others may.
    """
    mode = os.stat(path).st_mode
    if os.name == "posix" and mode & _OTHERS_READ:
        raise InvalidArgument(
            f"other users of this machine may read the private key {path} (mode {mode & 0o777:o}); make it "
            f"private: chmod 600 {path}"
        )


def _name(text: str) -> x509.Name:
    return x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, "nyala"),
            x509.NameAttribute(NameOID.COMMON_NAME, text[:64]),
        ]
    )


def _host(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        pass
    labels = text.split(".")
    good = text.isascii() and len(text) <= 253 and all(
        0 < len(label) <= 63 and label.replace("-", "").isalnum() for label in labels
    )  # fmt: skip
    if not good:
        raise InvalidArgument(
            f"{text!r} is neither the name of a host nor an IP address; give it without a port"
        )
    return x509.DNSName(text)


def _key_usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs, content_commitment=False, key_encipherment=False,
        data_encipherment=False, key_agreement=False, key_cert_sign=signs, crl_sign=signs,
        encipher_only=False, decipher_only=False,
    )  # fmt: skip


def _own_key_id(key: ec.EllipticCurvePublicKey) -> x509.SubjectKeyIdentifier:
    return x509.SubjectKeyIdentifier.from_public_key(key)


def key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """Return a private key as PEM, not encrypted."""
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
