"""Requests for certificates (PKCS #10): a server makes its own key, which never leaves it.

Only the public key of a request is used; name, role and hosts are decided by the master that signs.
"""

import hashlib

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from nyala.common.errors import InvalidArgument
from nyala.security.authority import key_pem

MAX_BYTES = 8 << 10


def new_request() -> tuple[bytes, bytes]:
    """Return a new private key and a request for its certificate, as PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    return key_pem(key), request_for(key_pem(key))


def request_for(key: bytes) -> bytes:
    """Return a request for the certificate of a private key, as PEM.

    Raises:
        InvalidArgument: it is not a private key of a server.
    """
    try:
        secret = serialization.load_pem_private_key(key, None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as err:
        raise InvalidArgument(f"not a private key in PEM form: {err}") from err
    if not isinstance(secret, ec.EllipticCurvePrivateKey):
        raise InvalidArgument("the private key is not an elliptic curve key, as nyala's are")
    made = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([]))
    signed = made.sign(secret, hashes.SHA256())
    return signed.public_bytes(serialization.Encoding.PEM)


def public_key_of(request: bytes) -> ec.EllipticCurvePublicKey:
    """Return the public key of a request whose sender has the private key.

    Raises:
        InvalidArgument: malformed, not signed by its own key, or not a key on P-256.
    """
    try:
        if len(request) > MAX_BYTES:
            raise ValueError(f"{len(request)} bytes are more than {MAX_BYTES}")
        found = x509.load_pem_x509_csr(request)
        valid, key = found.is_signature_valid, found.public_key()
    except (ValueError, TypeError, UnsupportedAlgorithm) as err:
        raise InvalidArgument(f"the certificate request cannot be read: {err}") from err
    if not valid:
        raise InvalidArgument("the certificate request is not signed by its own key")
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise InvalidArgument("the key of the certificate request is not on the curve P-256")
    return key


def key_hash(key: ec.EllipticCurvePublicKey) -> bytes:
    """Return the SHA-256 of a public key, which identifies its holder."""
    raw = key.public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return hashlib.sha256(raw).digest()
