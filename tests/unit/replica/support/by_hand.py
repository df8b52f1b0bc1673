"""A second group, and vote requests of peers that tests deliver themselves."""

from nyala.common.ids import OpId, TabletId
from nyala.raft.messages import PeerBatch, RequestVote
from tests.unit.replica.support.replica_support import uuid_of

OTHER = TabletId("b" * 32)


def vote(group, to, sender=1, term=1000, batch_to=None):
    request = RequestVote(
        sender=uuid_of(sender), to=uuid_of(to), term=term, hlc=1, last=OpId(999, 999)
    )
    addressee = uuid_of(to if batch_to is None else batch_to)
    return PeerBatch(uuid_of(sender), addressee, 1, ((group, request),))
