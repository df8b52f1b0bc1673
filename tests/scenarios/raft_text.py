"""Notation of entries, members and messages in scenarios of a Raft group, parsed and printed."""

from nyala.common.ids import NO_OP, OpId, ServerUuid
from nyala.raft import membership
from nyala.raft.membership import Member
from nyala.raft.messages import (  # fmt: skip
    AnyMessage,
    AppendEntries,
    AppendReply,
    Entry,
    EntryKind,
    FetchSuffix,
    RequestVote,
    Suffix,
    TimeoutNow,
    VoteReply,
)
from nyala.raft.reconfiguration.changes import Change, ChangeKind


def entry_text(entry: Entry) -> str:
    if entry.kind is EntryKind.NOOP:
        return f"{entry.id} noop"
    if entry.kind is EntryKind.CONFIG:
        return f"{entry.id} config({members_text(membership.decode(entry.payload, entry.id))})"
    return f"{entry.id} {entry.payload.decode()}"


def _member(member: Member) -> str:
    """`4'p`: a non-voter to be promoted; `w`: a witness; `r`: to be replaced."""
    marks = {
        "'": not member.voter,
        "w": not member.electable,
        "p": member.promote,
        "r": member.replace,
    }
    return member.uuid + "".join(mark for mark, is_set in marks.items() if is_set)


def members_text(config: membership.Configuration) -> str:
    lost = f"; lost {' '.join(config.lost)}" if config.lost else ""
    return " ".join(map(_member, config.members)) + lost


def change_of(text: str) -> Change:
    """`+4'p` adds, `-4` removes, `=4w` changes the kind of member 4."""
    uuid = text[1:].rstrip("'wpr")
    marks = text[1 + len(uuid) :]
    kind = {"+": ChangeKind.ADD, "-": ChangeKind.REMOVE, "=": ChangeKind.MODIFY}[text[0]]
    member = Member(
        ServerUuid(uuid), f"{uuid}:1", voter="'" not in marks, electable="w" not in marks,
        promote="p" in marks, replace="r" in marks,
    )  # fmt: skip
    return Change(kind, member)


def entries_text(entries: tuple[Entry, ...]) -> str:
    if len(entries) > 4:
        return f"{entry_text(entries[0])}, ... {entry_text(entries[-1])} ({len(entries)} entries)"
    return ", ".join(map(entry_text, entries))


def describe(message: AnyMessage) -> str:
    """Return one message in one line, with the fields of its kind only."""
    text = f"{message.sender} -> {message.to} {type(message).__name__} term {message.term}"
    if isinstance(message, AppendEntries):
        what = f"[{entries_text(message.entries)}] after" if message.entries else "nothing after"
        text += f": {what} {message.previous}, commit {message.commit}"
        text += f", round {message.round}" if message.round else ""
        text += f", closed {message.closed}" if message.closed else ""
    elif isinstance(message, AppendReply):
        yes = f"durable to {message.match}, received to {message.hint}"
        text += f": {yes if message.success else f'refused, look at {message.hint}'}"
        text += f", round {message.round}" if message.round else ""
    elif isinstance(message, RequestVote):
        text += f": {'pre-vote' if message.pre else 'vote'}, log ends at {message.last}"
        text += ", override" if message.override else ""
    elif isinstance(message, VoteReply):
        text += f": {'pre-vote' if message.pre else 'vote'} {'granted' if message.granted else 'refused'}"
        text += f", lends up to {message.last}" if message.offers_suffix else ""
    elif isinstance(message, FetchSuffix):
        text += f": what follows {message.last}"
    elif isinstance(message, Suffix):
        text += f": [{entries_text(message.entries)}] after {message.previous}, of a log to {message.last}"
    return text


def op_of(text: str) -> OpId:
    term, index = text.split(".")
    return OpId(int(term), int(index))


def _hand_entry(text: str) -> Entry:
    """`2.3:x` or `2.3:config(1,2)` with its index as timestamp, `2.3:x@7` with another."""
    op, rest = text.split(":")
    payload, _, stamp = rest.partition("@")
    at, kind, data = op_of(op), EntryKind.OPERATION, payload.encode()
    if payload == "noop":
        kind, data = EntryKind.NOOP, b""
    elif payload.startswith("config("):
        members = [membership.Member(ServerUuid(u), u) for u in payload[7:-1].split(",")]
        kind, data = EntryKind.CONFIG, membership.encode(membership.initial(members))
    return Entry(at, int(stamp or 1000 * at.index), kind, data)


def message_of(route: str, kind: str, fields: tuple[str, ...]) -> AnyMessage:
    sender, to = (ServerUuid(u) for u in route.split("->"))
    given = dict(f.partition("=")[::2] for f in fields)
    term = int(given.get("term", 0))
    if kind == "AppendEntries":
        entries = tuple(_hand_entry(t) for t in given.get("entries", "").split(";") if t)
        return AppendEntries(
            sender=sender, to=to, term=term, previous=op_of(given.get("previous", "0.0")),
            entries=entries, commit=int(given.get("commit", 0)), closed=int(given.get("closed", 0)),
        )  # fmt: skip
    if kind == "RequestVote":
        last = op_of(given["last"]) if "last" in given else NO_OP
        return RequestVote(
            sender=sender, to=to, term=term, last=last,
            pre="pre" in given, override="override" in given,
        )  # fmt: skip
    if kind == "AppendReply":
        return AppendReply(
            sender=sender, to=to, term=term, success="match" in given,
            match=int(given.get("match", 0)), hint=op_of(given.get("hint", "0.0")),
        )  # fmt: skip
    assert kind == "TimeoutNow", kind
    return TimeoutNow(sender=sender, to=to, term=term)
