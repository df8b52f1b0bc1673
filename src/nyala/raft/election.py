"""Elections: pre-vote, vote, stickiness to a live leader, and leadership handed over.

Dissertation 3.4 (election), 3.6.1 (up-to-date logs), 3.10 (transfer), 4.2.3 (stickiness), 9.6 (pre-vote).
"""

from nyala.common.errors import InvalidArgument, NotLeader
from nyala.common.ids import OpId, ServerUuid
from nyala.raft import leader, quorum
from nyala.raft.messages import HardState, RequestVote, TimeoutNow, VoteReply
from nyala.raft.progress import Transfer
from nyala.raft.state import RaftCore, RaftState


def tick(core: RaftCore) -> None:
    """Let a tick pass for a member that does not lead; a leader's time is `leader.tick`."""
    core.elapsed += 1
    core.silent += 1
    if core.elapsed >= core.timeout:
        core.reset_timer()
        if core.may_campaign:
            campaign(core, pre=True)


def campaign(core: RaftCore, *, pre: bool, override: bool = False) -> None:
    """Request votes of all voters.

    Args:
        core: of a member that may lead.
        pre: pre-vote: ask how they would vote, which changes no state anywhere.
        override: by order of the leader, whom voters need not wait for.
    """
    assert core.may_campaign, f"{core.uuid} may not stand in {core.configs.active}"
    if pre:
        core.become_pre_candidate()
        core.votes[core.uuid] = True
    else:
        core.become_candidate()
        core.reset_timer()
    for voter in core.voters:
        if voter != core.uuid:
            core.send(
                RequestVote(
                    sender=core.uuid,
                    to=voter,
                    term=core.term + 1 if pre else core.term,
                    hlc=core.hlc,
                    last=core.log.last,
                    pre=pre,
                    override=override,
                )
            )
    count(core)


def count(core: RaftCore) -> None:
    """Act on the votes so far: go on to the vote, lead, or give up until the next timeout.

    Who knows that its log lacks something asks all the same: a witness may lend it.
    """
    result = quorum.tally(core.voters, core.votes)
    vain = result is quorum.Tally.WON and core.state is RaftState.PRE_CANDIDATE and core.incomplete
    if result is quorum.Tally.LOST or vain:
        core.become_follower(core.term, None)
    elif result is quorum.Tally.WON:
        if core.state is RaftState.PRE_CANDIDATE:
            campaign(core, pre=False)
        else:
            leader.lead(core)


def count_own_vote(core: RaftCore) -> None:
    """A candidate's own vote counts like any other's: when it is durable (figure 3.1)."""
    if (
        core.state is RaftState.CANDIDATE
        and core.uuid not in core.votes
        and core.durable_version >= core.self_vote_version
    ):
        core.votes[core.uuid] = True
        count(core)


def on_request(core: RaftCore, message: RequestVote) -> None:
    """Answer a candidate. Its configuration decides whom it asks and counts, not ours (4.1)."""
    if core.hears_leader and not message.override and (message.pre or message.term > core.term):
        if message.pre:
            _answer(core, message, granted=False)
        return  # a live leader is not disturbed, and our term does not move (4.2.3)
    if message.term > core.term and not message.pre:
        core.become_follower(message.term, None)
    _answer(core, message, granted=_would_vote(core, message))


def _would_vote(core: RaftCore, message: RequestVote) -> bool:
    if message.term < core.term or not up_to_date(core, message.last):
        return False
    if message.term > core.term:
        return True  # a pre-vote for a term that we have not entered
    free = core.hard.vote is None and core.leader is None
    return free or core.hard.vote == message.sender


def up_to_date(core: RaftCore, last: OpId) -> bool:
    """Return whether a log that ends at `last` is at least as complete as ours ever was (dissertation 3.6.1).

    What this log lost still counts: a majority may have been counted with it. So does what it is to get: who
    has lost it may vote for a log without it, and must find nobody to do the same.
    """
    return last >= core.log.last and core.complete(last)


def _answer(core: RaftCore, message: RequestVote, *, granted: bool) -> None:
    if granted and not message.pre:
        core.set_hard_state(HardState(core.term, message.sender))
        core.reset_timer()
    core.send(
        VoteReply(
            sender=core.uuid,
            to=message.sender,
            hlc=core.hlc,
            granted=granted,
            pre=message.pre,
            term=message.term if granted else core.term,
            last=core.log.last,
            offers_suffix=not granted and offers_suffix(core, message.last),
        )
    )


def offers_suffix(core: RaftCore, last: OpId) -> bool:
    """Return whether a member whose log ends at `last` may fetch from this witness: its log is longer."""
    return last < core.log.last and not core.may_campaign and not core.hears_leader


def on_reply(core: RaftCore, message: VoteReply) -> None:
    """Count an answer to the question that is open now; any other is late."""
    if message.pre:
        if core.state is not RaftState.PRE_CANDIDATE:
            return
        if message.granted and message.term != core.term + 1:
            return
    elif core.state is not RaftState.CANDIDATE or message.term != core.term:
        return
    core.votes[message.sender] = message.granted
    count(core)


# ---- leadership transfer -----------------------------------------------------------------------------


def transfer(core: RaftCore, to: ServerUuid) -> None:
    """Begin to hand leadership to `to`; see `RaftNode.transfer`."""
    lead = core.leadership
    if lead is None:
        raise NotLeader(
            f"{core.uuid} does not lead its group, so it cannot transfer leadership; send the "
            "request to the leader",
            {"leader": core.leader} if core.leader else None,
        )
    if to == core.uuid or not core.configs.active.may_lead(to):
        raise InvalidArgument(
            f"leadership cannot be transferred to {to}: it must be another, electable voter of the group; "
            "choose one from the replica's status"
        )
    lead.transfer = Transfer(to, core.options.election_ticks)
    core.dirty = True
    continue_transfer(core)


def continue_transfer(core: RaftCore) -> None:
    """Order the election once the successor holds the whole log (3.10)."""
    lead = core.leadership
    if lead is None or lead.transfer is None or lead.transfer.ordered:
        return
    to = lead.transfer.to
    if to in lead.peers and lead.peers[to].match == core.log.last.index:
        core.send(TimeoutNow(sender=core.uuid, to=to, term=core.term, hlc=core.hlc))
        lead.transfer.ordered = True


def on_timeout_now(core: RaftCore, message: TimeoutNow) -> None:
    """Stand at once, without asking first: the leader ordered it."""
    able = core.may_campaign and not core.incomplete
    if core.state is RaftState.FOLLOWER and core.leader == message.sender and able:
        campaign(core, pre=False, override=True)
