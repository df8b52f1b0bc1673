"""Requests of clients about transactions that the masters refuse before they ask any tablet."""

from typing import Any

import pytest

from nyala.common.errors import InvalidArgument
from nyala.master.services.transactions import MAX_PARTICIPANTS, TransactionsService
from nyala.wire.proto import transactions_pb2 as txn
from tests.unit.master.support.scripted_tablets import with_term

Kind = txn.TxnOutcome


def test_commit_that_its_master_refuses_for_its_size_can_be_aborted():
    """Else its client could not say that nothing was committed."""

    async def work(term):
        class Context:
            options, env = term.options, term.env

            def require_leading(self):
                return self

            def require(self):
                return term

        context: Any = Context()
        service = TransactionsService(context)
        asked = term.request()
        for number in range(MAX_PARTICIPANTS):
            asked.participants.add(tablet_id=f"{number:032x}").parts.add(part="-", batches=1, crc=1)
        with pytest.raises(InvalidArgument, match="at most 1500 can commit together"):
            await service.commit(asked)
        assert not term.sent
        ended = await service.abort(
            txn.TxnAbortRequest(
                transaction=asked.transaction,
                participants=asked.participants,
                since=asked.since,
                timeout_ms=500,
            )
        )
        assert ended.kind == Kind.DENIED

    with_term(work)
