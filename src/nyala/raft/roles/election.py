"""Elections: pre-vote, vote, leader stickiness, and leadership transfer.

Dissertation 3.4 (election), 3.6.1 (up-to-date logs), 3.10 (transfer), 4.2.3 (stickiness), 9.6 (pre-vote).
"""

from nyala.common.errors import InvalidArgument, NotLeader
from nyala.common.ids import OpId, ServerUuid
from nyala.raft import quorum
from nyala.raft.messages import HardState, RequestVote, TimeoutNow, VoteReply
from nyala.raft.progress import Transfer
from nyala.raft.roles import leader, reads
from nyala.raft.state import RaftCore, RaftState


def tick(core: RaftCore) -> None:
    """Process a tick of a member that does not lead; a leader's tick is `leader.tick`."""
    core.elapsed += 1
    core.ticks_since_leader += 1
    core.promise_ticks = max(0, core.promise_ticks - 1)
    if core.elapsed >= core.timeout and not core.promise_ticks:
        core.reset_timer()
        if core.retries:  # a voter may not have noticed the exit yet, or have a promise to keep
            core.retries -= 1
            core.timeout = 2 + core.random(max(1, core.options.election_ticks // 2))
        if core.may_campaign:
            campaign(core, pre=True)


def campaign(core: RaftCore, *, pre: bool, override: bool = False) -> None:
    """Request votes of all voters.

    Args:
        core: Raft state of a member that may lead.
        pre: a pre-vote, which changes no state of the voters.
        override: ordered by the leader, so that voters ignore leader stickiness.
    """
    assert core.may_campaign, f"{core.uuid} may not stand in {core.configs.active}"
    assert override or not core.promise_ticks, f"{core.uuid} has promised not to stand"
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
    """Count the votes: win the pre-vote or the election, or step down until the next timeout.

    A member whose log is known to be incomplete requests votes too: a witness may offer it the missing
    entries.
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
    """Count a candidate's own vote once it is durable, like any other vote (figure 3.1)."""
    if (
        core.state is RaftState.CANDIDATE
        and core.uuid not in core.votes
        and core.durable_version >= core.self_vote_version
    ):
        core.votes[core.uuid] = True
        count(core)


def on_request(core: RaftCore, message: RequestVote) -> None:
    """Answer a candidate. The candidate's configuration decides which votes it requests and counts (4.1)."""
    if core.has_live_leader and not message.override and (message.pre or message.term > core.term):
        if message.pre:
            _answer(core, message, granted=False)
        return  # a live leader is not disrupted, and the term stays (4.2.3)
    if core.promise_ticks and not message.override:
        if message.pre:
            _answer(core, message, granted=False)
        return  # a leader may count on the promise (reads.py), in whatever term this member is now
    if message.term > core.term and not message.pre:
        core.become_follower(message.term, None)
    _answer(core, message, granted=_would_vote(core, message))


def _would_vote(core: RaftCore, message: RequestVote) -> bool:
    if message.term < core.term or not up_to_date(core, message.last):
        return False
    if message.term > core.term:
        return True  # a pre-vote for a term that this member has not entered
    free = core.hard.vote is None and core.leader is None
    return free or core.hard.vote == message.sender


def up_to_date(core: RaftCore, last: OpId) -> bool:
    """Return whether a log that ends at `last` is at least as complete as this log ever was (3.6.1).

    Entries that this log lost still count, because a majority may have been counted with them. So do entries
    that it has yet to receive: a member that lost them may vote for a log without them only if no other
    member can do the same.
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
    """Return whether this witness offers its entries after `last` to a candidate: its log is longer."""
    return last < core.log.last and not core.may_campaign and not core.has_live_leader


def on_reply(core: RaftCore, message: VoteReply) -> None:
    """Count a vote for the current election; any other reply is late."""
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
    """Start a leadership transfer to `to`; see `RaftNode.transfer`."""
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
    """Send TimeoutNow once the successor has the whole log (3.10)."""
    lead = core.leadership
    if lead is None or lead.transfer is None or lead.transfer.ordered:
        return
    to = lead.transfer.to
    if to in lead.peers and lead.peers[to].match == core.log.last.index:
        reads.renounce_leases(lead)
        core.send(TimeoutNow(sender=core.uuid, to=to, term=core.term, hlc=core.hlc))
        lead.transfer.ordered = True


def on_timeout_now(core: RaftCore, message: TimeoutNow) -> None:
    """Start an election at once, without a pre-vote: the leader ordered it."""
    able = core.may_campaign and not core.incomplete
    if core.state is RaftState.FOLLOWER and core.leader == message.sender and able:
        campaign(core, pre=False, override=True)
