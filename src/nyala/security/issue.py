"""Issuing certificates into folders: what `nyala init` and `nyala cert` do."""

from collections.abc import Sequence
from pathlib import Path

from nyala.common.errors import AlreadyPresent, InvalidArgument
from nyala.security.authorities import issued
from nyala.security.authority import (
    CA_CERTIFICATE,
    CA_DAYS,
    DAYS,
    Authority,
    create,
    key_pem,
    load,
    private_folder,
    write_private,
)
from nyala.security.files import CA_KEY, SERVER_FILE, CredentialFiles
from nyala.security.principal import AccessRole

ADMIN = "admin"
SERVER = "server"


def initialise(directory: str, days: int = CA_DAYS) -> CredentialFiles:
    """Make a certificate authority and the certificate of its first administrator, `admin`; return its files.

    Args:
        directory: folder for both; created.
        days: how long the authority is valid.

    Raises:
        AlreadyPresent: the folder has an authority.
        OSError: it cannot be written.
    """
    authority = create(directory, days)
    return write(authority, directory, ADMIN, AccessRole.ADMIN, ADMIN, listed=directory)


def server(
    directory: str,
    out: str,
    hosts: Sequence[str],
    days: int = DAYS,
    name: str = "",
    *,
    signs: bool = False,
) -> CredentialFiles:
    """Make the certificate of a server; return its files.

    Args:
        directory: folder of the authority.
        out: folder for the files `ca.crt`, `server.crt` and `server.key`; created.
        hosts: names and addresses under which others reach it.
        days: how long it is valid.
        name: `tserver-<uuid>` or `master-<uuid>`; empty: the first host names it.
        signs: for a master that issues certificates: the folder gets `ca.key` too.

    Raises:
        InvalidArgument: no host.
        AlreadyPresent: the folder is the authority's own.
        NotFound, Corrupt: the authority cannot be read.
    """
    if not hosts:
        raise InvalidArgument(
            "name the hosts and addresses under which others reach the server: --host 10.0.0.5 --host db1"
        )
    _refuse_own(directory, out)
    name = name or hosts[0].replace(":", "-")[:64]
    authority = load(directory)
    ca = Path(directory, CA_CERTIFICATE).read_bytes()
    files = write(authority, out, SERVER, AccessRole.SERVER, name, hosts, days, ca)
    if signs:
        write_private(Path(out, CA_KEY), key_pem(authority.key))
    return files


def user(
    directory: str, out: str, name: str, role: AccessRole, days: int = DAYS
) -> CredentialFiles:
    """Make the certificate of a user; return its files.

    Args:
        directory: folder of the authority, which lists the certificate.
        out: folder for the files `ca.crt`, `<name>.crt` and `<name>.key`; created.
        name: of the user.
        role: what the user may do.
        days: how long it is valid.

    Raises:
        InvalidArgument: a name that a certificate cannot carry.
        AlreadyPresent: the folder is the authority's own.
        NotFound, Corrupt: the authority cannot be read.
        OSError: a file was not written.
    """
    _refuse_own(directory, out)
    authority = load(directory)
    ca = Path(directory, CA_CERTIFICATE).read_bytes()
    return write(authority, out, name, role, name, (), days, ca, listed=directory)


def local_cluster(directory: str, hosts: Sequence[str]) -> None:
    """Make the authority and the certificates of a cluster on one machine, if they are missing.

    Args:
        directory: folder for all of them.
        hosts: names and addresses in the certificate for servers that are added by hand, which share it.
    """
    if not Path(directory, CA_CERTIFICATE).exists():
        initialise(directory)
    if not Path(directory, f"{SERVER}.crt").exists():
        write(load(directory), directory, SERVER, AccessRole.SERVER, "local", hosts, CA_DAYS)


def local_server(directory: str, out: str, name: str, hosts: Sequence[str], *, signs: bool) -> None:
    """Make the certificate of a server of a cluster on one machine, which renews it; once.

    Args:
        directory: folder of the authority.
        out: folder for it, in the server's data directory; created.
        name: `tserver-<uuid>`, `master-<uuid>` or `member-<uuid>`.
        hosts: names and addresses under which others reach the server.
        signs: for a master: the folder gets `ca.key` too.
    """
    authority, folder = load(directory), private_folder(out)
    certificate, key = authority.issue(AccessRole.SERVER, name, hosts, CA_DAYS)
    if signs:
        write_private(folder / CA_KEY, key_pem(authority.key))
    write_private(folder / CA_CERTIFICATE, Path(directory, CA_CERTIFICATE).read_bytes())
    write_private(
        folder / SERVER_FILE, certificate + key
    )  # last: without it the others are made again


def write(
    authority: Authority, out: str, file: str, role: AccessRole, name: str,
    hosts: Sequence[str] = (), days: int = CA_DAYS, ca: bytes = b"", listed: str = "",
) -> CredentialFiles:  # fmt: skip
    """Issue a certificate and write its files; return their paths. See `Authority.issue`.

    Args:
        authority: that issues it.
        out: folder; created.
        file: name of the files, without `.crt` and `.key`.
        role: what its holder may call.
        name: of its holder.
        hosts: of a server.
        days: how long it is valid.
        ca: authorities that its holder trusts, as PEM; empty: this one.
        listed: of a user: folder whose list gets the certificate, before its files exist; empty: none.
    """
    certificate, key = authority.issue(role, name, hosts, days)
    if listed:
        issued.add(listed, issued.entry_of(certificate))
    folder = private_folder(out)
    paths = folder / CA_CERTIFICATE, folder / f"{file}.crt", folder / f"{file}.key"
    for path, content in zip(
        paths, (ca or authority.certificate_pem, certificate, key), strict=True
    ):
        write_private(path, content)
    return CredentialFiles(*map(str, paths))


def _refuse_own(directory: str, out: str) -> None:
    if Path(out).resolve() == Path(directory).resolve():
        raise AlreadyPresent(
            f"{out} has the key of the certificate authority, which must not be copied to servers and users; "
            "choose another folder with --out"
        )
