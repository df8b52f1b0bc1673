"""Files of a login: authority, certificate and key in a private folder of the user, noted by address."""

import shutil
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509

from nyala.client.login.exchange import Issued
from nyala.common import addresses as address_forms
from nyala.common.errors import InvalidArgument
from nyala.security import known
from nyala.security.authority import (
    CA_CERTIFICATE,
    cluster_of,
    private_folder,
    write_private,
)
from nyala.security.credentials import Credentials
from nyala.security.files import CredentialFiles

USER_FILE = "user.pem"
LAST_PORT = 65_535
PORTS_ABOVE = 3_000
"""Join port of a master, above its public port, where it is looked for if no other address is known."""


def write(folder: Path, issued: Issued) -> CredentialFiles:
    """Write the files of a login, mode 0600, into a folder of mode 0700; return their paths.

    Certificate and key are one file, so that both are replaced at once.

    Raises:
        InvalidArgument: they do not belong together, or are not valid now.
    """
    private_folder(str(folder))
    write_private(folder / CA_CERTIFICATE, issued.ca)
    write_private(folder / USER_FILE, issued.certificate + issued.key)
    files = files_in(folder)
    Credentials(files)
    return files


def files_in(folder: Path) -> CredentialFiles:
    """Return the paths of the files of a login in a folder."""
    pem = str(folder / USER_FILE)
    return CredentialFiles(str(folder / CA_CERTIFICATE), pem, pem)


def keep(masters: Sequence[str], login: Sequence[str], issued: Issued) -> CredentialFiles:
    """Write the files of a login where later processes of this user find them; return their paths.

    Args:
        masters: addresses that the user gave.
        login: join addresses of the masters.
        issued: result of the login.

    Raises:
        InvalidArgument: no folder of this user can be written to.
    """
    place = known.place_of_logins()
    if place is None:
        raise InvalidArgument(
            "the certificate cannot be kept, because no folder of this user can be written to; set "
            "XDG_DATA_HOME to one"
        )
    name = cluster_of(x509.load_pem_x509_certificate(issued.ca))[:16]
    files = write(place / name, issued)
    known.record(dict.fromkeys([*masters, *issued.masters]), files, login, place=place)
    return files


def forget(masters: Sequence[str]) -> bool:
    """Remove the files of the login at a cluster; return whether there was one.

    Args:
        masters: addresses of the cluster's masters.
    """
    found = known.logged_in(masters)
    if found is None:
        return False
    known.forget_files(found)
    shutil.rmtree(Path(found.cert).parent, ignore_errors=True)
    return True


def login_addresses(masters: Sequence[str], given: str = "") -> list[str]:
    """Return the addresses at which users log in.

    Args:
        masters: public addresses of masters.
        given: the addresses, as "host:port,..."; empty: those noted, else the masters' with higher ports.

    Raises:
        InvalidArgument: an address that is not host:port.
    """
    if given:
        named = [a.strip() for a in given.split(",") if a.strip()]
        for address in named:
            address_forms.parse(address)
        return named
    noted = known.login_addresses(masters)
    return list(noted) or [_above(master) for master in masters]


def _above(master: str) -> str:
    host, port = address_forms.parse(master)
    if port + PORTS_ABOVE > LAST_PORT:
        raise InvalidArgument(
            f"the address of {master} at which users log in is not known; name the --join-address of a "
            "master (--login HOST:PORT, connect(login=...), or NYALA_LOGIN)"
        )
    return address_forms.join(host, port + PORTS_ABOVE)
