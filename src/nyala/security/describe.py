"""Description of a certificate, for people."""

from cryptography import x509
from cryptography.hazmat.primitives import hashes

from nyala.security.authority import cluster_of
from nyala.security.principal import principal_of
from nyala.security.verify import hosts_of, read_certificate, uris


def describe(path: str) -> dict[str, str]:
    """Return the fields of a certificate file.

    Raises:
        InvalidArgument: it cannot be read, or is not a certificate.
        Unauthenticated: it names no user or server of nyala.
    """
    found = read_certificate(path)
    valid = {
        "valid from": f"{found.not_valid_before_utc:%Y-%m-%d %H:%M} UTC",
        "valid until": f"{found.not_valid_after_utc:%Y-%m-%d %H:%M} UTC",
    }
    constraints = found.extensions.get_extension_for_class(x509.BasicConstraints).value
    if constraints.ca:
        fields = {"holder": "certificate authority", "cluster": cluster_of(found)}
        return fields | {"sha256": found.fingerprint(hashes.SHA256()).hex()} | valid
    principal = principal_of(uris(found))
    hosts = hosts_of(found)
    fields = {
        "holder": principal.name,
        "role": principal.role.name.lower(),
        "cluster": principal.cluster,
        "serial": f"{found.serial_number:x}",
    }
    return fields | ({"hosts": " ".join(hosts)} if hosts else {}) | valid
