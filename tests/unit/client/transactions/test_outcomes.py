"""Options, keys and tokens of transactions, and what a part accepts."""

import pickle

import pytest

from nyala.client.transactions.coordination import participants_of
from nyala.client.transactions.keys import StreamKey, TransactionToken, id_of, options_of
from nyala.client.transactions.outcome import committed, denied, pending
from nyala.client.write.staging import StagedPart, StagedTablet
from nyala.common.errors import InvalidArgument, OutcomeUnknown, TransactionDenied
from nyala.wire.proto import nyala_pb2 as pb
from nyala.wire.proto import transactions_pb2 as txn

T1 = b"t" * 16


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"timeot_s": 3}, "did you mean 'timeout_s'?"),
        ({"kee": "a"}, "did you mean 'key'?"),
        ({"timeout_s": 0}, "timeout_s=0"),
        ({"timeout_s": True}, "timeout_s=True"),
        ({"timeout_s": float("nan")}, "timeout_s=nan"),
        ({"key": 7}, "key=7 is a int"),
        ({"key": ""}, "key=''"),
        ({"key": "a\nb"}, "printable"),
        ({"key": "x" * 257}, "256 bytes"),
        ({"key": StreamKey("s", "q", -1)}, "StreamKey.epoch=-1"),
        ({"key": StreamKey("s", "", 0)}, "StreamKey.query"),
    ],
)
def test_wrong_options_are_named(options, named):
    with pytest.raises(InvalidArgument, match=named.replace("?", r"\?")):
        options_of(options)


def test_keys_of_jobs_and_streams():
    assert options_of({"key": "job"}).key == txn.TxnKey(name="job")
    stream = StreamKey("s", "q", 3, "p", "t")
    wanted = txn.TxnKey(name="s", query="q", epoch=3, replaces="p", table="t")
    assert options_of({"key": stream}).key == wanted
    assert options_of({}).key is None


@pytest.mark.parametrize(
    "token", ["x", TransactionToken("zz", "m:1"), TransactionToken("00", "m:1")]
)
def test_wrong_token_is_refused(token):
    with pytest.raises(InvalidArgument):
        id_of(token)


def test_token_and_staged_part_can_be_pickled():
    token = TransactionToken(T1.hex(), "m:1")
    part = StagedPart("0.0", (StagedTablet("a", "t", 2, 9, ("s:1",)),), 5, 7)
    assert pickle.loads(pickle.dumps((token, part))) == (token, part)
    assert id_of(token) == T1


def test_participants_have_the_parts_of_each_tablet_in_their_order():
    parts = [
        StagedPart("x", (StagedTablet("a", "t", 1, 1), StagedTablet("b", "t", 2, 2))),
        StagedPart("y", (StagedTablet("b", "t", 3, 3), StagedTablet("a", "t", 4, 4))),
        StagedPart("empty"),
    ]
    found = [
        (p.tablet_id, [(c.part, c.batches, c.crc) for c in p.parts]) for p in participants_of(parts)
    ]
    assert found == [("a", [("x", 1, 1), ("y", 4, 4)]), ("b", [("x", 2, 2), ("y", 3, 3)])]


def test_outcomes_of_the_masters():
    assert committed(T1, txn.TxnOutcome(kind=txn.TxnOutcome.COMMITTED, at=7)).at == 7
    taken = committed(T1, txn.TxnOutcome(kind=txn.TxnOutcome.TAKEN, at=7, winner=b"w" * 16))
    assert (taken.before, taken.winner) == (True, (b"w" * 16).hex())
    with pytest.raises(OutcomeUnknown, match="so long ago"):
        committed(T1, txn.TxnOutcome(kind=txn.TxnOutcome.UNKNOWN))
    error = pb.RowError(row=3, code="not_whole", message="it lacks batches")
    refused = txn.TxnTabletResult(tablet_id="a", outcome=3, errors=[error])
    outcome = txn.TxnOutcome(kind=txn.TxnOutcome.DENIED, reason="why", errors=[refused])
    with pytest.raises(TransactionDenied, match="why; tablet a: not_whole: it lacks batches"):
        committed(T1, outcome)
    assert isinstance(denied(T1, outcome), TransactionDenied)
    assert "no master answered" in pending(T1, None, None)
