"""`nyala web`: links with which a browser logs in at the status pages."""

from typing import TYPE_CHECKING

import typer

from nyala.cli.output import Format, FormatOption, MastersOption, show, verb

if TYPE_CHECKING:
    from nyala.security.credentials import Credentials

TIMEOUT_S = 5.0


@verb
def web(masters: MastersOption = "", format: FormatOption = Format.TABLE) -> None:
    """Print a link to the pages of each server; with certificates it is for one login, within 10 minutes."""
    from nyala.client import connect
    from nyala.client.credentials import credentials_for

    with connect(masters) as client:
        servers = [s for s in client.servers() if s.web_address and s.alive]
    credentials = credentials_for(masters)
    rows = [(s.role, s.address, link(s.web_address, credentials)) for s in servers]
    show(("role", "address", "link"), rows, format)
    if not rows:
        raise typer.Exit(1)


def link(address: str, credentials: "Credentials | None") -> str:
    """Return a link to the pages of a web port, with which a browser may log in once.

    Args:
        address: host:port of the web port.
        credentials: of the user; None: the port has no encryption, and needs no login.

    Raises:
        Unavailable: the port does not answer, or refuses.
    """
    import urllib.error
    import urllib.request

    from nyala.common.errors import Unavailable

    if credentials is None:
        return f"http://{address}/"
    context = credentials.client_context()
    opener = urllib.request.build_opener(
        urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
    )
    request = urllib.request.Request(f"https://{address}/login-links", method="POST", data=b"")
    try:
        with opener.open(request, timeout=TIMEOUT_S) as answer:
            return f"https://{address}/login?token={answer.read().decode()}"
    except urllib.error.HTTPError as err:
        raise Unavailable(f"the web port {address} refuses a link: {err.read().decode()}") from err
    except OSError as err:
        raise Unavailable(
            f"the web port {address} does not answer: {err}; check that the server runs (nyala cluster ksck)"
        ) from err
