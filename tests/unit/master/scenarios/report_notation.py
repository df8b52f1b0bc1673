"""Notation of scenarios for reports of tablets, and of transcripts for orders about members.

T.N=LEADER/TERM[@TERM.INDEX[:MEMBERS]][?SILENT][!FAILED][^UNRECOVERABLE][~STATE]
MEMBERS  a,b,*c,+d    c is to be replaced, d is a non-voter that is to be promoted
         .e,-f,&-g    e is a non-voter, f a witness, g one that is to get the data
STATE    WITNESS: it runs, and has a log only
SILENT, FAILED, UNRECOVERABLE  c,d   their states in the leader's report; the others are HEALTHY
"""

import re

from nyala.wire import methods
from nyala.wire.proto import nyala_pb2 as pb

_WORD = re.compile(
    r"(?P<leader>[^/]*)/(?P<term>\d+)(@(?P<config>\d+\.\d+))?(:(?P<members>[\w,*+.&-]+))?"
    r"(\?(?P<silent>[\w,]+))?(!(?P<failed>[\w,]+))?(\^(?P<lost>[\w,]+))?(~(?P<state>\w+))?"
)


def fill(report: pb.TabletReport, reporter: str, word: str) -> None:
    """Fill a report from a word of a scenario; its members are unchanged if none are named."""
    parsed = _WORD.fullmatch(word)
    assert parsed is not None, word
    consensus = report.consensus
    report.witness = parsed["state"] == "WITNESS"
    report.state = "RUNNING" if report.witness else parsed["state"] or "RUNNING"
    consensus.term = int(parsed["term"])
    consensus.leader = "" if parsed["leader"] == "none" else parsed["leader"]
    report.role = "LEADER" if consensus.leader == reporter else "FOLLOWER"
    if parsed["config"]:
        consensus.config_term, consensus.config_index = map(int, parsed["config"].split("."))
    if parsed["members"]:
        del consensus.members[:]
        for name in parsed["members"].split(","):
            bare = name.lstrip("*+.&-")
            consensus.members.add(
                uuid=bare, address=f"{bare}:1", voter=not {*"+."} & {*name}, promote=bool({*"+&"} & {*name}),
                replace="*" in name, electable="-" not in name,
            )  # fmt: skip
    if report.role == "LEADER":
        silent, failed = (parsed["silent"] or "").split(","), (parsed["failed"] or "").split(",")
        lost = (parsed["lost"] or "").split(",")
        for member in consensus.members:
            state = "FAILED" if member.uuid in (*failed, *lost) else "HEALTHY"
            state = "SILENT" if member.uuid in silent else state
            if member.uuid != reporter:
                unrecoverable = member.uuid in lost
                report.health.add(uuid=member.uuid, state=state, unrecoverable=unrecoverable)


def member_text(member: pb.Member) -> str:
    """Return a member with its marks."""
    mark = "&" * member.promote if member.voter else ".+"[member.promote]
    return mark + "*" * member.replace + "-" * (not member.electable) + member.uuid


def order_text(method: object, request: object) -> str:
    """Return the text of an order about members beside tablet and server."""
    if isinstance(request, pb.ChangeConfigRequest):
        changes = " ".join(
            f"{c.kind} {c.member.uuid if c.kind == 'remove' else member_text(c.member)}"
            for c in request.changes
        )
        return f": {changes} as of {request.config_term}.{request.config_index}"
    if isinstance(request, pb.DeleteTabletRequest) and request.compare_config:
        return f" as of {request.config_term}.{request.config_index}"
    if isinstance(request, pb.StartCopyRequest):
        return f" from {request.source_uuid}"
    if isinstance(request, pb.CreateWitnessRequest):
        return f" after {request.start_term}.{request.start_index}"
    return ""


def answer(method: object, request: object) -> object:
    """Return a tablet server's answer to such an order; None for the others."""
    if method is methods.CHANGE_CONFIG:
        return pb.ChangeConfigResponse()
    if method is methods.START_COPY:
        assert isinstance(request, pb.StartCopyRequest)
        return pb.StartCopyResponse(
            copy=pb.CopyProgress(tablet_id=request.tablet_id, stage="FILES")
        )
    if method is methods.CREATE_WITNESS:
        return pb.CreateWitnessResponse()
    return pb.CancelCopyResponse() if method is methods.CANCEL_COPY else None


def leaders_word(consensus: pb.ConsensusState) -> pb.ListTabletsResponse:
    """Return the status of a tablet's leader: it has applied its configuration, and no more."""
    status = pb.TabletStatus(
        applied_term=consensus.config_term, applied_index=consensus.config_index, safe_time=7
    )
    status.report.consensus.CopyFrom(consensus)
    return pb.ListTabletsResponse(tablets=[status])
