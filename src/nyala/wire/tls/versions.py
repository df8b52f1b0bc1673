"""TLS 1.3 only for gRPC's port: the library has no option for it, and accepts TLS 1.2 too."""

from collections.abc import MutableMapping

VARIABLE = "GRPC_SSL_CIPHER_SUITES"
"""Environment variable with gRPC's cipher suites of TLS 1.2; those of TLS 1.3 are fixed."""
UNUSABLE = "ECDHE-RSA-AES128-GCM-SHA256"
"""A suite for keys of RSA. Those of nyala are of ECDSA, so with this suite alone no TLS 1.2 remains."""


def require_tls13(environ: MutableMapping[str, str]) -> None:
    """Have the gRPC servers of a process accept TLS 1.3 only. A value that the variable has is kept.

    Args:
        environ: environment of the process, before it imports gRPC.
    """
    environ.setdefault(VARIABLE, UNUSABLE)
