"""Addresses of masters that a client knows: those given by the user and those named by servers."""

from collections.abc import Callable, Iterable, Iterator

from nyala.wire.proto import nyala_pb2 as pb


class MasterAddresses:
    """An ordered list of masters' addresses; the first is tried first. Used on the client's loop only.

    Args:
        given: by the user; never removed.

    Attributes:
        tservers: returns public addresses of tablet servers, which are asked for masters when none answers.
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
        """Append addresses that are not listed yet."""
        self._list += [a for a in dict.fromkeys(addresses) if a and a not in self._list]

    def move_to_end(self, address: str) -> None:
        """Move an address that did not answer to the end."""
        if address in self._list:
            self._list.remove(address)
            self._list.append(address)

    def apply_config(self, consensus: pb.ConsensusState) -> None:
        """Apply a Raft configuration of the masters; one newer than any before replaces the list."""
        addresses = [m.address for m in consensus.members]
        at = consensus.config_term, consensus.config_index
        if at > self._newest and all(m.uuid for m in consensus.members):
            self._newest = at
            still = [a for a in self._list if a in addresses or a in self._given]
            first = [a for a in still if a in addresses]
            self._list = first + [a for a in still if a not in addresses]
        self.add(addresses)
