"""Users of a cluster with certificates, each with a certificate of their own."""

import nyala
from nyala.security import issue
from nyala.security.files import CredentialFiles
from nyala.security.principal import AccessRole


def files_of(cluster, user, role=AccessRole.WRITER) -> CredentialFiles:
    """Return the files of a new certificate of a user."""
    return issue.user(f"{cluster.dir}/certs", f"{cluster.dir}/{user}", user, role)


def connected(cluster, user, role=AccessRole.WRITER, **more) -> nyala.Client:
    """Return a client of a user.

    Args:
        cluster: with certificates.
        user: name.
        role: in the certificate.
        **more: further arguments of `connect`.
    """
    files = files_of(cluster, user, role)
    return nyala.connect(cluster.masters, ca=files.ca, cert=files.cert, key=files.key, **more)
