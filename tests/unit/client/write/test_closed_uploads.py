"""A client closed by another thread while a stream of rows is written: the error reports the progress."""

from typing import Any

import pytest

from nyala.client.caller import finished
from nyala.client.calls import writing
from nyala.client.connection import Connection
from nyala.client.results import PartlyWritten
from nyala.client.write.pending_call import Written
from nyala.common.errors import InvalidArgument, Unavailable
from nyala.wire.proto import nyala_pb2 as pb
from tests.unit.client.support.client_bulk import opened
from tests.unit.client.support.requests import connection
from tests.unit.client.support.uploads import some


def upload(client: Connection, batches: Any) -> Written:
    """Write a stream of batches."""
    core, caller = client.core, client.caller
    return finished(writing.upload(core, caller, opened(), pb.UPSERT, batches, False))


@pytest.mark.parametrize("written", [0, 2])
def test_upload_reports_progress_when_client_is_closed(written, monkeypatch):
    client, requests = connection(monkeypatch)

    def source():
        for n in range(4):
            if n == written:
                client.close()
            yield some(n * 10, n * 10 + 10)

    with pytest.raises((PartlyWritten, Unavailable)) as raised:
        upload(client, source())
    error: Any = raised.value
    assert "closed" in str(error)
    assert isinstance(error, PartlyWritten) == (requests.rows > 0)
    if requests.rows:
        assert error.rows == requests.rows
        assert error.next_row == requests.rows + len(error.unknown) + len(error.not_written)
    with pytest.raises(InvalidArgument, match="closed"):
        upload(client, source())


def test_upload_of_stream_reports_failing_source(monkeypatch):
    client, requests = connection(monkeypatch)
    try:
        parts = (some(n, n + 10) for n in range(0, 5_000, 10))
        assert upload(client, parts).rows == 5_000
        assert requests.rows == 5_000

        def breaks(rows: int) -> Any:
            yield from [some(0, 10)] * rows
            raise ValueError("the source broke")

        with pytest.raises(PartlyWritten, match="10 rows are written, then: ValueError") as raised:
            upload(client, breaks(1))
        assert raised.value.next_row == 10
        with pytest.raises(ValueError, match="the source broke"):
            upload(client, breaks(0))
    finally:
        client.close()
