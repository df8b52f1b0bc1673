"""Configuration of one tablet server process."""

from dataclasses import dataclass, field

from nyala.common.options import Options


@dataclass(frozen=True, slots=True)
class TabletServerConfig:
    """Configuration of one tablet server process.

    Attributes:
        dir: data directory; created and formatted if missing.
        address: public host:port.
        peer_address: host:port of the peer port.
        web_address: host:port of the web port; empty: none.
        master_addresses: public addresses of all masters.
        location: failure domain; placement spreads the replicas of a tablet over locations.
        options: all options.
    """

    dir: str
    address: str
    peer_address: str
    web_address: str = ""
    master_addresses: tuple[str, ...] = ()
    location: str = ""
    options: Options = field(default_factory=Options)
