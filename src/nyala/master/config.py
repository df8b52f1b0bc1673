"""Configuration of one master process."""

from dataclasses import dataclass, field

from nyala.common.options import Options
from nyala.security.authorities.keyring import Keyring


@dataclass(frozen=True, slots=True)
class MasterConfig:
    """Configuration of one master process.

    Attributes:
        dir: data directory; created and formatted if it does not exist.
        address: public host:port, as clients and other servers reach it.
        peer_address: host:port of the peer port.
        web_address: host:port of the web port; empty: none.
        master_addresses: public addresses of all masters, this one among them; the same list on each. Of one
            that is to be added: its own, and at least one of a master.
        options: options of the server.
        keys: keys of the certificate authorities; None: this master does not sign.
        join_address: host:port of the port at which servers join, as they reach it; empty: none.
    """

    dir: str
    address: str
    peer_address: str
    web_address: str = ""
    master_addresses: tuple[str, ...] = ()
    options: Options = field(default_factory=Options)
    keys: Keyring | None = None
    join_address: str = ""
