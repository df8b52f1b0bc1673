"""Why the certificate of a server is not accepted, and what to do about it, in words.

OpenSSL and gRPC say the reason in texts of their own.
"""

import re

UNTRUSTED = "untrusted"
"""Name of a detail of `Unavailable`: why the certificate of the server, which runs, is not accepted."""
_OF_GRPC = re.compile(
    r"CERTIFICATE_VERIFY_FAILED: ([^:\]]+)|(Peer name \S+ is not in peer certificate)"
)
_EXPIRED, _EARLY = "certificate has expired", "certificate is not yet valid"
_OTHER_HOST = re.compile(r"(?:hostname|ip address|peer name)\b.*(?:mismatch|not )", re.IGNORECASE)
RENEWAL = (  # what to do about the certificate of a server that is not renewed by itself
    "an administrator makes a new one with nyala cert server (docs/operate/security.md, renewal), which the "
    "server takes without a restart; no data are lost"
)


def reason_in(text: str) -> str:
    """Return why the certificate of a server is refused, as gRPC's text has it; empty: not for that.

    Args:
        text: of the error of a call.
    """
    found = _OF_GRPC.search(text)
    return "" if found is None else (found.group(1) or found.group(2)).strip()


def explained(reason: str, host: str) -> str:
    """Return what is wrong with the certificate of a server, and what to do.

    Args:
        reason: of OpenSSL or gRPC.
        host: under which the server was connected to.
    """
    if _EXPIRED in reason:
        return f"its certificate has expired: {RENEWAL}. Or the clock of this machine is wrong"
    if _EARLY in reason:
        return (
            "its certificate is not valid yet: set the clocks of its machine and of this one right"
        )
    if _OTHER_HOST.search(reason):
        return (
            f"its certificate does not fit, since it does not name the host {host}: connect to a host that "
            "it names (nyala cert show), or make one that names this host (nyala cert server --host)"
        )
    return (
        f"its certificate does not fit: {reason}; check that ca is the ca.crt of this cluster, whose "
        "authority may have been replaced since (nyala ca show)"
    )
