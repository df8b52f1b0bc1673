"""Steps of one member, on its own or with a message: each step of the core is taken once and cached.

A member's state and a message are numbers here; a set of messages is a number with a bit for each.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from nyala.raft.messages import AnyMessage
from nyala.raft.reconfiguration.changes import Change, ChangeKind
from tests.model import member as inputs
from tests.model.bounds import Bounds, named
from tests.model.effects import without_effect
from tests.model.member import Action, Member, clone, freeze
from tests.model.rules import Face, face

WIDTH = 20  # bits of a member's number
Step = tuple[int, int]  # member afterwards, messages sent


@dataclass(slots=True)
class Move:
    """Step that a member may take without a message."""

    words: str
    after: int
    sent: int
    crashes: int = 0


class Machine:
    """Behaviour of all members; each step is taken once."""

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self.members: list[Member] = []
        self.faces: list[int] = []  # by member: number of its face
        self.known_faces: dict[Face, int] = {}
        self.face_of: list[Face] = []
        self.messages: list[AnyMessage] = []
        self.inbox: dict[str, int] = dict.fromkeys(bounds.uuids, 0)
        self.outbox: dict[str, int] = dict.fromkeys(bounds.uuids, 0)
        self._numbers: dict[object, int] = {}
        self._message_numbers: dict[AnyMessage, int] = {}
        self._steps: dict[tuple[int, int], Step] = {}
        self._boxes: dict[tuple[int, int], tuple[int, list[tuple[int, int, int]]]] = {}
        self._moves: dict[int, tuple[int, list[Move]]] = {}
        self._dead: dict[tuple[int, int], tuple[int, int]] = {}

    def number(self, member: Member) -> int:
        """Return the number of a member's state."""
        key = freeze(member)
        known = self._numbers.get(key)
        if known is None:
            known = self._numbers[key] = len(self.members)
            assert known < 1 << WIDTH, "too many states of one member"
            self.members.append(member)
            seen = face(member)
            self.faces.append(self.known_faces.setdefault(seen, len(self.known_faces)))
            if len(self.known_faces) > len(self.face_of):
                self.face_of.append(seen)
        return known

    def _post(self, sent: list[AnyMessage]) -> int:
        mask = 0
        for message in sent:
            known = self._message_numbers.get(message)
            if known is None:
                known = self._message_numbers[message] = len(self.messages)
                self.messages.append(message)
                if message.to in self.inbox:
                    self.inbox[message.to] |= 1 << known
                    self.outbox[message.sender] |= 1 << known
            mask |= 1 << known
        return mask

    def _act(self, number: int, action: Action) -> Step:
        member = clone(self.members[number])
        sent = action(member)
        return self.number(member), self._post(sent)

    def deliver(self, number: int, bit: int) -> Step:
        """Let a member take a message."""
        step = self._steps.get((number, bit))
        if step is None:
            message = self.messages[bit]
            step = self._act(number, partial(inputs.take, message=message))
            self._steps[number, bit] = step
        return step

    def dead(self, number: int, sender: int, mask: int) -> int:
        """Return the messages in `mask` between two members that can never have an effect again."""
        seen, known = self._dead.get((number, sender), (0, 0))
        rest = mask & ~seen
        if rest:
            to, by, top = self.members[number], self.members[sender], self.bounds.top_term
            rest &= self.inbox[to.node.core.uuid] & self.outbox[by.node.core.uuid]
            while rest:
                low = rest & -rest
                rest ^= low
                if without_effect(self.messages[low.bit_length() - 1], to, by, top):
                    known |= low
            self._dead[number, sender] = seen | mask, known
        return known

    def box(self, number: int, mask: int) -> tuple[int, list[tuple[int, int, int]]]:
        """Return messages of steps without a change of state, and (message, member, sent) of the others."""
        known = self._boxes.get((number, mask))
        if known is None:
            messages, changing, rest = 0, [], mask
            while rest:
                low = rest & -rest
                rest ^= low
                after, sent = self.deliver(number, low.bit_length() - 1)
                if after == number:
                    messages |= sent
                else:
                    changing.append((low.bit_length() - 1, after, sent))
            known = self._boxes[number, mask] = messages, changing
        return known

    def moves(self, number: int) -> tuple[int, list[Move]]:
        """Return the messages that a member may send at any time, and its steps."""
        known = self._moves.get(number)
        if known is None:
            messages, changing = 0, []
            for words, action in self._actions(self.members[number]):
                after, sent = self._act(number, action)
                if after == number:
                    messages |= sent
                else:
                    changing.append(Move(words, after, sent, int(words == "crashes")))
            known = self._moves[number] = messages, changing
        return known

    def _actions(self, member: Member) -> Iterator[tuple[str, Action]]:
        core, bounds = member.node.core, self.bounds
        if member.pending:
            yield "syncs", inputs.sync
        if bounds.crashes:
            yield "crashes", inputs.crash
        if core.leadership is None:
            if core.may_campaign and core.term < bounds.top_term:
                yield "times out", inputs.time_out if bounds.pre_vote else inputs.stand
            return
        yield "heartbeats", inputs.heartbeat
        if bounds.stalls:
            yield "sends again", partial(inputs.heartbeat, stalled=True)
            yield "gives up", inputs.give_up
        if core.log.last.index < bounds.top_index:
            yield "proposes", partial(inputs.propose, payload=b"x")
            for change in bounds.changes:
                yield f"changes {change}", self._change(change)
        for peer in core.leadership.peers if bounds.transfers else ():
            if core.configs.active.may_lead(peer):
                yield f"hands over to {peer}", partial(inputs.transfer, to=peer)

    def _change(self, words: str) -> Action:
        one = named(words[1], electable=words[1] not in self.bounds.witnesses)
        kind = ChangeKind.ADD if words[0] == "+" else ChangeKind.REMOVE
        return partial(inputs.change, one=Change(kind, one))
