"""Transfer of the key of a new authority between masters, to a master that proves that it has the old one.

The receiver makes a key pair for one transfer, and signs its public key with the old authority's key. The
sender encrypts the new key for it: ECDH on P-256, HKDF with SHA-256, AES-256-GCM.
"""

import os
from dataclasses import dataclass, field

from cryptography import x509
from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from nyala.common.errors import Forbidden, InvalidArgument
from nyala.security.authorities.bundle import key_id
from nyala.security.authority import key_pem

_PURPOSE = b"nyala: key of a new certificate authority\n"
_NONCE_BYTES = 12


@dataclass(frozen=True, slots=True)
class KeyProof:
    """KeyProof of a master that it has the key of an authority.

    Attributes:
        public: public key for one transfer, DER.
        signature: of it, by the authority.
    """

    public: bytes
    signature: bytes


@dataclass(frozen=True, slots=True)
class Sealed:
    """Encrypted key.

    Attributes:
        public: public key of the sender for this transfer, DER.
        content: nonce, and encrypted key.
    """

    public: bytes
    content: bytes = field(repr=False)


class Receiver:
    """The receiving end of one transfer.

    Args:
        old: key of an authority that the sender trusts.
        wanted: certificate of the new authority.
    """

    def __init__(self, old: ec.EllipticCurvePrivateKey, wanted: x509.Certificate) -> None:
        self._own = ec.generate_private_key(ec.SECP256R1())
        self._wanted = wanted
        public = _der(self._own.public_key())
        signed = old.sign(_PURPOSE + public + _name(wanted), ec.ECDSA(hashes.SHA256()))
        self.proof = KeyProof(public, signed)
        """Sent to the sender."""

    def open(self, sealed: Sealed) -> ec.EllipticCurvePrivateKey:
        """Return the key of the new authority.

        Raises:
            InvalidArgument: it cannot be decrypted, or is another key.
        """
        name = _name(self._wanted)
        secret = _secret(self._own, sealed.public, self.proof.public + sealed.public, name)
        nonce, content = sealed.content[:_NONCE_BYTES], sealed.content[_NONCE_BYTES:]
        try:
            pem = AESGCM(secret).decrypt(nonce, content, name)
            key = serialization.load_pem_private_key(pem, None)
        except (InvalidTag, ValueError) as err:
            raise InvalidArgument("the key of the new authority cannot be decrypted") from err
        if (
            not isinstance(key, ec.EllipticCurvePrivateKey)
            or key.public_key() != self._wanted.public_key()
        ):
            raise InvalidArgument("the key is not that of the new authority's certificate")
        return key


def seal(
    key: ec.EllipticCurvePrivateKey,
    wanted: x509.Certificate,
    old: x509.Certificate,
    proof: KeyProof,
) -> Sealed:
    """Return the key of a new authority, encrypted for a master.

    Args:
        key: the key.
        wanted: certificate of the new authority.
        old: certificate of the authority whose key the master says it has.
        proof: of the master.

    Raises:
        Forbidden: the proof is wrong.
    """
    signer = old.public_key()
    assert isinstance(signer, ec.EllipticCurvePublicKey), type(signer)
    name = _name(wanted)
    try:
        signer.verify(proof.signature, _PURPOSE + proof.public + name, ec.ECDSA(hashes.SHA256()))
    except InvalidSignature as err:
        raise Forbidden(
            "the master does not prove that it has the key of the old authority, and does not get the new one"
        ) from err
    own = ec.generate_private_key(ec.SECP256R1())
    public, nonce = _der(own.public_key()), os.urandom(_NONCE_BYTES)
    secret = _secret(own, proof.public, proof.public + public, name)
    return Sealed(public, nonce + AESGCM(secret).encrypt(nonce, key_pem(key), name))


def _secret(own: ec.EllipticCurvePrivateKey, other: bytes, publics: bytes, name: bytes) -> bytes:
    try:
        peer = serialization.load_der_public_key(other)
        if not isinstance(peer, ec.EllipticCurvePublicKey):
            raise ValueError("not an elliptic curve key")
        shared = own.exchange(ec.ECDH(), peer)
    except ValueError as err:
        raise InvalidArgument(f"the public key of the transfer cannot be used: {err}") from err
    return HKDF(hashes.SHA256(), 32, None, _PURPOSE + publics + name).derive(shared)


def _name(wanted: x509.Certificate) -> bytes:
    return key_id(wanted).encode()


def _der(key: ec.EllipticCurvePublicKey) -> bytes:
    return key.public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
