"""The addresses at which a client looks for masters: those it was given, and those that it was told of."""

from collections.abc import Callable, Iterable, Iterator

from nyala.wire.proto import nyala_pb2 as pb


class KnownMasters:
    """On the client's loop only.

    Args:
        given: by the user; never forgotten.

    Attributes:
        tservers: returns public addresses of tablet servers that may know, when no master answers.
    """

    def __init__(self, given: Iterable[str]) -> None:
        self._given = tuple(given)
        self._list: list[str] = list(self._given)
        self._newest = (0, 0)
        self.tservers: Callable[[], Iterable[str]] = lambda: ()

    def __iter__(self) -> Iterator[str]:
        return iter(tuple(self._list))

    def __contains__(self, address: str) -> bool:
        return address in self._list

    def add(self, addresses: Iterable[str]) -> None:
        """Look there too."""
        self._list += [a for a in dict.fromkeys(addresses) if a and a not in self._list]

    def silent(self, address: str) -> None:
        """Who did not answer is asked last."""
        if address in self._list:
            self._list.remove(address)
            self._list.append(address)

    def told(self, consensus: pb.ConsensusState) -> None:
        """Take a master's word on who the masters are; the newest one says it whole."""
        addresses = [m.address for m in consensus.members]
        at = consensus.config_term, consensus.config_index
        if at > self._newest and all(m.uuid for m in consensus.members):
            self._newest = at
            still = [a for a in self._list if a in addresses or a in self._given]
            first = [a for a in still if a in addresses]
            self._list = first + [a for a in still if a not in addresses]
        self.add(addresses)
